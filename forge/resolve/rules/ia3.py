"""Rules on IA3: vectors that scale the inputs or outputs of matrices."""

from __future__ import annotations

from forge.config.adapters.adapter import adapter_prefix, in_ours, is_target
from forge.config.adapters.ia3 import IA3
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import MATRIX, TensorSpec
from forge.config.rule import Findings, rule

TARGETS, INPUTS = "adapter.target_modules", "adapter.feedforward_modules"


@rule("adapter.ia3", TARGETS, INPUTS, "model")
def ia3(model: Decoder, adapter: IA3) -> Findings:
    """With adapter=ia3 each entry of adapter.target_modules is of a matrix outside of experts, and
    feedforward_modules are some of these.
    """
    matrices = [tensor for tensor in model.tensors() if tensor.role == MATRIX]
    chosen = [tensor for tensor in matrices if adapter.has(tensor)]
    if not adapter.target_modules:
        yield TARGETS, "it names no matrix.", f"{TARGETS}=[wk,wv,w_down]"
    for key, words, tensors in (
        (TARGETS, adapter.target_modules, matrices),
        (INPUTS, adapter.feedforward_modules, chosen),
    ):
        for word in words if tensors else ():
            if not any(is_target(word, tensor) for tensor in tensors):
                names = _names(tensors)
                fitting = [
                    w for w in in_ours(words) if any(is_target(w, tensor) for tensor in tensors)
                ]
                message = (
                    f"'{word}' is of no matrix that can have a vector, but {', '.join(names)}."
                )
                yield (
                    key,
                    message,
                    f"{key}=[{','.join(fitting)}]" if fitting else f"{key}=[{names[0]}]",
                )
                break


def _names(tensors: list[TensorSpec]) -> list[str]:
    return list(dict.fromkeys(adapter_prefix(tensor).rpartition(".")[2] for tensor in tensors))
