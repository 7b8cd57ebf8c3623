"""The `tokenizer` group: text to token ids."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Tokenizer(Section):
    """Base of every tokenizer section."""

    _target_: str = MISSING


@dataclass(kw_only=True)
class BPE(Tokenizer):
    """A byte-level BPE trained on the training split of the corpus, cached by the content."""

    _target_: str = "forge.data.tokenizer.train_bpe"
    vocab_size: int = opt(4096, "entries, the 256 bytes and the end-of-text token included", ge=257, le=1 << 24)
    train_bytes: int = opt(64_000_000, "train on at most this many bytes of the training split", gt=0)


@dataclass(kw_only=True)
class TokenizerFile(Tokenizer):
    """Any tokenizer.json of the Hugging Face `tokenizers` library."""

    _target_: str = "forge.data.tokenizer.load_file"
    path: str = opt("", "path of the tokenizer.json")
    eos_token: str | None = opt(None, "token that ends a document; null = the usual names are tried", verbatim=True)
