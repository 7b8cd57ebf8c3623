"""Rules on adapters: parameters trained beside frozen weights."""

from __future__ import annotations

import re

from forge.config.adapters.adapter import (
    AUTO,
    PARTS,
    PISSA,
    ROLES,
    Adapter,
    LoRA,
    adapter_prefix,
    fits_in_any_words,
    in_ours,
    is_target,
)
from forge.config.checkpoint import Checkpoint
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.tensors import BIAS, EMBEDDING, EXPERT, HEAD, TensorSpec
from forge.config.objectives.base import Objective
from forge.config.objectives.grpo import PROMPTS
from forge.config.quantization import Quantization
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.resolve.rules.run_directory import has_saved_since

TARGETS, RANKS, SAVED = "adapter.target_modules", "adapter.ranks", "adapter.modules_to_save"
INIT_FROM = "checkpoint.init_from"
NONE, BIASED = "adapter=none", "model.bias=true"


@rule("adapter.needs_decoder", "adapter")
def adapter_needs_decoder(model: Model, adapter: Adapter) -> Findings:
    """An adapter stands beside matrices of forge's Decoder, which it knows by their roles."""
    if adapter.active and not model.has_blocks:
        yield "adapter", NONE


@rule(TARGETS, TARGETS, "model")
def target_modules(model: Decoder, adapter: LoRA) -> Findings:
    """Each entry of adapter.target_modules is of a matrix of the model."""
    tensors = [tensor for tensor in model.tensors() if tensor.role in ROLES]
    if not adapter.target_modules:
        yield TARGETS, "it names no matrix.", f"{TARGETS}=[auto]"
    if HEAD in adapter.target_modules and model.tie_embeddings:
        message = "with model.tie_embeddings=true the head is the embedding."
        yield TARGETS, message, f"model.tie_embeddings=false, or {TARGETS}=[auto]"
        return
    unknown = [
        w for w in adapter.target_modules if not any(is_target(w, tensor) for tensor in tensors)
    ]
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        names = ", ".join(map(repr, unknown))
        message = f"{names} {verb} of no matrix of this model, but {_known(tensors)}."
        yield TARGETS, message, f"{TARGETS}=[{','.join(_meant(adapter.target_modules, tensors))}]"


@rule(RANKS, RANKS, TARGETS, "model")
def ranks_of_matrices(model: Decoder, adapter: LoRA) -> Findings:
    """Each entry of adapter.ranks is of a matrix that adapter.target_modules names, and is no less
    than 0.
    """
    chosen = [
        tensor
        for tensor in model.tensors()
        if any(is_target(w, tensor) for w in adapter.target_modules)
    ]
    for word, rank in adapter.ranks.items():
        if rank < 0:
            yield RANKS, f"{word} has a rank of {rank}.", "leave it out"
        elif not any(fits_in_any_words(word, tensor) for tensor in chosen):
            message = f"'{word}' is of no matrix that has an adapter, but {_known(chosen)}."
            yield RANKS, message, "leave it out"
    if adapter.ranks and chosen and not any(map(adapter.rank_of, chosen)):
        yield RANKS, "it leaves no matrix an adapter.", "leave it out"


@rule(SAVED, SAVED, "model")
def modules_to_save(model: Decoder, adapter: LoRA) -> Findings:
    """Each regular expression of adapter.modules_to_save is found in the name of a parameter."""
    names = [tensor.name for tensor in model.tensors()]
    for pattern in adapter.modules_to_save:
        if not any(re.search(pattern, name) for name in names):
            message = f"'{pattern}' is in the name of no parameter, such as {names[-1]}."
            yield SAVED, message, f"{SAVED}=[norm]"


@rule("adapter.bias", "adapter.bias", TARGETS, "model")
def bias(model: Decoder, adapter: LoRA) -> Findings:
    """Where adapter.bias is not none, there are biases that it means."""
    chosen = adapter.bias != "none"
    if chosen and not any(
        tensor.role == BIAS and adapter.trains(tensor) for tensor in model.tensors()
    ):
        yield "adapter.bias", f"adapter.bias=none, or {BIASED}"


@rule("adapter.embedding", TARGETS, "adapter.dora", "model")
def embedding(model: Decoder, adapter: LoRA) -> Findings:
    """What stands beside the embedding is looked up with it: it is no head, and has no rows whose
    lengths are trained.
    """
    table = next(tensor for tensor in model.tensors() if tensor.role == EMBEDDING)
    if not adapter.rank_of(table):
        return
    hint = f"{TARGETS}=[auto]"
    if model.tie_embeddings:
        message = "with model.tie_embeddings=true the table is the output head too."
        yield TARGETS, message, f"model.tie_embeddings=false, or {hint}"
    if adapter.dora:
        yield "adapter.dora", f"adapter.dora=false, or {hint}"


@rule("adapter.init", "adapter.init", "adapter", "model")
def init(model: Decoder, adapter: LoRA) -> Findings:
    """adapter.init=pissa takes the largest singular values out of matrices that stay as they are,
    in their own numbers.
    """
    key, hint = "adapter.init", "adapter.init=random"
    if adapter.init != PISSA:
        return
    if adapter.packed_format:
        message = "a base in few bits is rounded as it is read, before anything is taken out of it."
        yield key, message, f"adapter=lora, or {hint}"
    if adapter.init_from:
        message = f"the adapters begin as those in {adapter.init_from}."
        yield key, message, hint
    for tensor in model.tensors():
        if not (rank := adapter.rank_of(tensor)):
            continue
        if tensor.role == EMBEDDING:
            yield key, "an embedding is looked up, and not multiplied with.", f"{TARGETS}=[auto]"
        elif adapter.trains(tensor):
            yield SAVED, f"{tensor.name} is trained itself.", f"{SAVED}=[], or {hint}"
            return
        elif rank > min(tensor.shape[-2:]):
            size = min(tensor.shape[-2:])
            yield key, f"{tensor.name} has {size} singular values, and rank {rank}.", hint
            return


@rule("adapter.init_dropout", "adapter.dropout", "adapter.init", warning=True)
def init_dropout(adapter: LoRA) -> Findings:
    """With adapter.init=pissa dropout leaves out the largest parts of the weights themselves."""
    if adapter.init == PISSA and adapter.dropout:
        yield "adapter.dropout", "adapter.dropout=0"


@rule("adapter.dropout", "adapter.dropout", TARGETS, "model")
def adapter_dropout(model: Decoder, adapter: LoRA) -> Findings:
    """adapter.dropout is of linear layers: rows that go to experts have no place in a text, and the
    head is multiplied with as one matrix.
    """
    if not adapter.dropout:
        return
    roles = {tensor.role for tensor in model.tensors() if adapter.rank_of(tensor)}
    if roles & {EXPERT, HEAD}:
        yield "adapter.dropout", f"adapter.dropout=0, or {TARGETS}=[auto]"


@rule("adapter.qk_clip", "train.use_qk_clip", "adapter")
def qk_clip_of_adapter(adapter: Adapter, train: Train) -> Findings:
    """train.use_qk_clip scales the weights of queries and keys, which an adapter leaves as they
    are.
    """
    if adapter.active and train.use_qk_clip:
        yield "train.use_qk_clip", f"train.use_qk_clip=false, or {NONE}"


@rule("adapter.quantization", "quantization", "adapter")
def quantization(adapter: Adapter, quantization: Quantization) -> Findings:
    """Beside an adapter weights stay as they are: quantization makes none 0, and FSDP gathers all
    of them in the same numbers.
    """
    if not adapter.active:
        return
    if quantization.zeroes:
        yield "quantization", f"{NONE}, or no quantization"
    if quantization.gathers_in_fp8:
        key = "quantization.fp8_all_gather"
        yield key, f"{key}=false, or {NONE}"


def _known(tensors: list[TensorSpec]) -> str:
    """List the entries a target may name: roles, parts and names of these tensors."""
    roles = dict.fromkeys(tensor.role for tensor in tensors)
    parts = dict.fromkeys(tensor.part.replace(" ", "_").replace("-", "_") for tensor in tensors)
    names = dict.fromkeys(adapter_prefix(tensor).rpartition(".")[2] for tensor in tensors)
    words = [*roles, *(part for part in parts if part in PARTS), *names]
    return ", ".join(dict.fromkeys(words))


def _meant(words: list[str], tensors: list[TensorSpec]) -> list[str]:
    """Translate the entries for a matrix of the model into forge's names; auto where none fits."""
    ours = [word for word in in_ours(words) if any(is_target(word, tensor) for tensor in tensors)]
    return ours or [AUTO]


@rule(
    "checkpoint.random_weights",
    INIT_FROM,
    "checkpoint.resume_from",
    "adapter",
    "objective",
    "run.dir",
    warning=True,
)
def random_weights(
    config: Config, adapter: Adapter, objective: Objective, checkpoint: Checkpoint
) -> Findings:
    """Adapters, and what learns from preferences, begin with weights that have been trained."""
    if checkpoint.init_from or checkpoint.resume_from or has_saved_since(config, "init_from"):
        return
    start = f"{INIT_FROM}=my/model, a run or a folder of Hugging Face"
    if adapter.active:
        message = f"the weights beside adapter={adapter.schema_name} are random, and stay so."
        yield INIT_FROM, message, f"{start}; or adapter=none"
    elif "" not in objective.compares:
        name = objective.schema_name or objective._target_
        verb = "learns from completions" if PROMPTS in objective.compares else "compares responses"
        message = f"objective={name} {verb} of a model that has learnt nothing."
        yield INIT_FROM, message, start
