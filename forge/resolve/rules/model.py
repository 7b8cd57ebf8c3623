"""Rules on the shape of the model, its vocabulary and its sequences."""

from __future__ import annotations

import os
from collections.abc import Iterator

from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.problems import shown
from forge.config.root import Config
from forge.config.tokenizer import BPE, FILE_NAME, Facts, TokenizerFile
from forge.plan.world import World
from forge.resolve.rule import Finding, rule


@rule("train.seq_len", reads=("train.seq_len", "model.max_seq_len"))
def seq_len(config: Config, world: World) -> Iterator[Finding]:
    """train.seq_len must not exceed model.max_seq_len, which sizes the position tables."""
    seq, longest = config.train.seq_len, config.model.max_seq_len
    if seq > longest:
        fix = f"train.seq_len={longest} or model.max_seq_len={seq}"
        yield (
            f"train.seq_len={seq}",
            f"train.seq_len ({seq}) exceeds model.max_seq_len ({longest}).",
            fix,
        )


@rule("model.heads", reads=("model.dim", "model.n_heads"))
def heads(config: Config, world: World) -> Iterator[Finding]:
    """model.dim must be divisible by model.n_heads."""
    model = config.model
    if isinstance(model, Decoder) and model.dim % model.n_heads:
        legal = _nearest_divisor(model.dim, model.n_heads)
        yield (
            f"model.n_heads={model.n_heads}",
            f"model.dim ({model.dim}) is not divisible by model.n_heads ({model.n_heads}).",
            f"model.n_heads={legal}",
        )


@rule(
    "model.sdpa_backend",
    reads=(
        "model.sdpa_backend",
        "model.n_kv_heads",
        "precision.mixed_precision",
        "run.deterministic",
    ),
)
def sdpa_backend(config: Config, world: World) -> Iterator[Finding]:
    """The kernel of model.sdpa_backend takes what this run gives it; where it does not take one
    call of many, another is used for that.
    """
    model = config.model
    if not isinstance(model, Decoder) or model.sdpa_backend in ("auto", "math"):
        return
    name, mixed = model.sdpa_backend, config.precision.mixed_precision
    key = f"model.sdpa_backend={name}"
    if world.device == "cpu":
        if name != "flash":
            yield key, f"torch has no {name} kernel on a CPU.", "model.sdpa_backend=auto"
    elif name != "efficient" and mixed == "fp32":
        yield (
            key,
            f"the {name} kernel takes 16 bits, and precision.mixed_precision is fp32.",
            "model.sdpa_backend=auto or precision=bf16",
        )
    elif name == "efficient" and model.kv_heads != model.n_heads:
        what = f"the efficient kernel takes as many key heads as heads, not {model.kv_heads} for {model.n_heads}."
        yield key, what, "model.sdpa_backend=auto"
    elif name == "cudnn" and config.run.deterministic:
        yield (
            key,
            "the cudnn kernel is not deterministic, and run.deterministic is true.",
            "model.sdpa_backend=auto",
        )


@rule("model.kv_heads", reads=("model.n_heads", "model.n_kv_heads"))
def kv_heads(config: Config, world: World) -> Iterator[Finding]:
    """model.n_heads must be divisible by model.n_kv_heads: each key/value head serves as many query
    heads.
    """
    model = config.model
    if isinstance(model, Decoder) and model.n_heads % model.kv_heads:
        legal = _nearest_divisor(model.n_heads, model.kv_heads)
        what = f"model.n_heads ({model.n_heads}) is not divisible by model.n_kv_heads ({model.kv_heads})."
        yield f"model.n_kv_heads={model.kv_heads}", what, f"model.n_kv_heads={legal}"


@rule("model.rope_head_dim", reads=("model.dim", "model.n_heads", "model.position"))
def rope_head_dim(config: Config, world: World) -> Iterator[Finding]:
    """Rotary positions rotate pairs: the head dimension must be even."""
    model = config.model
    if (
        isinstance(model, Decoder)
        and model.position == "rope"
        and model.dim % model.n_heads == 0
        and model.head_dim % 2
    ):
        what = f"the head dimension is model.dim / model.n_heads = {model.head_dim}, and model.position=rope needs an even one."
        yield (
            f"model.dim={model.dim}",
            what,
            "another model.dim or model.n_heads, or model.position=learned",
        )


@rule("model.vocab_size", reads=("model.vocab_size", "tokenizer.vocab_size"))
def vocab_size(config: Config, world: World) -> Iterator[Finding]:
    """model.vocab_size must cover every id of the tokenizer."""
    ids, rows = config.tokenizer.n_ids, config.model.vocab_size
    if ids is not None and rows < ids:
        yield (
            f"model.vocab_size={rows}",
            f"the tokenizer has {ids} ids, the model only {rows} rows for them.",
            f"model.vocab_size={ids}",
        )


@rule("model.vocab_unused", reads=("model.vocab_size", "tokenizer.vocab_size"), warning=True)
def vocab_unused(config: Config, world: World) -> Iterator[Finding]:
    """More than half of the embedding rows should belong to some token."""
    ids, rows = config.tokenizer.n_ids, config.model.vocab_size
    if ids is not None and rows > 2 * ids:
        what = f"the tokenizer has {ids} ids, so {rows - ids} of the {rows} embedding rows are never trained."
        fix = f"model.vocab_size={ids}" + (
            f", or tokenizer.vocab_size={rows}" if isinstance(config.tokenizer, BPE) else ""
        )
        yield f"model.vocab_size={rows}", what, fix


@rule("tokenizer.path", reads=("tokenizer.path",))
def tokenizer_path(config: Config, world: World) -> Iterator[Finding]:
    """tokenizer=file needs the path of an existing tokenizer.json."""
    section = config.tokenizer
    if isinstance(section, TokenizerFile):
        key, fault = f"tokenizer.path={section.path}", section.facts()
        if not section.path:
            yield (
                "tokenizer.path",
                "tokenizer=file needs the path of a tokenizer.json.",
                "tokenizer.path=my/tokenizer.json",
            )
        elif os.path.isdir(section.path):
            yield (
                key,
                f"the directory {section.path} has no {FILE_NAME}.",
                "the path of a directory that has one, or of the file",
            )
        elif not os.path.exists(section.path):
            yield (
                key,
                f"there is no file {section.path}.",
                "check the path; it is relative to where you are",
            )
        elif isinstance(fault, str):
            yield (
                key,
                f"{section.path} cannot be used: {fault}.",
                "one that tokenizer.save() wrote, or that of a transformers model",
            )


@rule("tokenizer.eos_token", reads=("tokenizer.path", "tokenizer.eos_token"))
def eos_token(config: Config, world: World) -> Iterator[Finding]:
    """tokenizer.eos_token is a token of the file; null finds one of the usual names."""
    section = config.tokenizer
    if (
        isinstance(section, TokenizerFile)
        and isinstance(known := section.facts(), Facts)
        and section.end_token(known.tokens) is None
    ):
        yield f"tokenizer.eos_token={shown(section.eos_token)}", *section.no_end_token(known.added)


@rule("objective.chunk_size_unused", reads=("objective.ce_chunk_size",), warning=True)
def chunk_size_unused(config: Config, world: World) -> Iterator[Finding]:
    """objective.ce_chunk_size is read by chunked_cross_entropy only."""
    objective = config.objective
    if (
        isinstance(objective, Pretrain)
        and objective.ce_chunk_size
        and objective.loss_fn != "chunked_cross_entropy"
    ):
        what = f"objective.ce_chunk_size has no effect with objective.loss_fn={objective.loss_fn}."
        yield (
            f"objective.ce_chunk_size={objective.ce_chunk_size}",
            what,
            "objective.loss_fn=chunked_cross_entropy",
        )


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0] if number <= 1 << 20 else [1]
    return min(divisors, key=lambda d: abs(d - wanted))
