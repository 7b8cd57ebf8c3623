"""Rules on vectors that scale what matrices give or are given."""

from __future__ import annotations

from forge.config.adapters.adapter import fits, in_ours, place_of
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
    matrices = [one for one in model.tensors() if one.role == MATRIX]
    chosen = [one for one in matrices if adapter.has(one)]
    if not adapter.target_modules:
        yield TARGETS, "it names no matrix.", f"{TARGETS}=[wk,wv,w_down]"
    for key, words, known in (
        (TARGETS, adapter.target_modules, matrices),
        (INPUTS, adapter.feedforward_modules, chosen),
    ):
        for word in words if known else ():
            if not any(fits(word, one) for one in known):
                names = _names(known)
                left = [w for w in in_ours(words) if any(fits(w, one) for one in known)]
                what = f"'{word}' is of no matrix that can have a vector, but {', '.join(names)}."
                yield key, what, f"{key}=[{','.join(left)}]" if left else f"{key}=[{names[0]}]"
                break


def _names(tensors: list[TensorSpec]) -> list[str]:
    return list(dict.fromkeys(place_of(one).rpartition(".")[2] for one in tensors))
