"""Rules on what is trained beside weights that stay as they are."""

from __future__ import annotations

import re

from forge.config.adapters.adapter import (
    AUTO,
    PARTS,
    PISSA,
    ROLES,
    Adapter,
    LoRA,
    fits,
    fits_in_any_words,
    in_ours,
    place_of,
)
from forge.config.adapters.qlora import QLoRA
from forge.config.checkpoint import Checkpoint
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.tensors import BIAS, EMBEDDING, EXPERT, HEAD, TensorSpec
from forge.config.objectives.base import Objective
from forge.config.quantization import FP8, Quantization, Sparse
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.resolve.rules.run_directory import has_saved_since

TARGETS, RANKS, SAVED = "adapter.target_modules", "adapter.ranks", "adapter.modules_to_save"
INIT_FROM = "checkpoint.init_from"
NONE, BIASED = "adapter=none", "model.bias=true"


@rule("adapter.needs_decoder", "adapter")
def needs_decoder(model: Model, adapter: Adapter) -> Findings:
    """An adapter stands beside matrices of forge's Decoder, which it knows by their roles."""
    if adapter.active and not isinstance(model, Decoder):
        yield "adapter", NONE


@rule(TARGETS, TARGETS, "model")
def target_modules(model: Decoder, adapter: LoRA) -> Findings:
    """Each entry of adapter.target_modules is of a matrix of the model."""
    tensors = [one for one in model.tensors() if one.role in ROLES]
    if not adapter.target_modules:
        yield TARGETS, "it names no matrix.", f"{TARGETS}=[auto]"
    if HEAD in adapter.target_modules and model.tie_embeddings:
        what = "with model.tie_embeddings=true the head is the embedding."
        yield TARGETS, what, f"model.tie_embeddings=false, or {TARGETS}=[auto]"
        return
    unknown = [w for w in adapter.target_modules if not any(fits(w, one) for one in tensors)]
    if unknown:
        verb = "is" if len(unknown) == 1 else "are"
        names = ", ".join(map(repr, unknown))
        what = f"{names} {verb} of no matrix of this model, but {_known(tensors)}."
        yield TARGETS, what, f"{TARGETS}=[{','.join(_meant(adapter.target_modules, tensors))}]"


@rule(RANKS, RANKS, TARGETS, "model")
def ranks(model: Decoder, adapter: LoRA) -> Findings:
    """Each entry of adapter.ranks is of a matrix that adapter.target_modules names, and is no less
    than 0.
    """
    chosen = [one for one in model.tensors() if any(fits(w, one) for w in adapter.target_modules)]
    for word, rank in adapter.ranks.items():
        if rank < 0:
            yield RANKS, f"{word} has a rank of {rank}.", "leave it out"
        elif not any(fits_in_any_words(word, one) for one in chosen):
            what = f"'{word}' is of no matrix that has an adapter, but {_known(chosen)}."
            yield RANKS, what, "leave it out"
    if adapter.ranks and chosen and not any(map(adapter.rank_of, chosen)):
        yield RANKS, "it leaves no matrix an adapter.", "leave it out"


@rule(SAVED, SAVED, "model")
def modules_to_save(model: Decoder, adapter: LoRA) -> Findings:
    """Each regular expression of adapter.modules_to_save is found in the name of a parameter."""
    names = [one.name for one in model.tensors()]
    for pattern in adapter.modules_to_save:
        if not any(re.search(pattern, name) for name in names):
            what = f"'{pattern}' is in the name of no parameter, such as {names[-1]}."
            yield SAVED, what, f"{SAVED}=[norm]"


@rule("adapter.bias", "adapter.bias", TARGETS, "model")
def bias(model: Decoder, adapter: LoRA) -> Findings:
    """Where adapter.bias is not none, there are biases that it means."""
    chosen = adapter.bias != "none"
    if chosen and not any(one.role == BIAS and adapter.trains(one) for one in model.tensors()):
        yield "adapter.bias", f"adapter.bias=none, or {BIASED}"


@rule("adapter.embedding", TARGETS, "adapter.dora", "model")
def embedding(model: Decoder, adapter: LoRA) -> Findings:
    """What stands beside the embedding is looked up with it: it is no head, and has no rows whose
    lengths are trained.
    """
    table = next(one for one in model.tensors() if one.role == EMBEDDING)
    if not adapter.rank_of(table):
        return
    fix = f"{TARGETS}=[auto]"
    if model.tie_embeddings:
        what = "with model.tie_embeddings=true the table is the output head too."
        yield TARGETS, what, f"model.tie_embeddings=false, or {fix}"
    if adapter.dora:
        yield "adapter.dora", f"adapter.dora=false, or {fix}"


@rule("adapter.init", "adapter.init", "adapter", "model")
def init(model: Decoder, adapter: LoRA) -> Findings:
    """adapter.init=pissa takes the largest singular values out of matrices that stay as they are,
    in their own numbers.
    """
    key, fix = "adapter.init", "adapter.init=random"
    if adapter.init != PISSA:
        return
    if isinstance(adapter, QLoRA):
        what = "a base in few bits is rounded as it is read, before anything is taken out of it."
        yield key, what, f"adapter=lora, or {fix}"
    if adapter.init_from:
        what = f"the adapters begin as those in {adapter.init_from}."
        yield key, what, fix
    for one in model.tensors():
        if not (rank := adapter.rank_of(one)):
            continue
        if one.role == EMBEDDING:
            yield key, "an embedding is looked up, and not multiplied with.", f"{TARGETS}=[auto]"
        elif adapter.trains(one):
            yield SAVED, f"{one.name} is trained itself.", f"{SAVED}=[], or {fix}"
            return
        elif rank > min(one.shape[-2:]):
            size = min(one.shape[-2:])
            yield key, f"{one.name} has {size} singular values, and rank {rank}.", fix
            return


@rule("adapter.init_dropout", "adapter.dropout", "adapter.init", warning=True)
def init_dropout(adapter: LoRA) -> Findings:
    """With adapter.init=pissa dropout leaves out the largest parts of the weights themselves."""
    if adapter.init == PISSA and adapter.dropout:
        yield "adapter.dropout", "adapter.dropout=0"


@rule("adapter.dropout", "adapter.dropout", TARGETS, "model")
def dropout(model: Decoder, adapter: LoRA) -> Findings:
    """adapter.dropout is of linear layers: rows that go to experts have no place in a text, and the
    head is multiplied with as one matrix.
    """
    if not adapter.dropout:
        return
    roles = {one.role for one in model.tensors() if adapter.rank_of(one)}
    if roles & {EXPERT, HEAD}:
        yield "adapter.dropout", f"adapter.dropout=0, or {TARGETS}=[auto]"


@rule("adapter.qk_clip", "train.use_qk_clip", "adapter")
def qk_clip(adapter: Adapter, train: Train) -> Findings:
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
    if isinstance(quantization, Sparse):
        yield "quantization", f"{NONE}, or no quantization"
    if isinstance(quantization, FP8) and quantization.fp8_all_gather:
        key = "quantization.fp8_all_gather"
        yield key, f"{key}=false, or {NONE}"


def _known(tensors: list[TensorSpec]) -> str:
    """The entries that there are."""
    roles = dict.fromkeys(one.role for one in tensors)
    parts = dict.fromkeys(one.part.replace(" ", "_").replace("-", "_") for one in tensors)
    names = dict.fromkeys(place_of(one).rpartition(".")[2] for one in tensors)
    words = [*roles, *(part for part in parts if part in PARTS), *names]
    return ", ".join(dict.fromkeys(words))


def _meant(words: list[str], tensors: list[TensorSpec]) -> list[str]:
    """The entries in our names, of which each is of a matrix; auto where none is."""
    ours = [word for word in in_ours(words) if any(fits(word, one) for one in tensors)]
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
        what = f"the weights beside adapter={adapter.schema_name} are random, and stay so."
        yield INIT_FROM, what, f"{start}; or adapter=none"
    elif "" not in objective.compares:
        name = objective.schema_name or objective._target_
        what = f"objective={name} compares responses of a model that has learnt nothing."
        yield INIT_FROM, what, start
