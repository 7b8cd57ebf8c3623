"""Rules on the shape of the model, its vocabulary and its sequences."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.root import Config
from forge.config.rule import Finding, rule
from forge.config.stored import read_json
from forge.config.tokenizer import BPE, TokenizerFile
from forge.config.world import World


@rule("train.seq_len", reads=("train.seq_len", "model.max_seq_len"))
def seq_len(config: Config, world: World) -> Iterator[Finding]:
    """train.seq_len must not exceed model.max_seq_len, which sizes the position tables."""
    seq, longest = config.train.seq_len, config.model.max_seq_len
    if seq > longest:
        fix = f"train.seq_len={longest} or model.max_seq_len={seq}"
        yield f"train.seq_len={seq}", f"train.seq_len ({seq}) exceeds model.max_seq_len ({longest}).", fix


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


@rule("model.kv_heads", reads=("model.n_heads", "model.n_kv_heads"))
def kv_heads(config: Config, world: World) -> Iterator[Finding]:
    """model.n_heads must be divisible by model.n_kv_heads: each key/value head serves as many query heads."""
    model = config.model
    if isinstance(model, Decoder) and model.n_heads % model.kv_heads:
        legal = _nearest_divisor(model.n_heads, model.kv_heads)
        what = f"model.n_heads ({model.n_heads}) is not divisible by model.n_kv_heads ({model.kv_heads})."
        yield f"model.n_kv_heads={model.kv_heads}", what, f"model.n_kv_heads={legal}"


@rule("model.rope_head_dim", reads=("model.dim", "model.n_heads", "model.position"))
def rope_head_dim(config: Config, world: World) -> Iterator[Finding]:
    """Rotary positions rotate pairs: the head dimension must be even."""
    model = config.model
    if isinstance(model, Decoder) and model.position == "rope" and model.dim % model.n_heads == 0 and model.head_dim % 2:
        what = f"the head dimension is model.dim / model.n_heads = {model.head_dim}, and model.position=rope needs an even one."
        yield f"model.dim={model.dim}", what, "another model.dim or model.n_heads, or model.position=learned"


@rule("model.vocab_size", reads=("model.vocab_size", "tokenizer.vocab_size"))
def vocab_size(config: Config, world: World) -> Iterator[Finding]:
    """model.vocab_size must cover every id of the tokenizer."""
    ids, rows = tokenizer_size(config), config.model.vocab_size
    if ids is not None and rows < ids:
        yield f"model.vocab_size={rows}", f"the tokenizer has {ids} ids, the model only {rows} rows for them.", f"model.vocab_size={ids}"


@rule("model.vocab_unused", reads=("model.vocab_size", "tokenizer.vocab_size"), warning=True)
def vocab_unused(config: Config, world: World) -> Iterator[Finding]:
    """More than half of the embedding rows should belong to some token."""
    ids, rows = tokenizer_size(config), config.model.vocab_size
    if ids is not None and rows > 2 * ids:
        what = f"the tokenizer has {ids} ids, so {rows - ids} of the {rows} embedding rows are never trained."
        fix = f"model.vocab_size={ids}" + (f", or tokenizer.vocab_size={rows}" if isinstance(config.tokenizer, BPE) else "")
        yield f"model.vocab_size={rows}", what, fix


@rule("tokenizer.path", reads=("tokenizer.path",))
def tokenizer_path(config: Config, world: World) -> Iterator[Finding]:
    """tokenizer=file needs the path of an existing tokenizer.json."""
    section = config.tokenizer
    if isinstance(section, TokenizerFile):
        if not section.path:
            yield "tokenizer.path", "tokenizer=file needs the path of a tokenizer.json.", "tokenizer.path=my/tokenizer.json"
        elif not os.path.isfile(section.path):
            yield f"tokenizer.path={section.path}", f"there is no file {section.path}.", "check the path; it is relative to where you are"
        elif tokenizer_size(config) is None:
            yield f"tokenizer.path={section.path}", f"{section.path} is not a tokenizer.json of the tokenizers library.", "give such a file"


@rule("objective.chunk_size_unused", reads=("objective.ce_chunk_size",), warning=True)
def chunk_size_unused(config: Config, world: World) -> Iterator[Finding]:
    """objective.ce_chunk_size is read by chunked_cross_entropy only."""
    objective = config.objective
    if isinstance(objective, Pretrain) and objective.ce_chunk_size and objective.loss_fn != "chunked_cross_entropy":
        what = f"objective.ce_chunk_size has no effect with objective.loss_fn={objective.loss_fn}."
        yield f"objective.ce_chunk_size={objective.ce_chunk_size}", what, "objective.loss_fn=chunked_cross_entropy"


def tokenizer_size(config: Config) -> int | None:
    """Number of token ids, as far as it is known without building the tokenizer."""
    section = config.tokenizer
    if isinstance(section, BPE):
        return section.vocab_size
    if isinstance(section, TokenizerFile) and os.path.isfile(section.path):
        try:
            content = read_json(Path(section.path))
            vocab = content["model"]["vocab"]
            ids = list(vocab.values()) if isinstance(vocab, dict) else list(range(len(vocab)))
            return max([*ids, *(token["id"] for token in content.get("added_tokens", []))]) + 1
        except (OSError, ValueError, KeyError, TypeError):
            return None
    return None


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = [d for d in range(1, number + 1) if number % d == 0] if number <= 1 << 20 else [1]
    return min(divisors, key=lambda d: abs(d - wanted))
