"""The `tokenizer` group: text to token ids, and what is known of a tokenizer before it is built."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING

from forge.config.field import Section, opt
from forge.config.problems import quoted
from forge.config.rule import Findings, rule

FILE_NAME = "tokenizer.json"
LARGEST_FILE = 1 << 28  # bytes; those of 256,000 ids have 33 MB
USUAL_EOS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "[EOS]",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",
)


@dataclass(kw_only=True)
class Tokenizer(Section):
    """Base of every tokenizer section."""

    _target_: str = MISSING

    @property
    def n_ids(self) -> int | None:
        """How many token ids it has; None where that is not known before it is built."""
        return None


@dataclass(kw_only=True)
class BPE(Tokenizer):
    """A byte-level BPE trained on the training split of the corpus, cached by the content."""

    schema_name = "bpe"
    _target_: str = "forge.data.tokenizer.train_bpe"
    vocab_size: int = opt(
        4096, "entries, with the 256 bytes and the end of text", ge=257, le=1 << 24
    )
    train_bytes: int = opt(64_000_000, "train on at most this many bytes", gt=0)

    @property
    def n_ids(self) -> int | None:
        return self.vocab_size


@dataclass(kw_only=True)
class Bytes(Tokenizer):
    """An id for each of the 256 bytes, and one for the end of text."""

    schema_name = "bytes"
    _target_: str = "forge.data.tokenizer.byte_ids"

    @property
    def n_ids(self) -> int | None:
        return 257


@dataclass(kw_only=True)
class TokenizerFile(Tokenizer):
    """Any tokenizer.json of the Hugging Face `tokenizers` library."""

    schema_name = "file"
    _target_: str = "forge.data.tokenizer.load_file"
    path: str = opt("", "a tokenizer.json, or its directory", path=True)
    eos_token: str | None = opt(
        None, "token that ends a document; null = a usual one", verbatim=True
    )

    @property
    def n_ids(self) -> int | None:
        known = self.facts()
        return known.n_ids if isinstance(known, Facts) else None

    def facts(self) -> Facts | str:
        """What the file says of itself, or why it cannot be used."""
        try:
            stat = os.stat(self.path)
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return _facts(self.path, stat.st_mtime_ns, stat.st_size)

    def end_token(self, known: Collection[str]) -> str | None:
        """The token that ends a document, if it is one of the known."""
        tokens = USUAL_EOS if self.eos_token is None else (self.eos_token,)
        return next((token for token in tokens if token in known), None)

    def no_end_token(self, added: Sequence[str]) -> tuple[str, str]:
        """(what is wrong, what to do) where `end_token` finds none. added: the file's own."""
        wanted = self.eos_token or f"like {USUAL_EOS[0]} that ends a document"
        fix = "tokenizer.eos_token=... with one of its tokens"
        if added:
            others = ", ".join(added[:12])
            fix = f'"tokenizer.eos_token={quoted(added[0])}", or another of {others}'
        return f"there is no token {wanted} in {self.path}.", fix


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a tokenizer.json says: ids up to the last one, all tokens, and the added ones."""

    n_ids: int
    tokens: frozenset[str]
    added: tuple[str, ...]


@functools.lru_cache(maxsize=8)  # the points of a sweep ask for the same file
def _facts(path: str, changed: int, size: int) -> Facts | str:
    if size > LARGEST_FILE:
        return f"it has {size:,} bytes, and no tokenizer has more than {LARGEST_FILE:,}"
    try:
        content = json.loads(Path(path).read_bytes())
        vocab = content["model"]["vocab"]  # a dict, or of Unigram a list of pairs
        is_list = isinstance(vocab, list)
        ids = {pair[0]: index for index, pair in enumerate(vocab)} if is_list else dict(vocab)
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        tokens = ids | added
        return Facts(n_ids=max(tokens.values()) + 1, tokens=frozenset(tokens), added=tuple(added))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "it is not a tokenizer.json of the tokenizers library"


@rule("tokenizer.path")
def tokenizer_path(tokenizer: TokenizerFile) -> Findings:
    """tokenizer=file needs the path of an existing tokenizer.json."""
    path, facts = tokenizer.path, tokenizer.facts()
    what, fix = "", "check the path; it is relative to where you are"
    if not path:
        yield "tokenizer.path", "tokenizer.path=my/tokenizer.json"
    elif os.path.isdir(path):
        what = f"the directory {path} has no {FILE_NAME}."
    elif not os.path.exists(path):
        what = f"there is no file {path}."
    elif isinstance(facts, str):
        what = f"{path} cannot be used: {facts}."
        fix = "one that tokenizer.save() wrote, or that of a transformers model"
    if what:
        yield "tokenizer.path", what, fix


@rule("tokenizer.eos_token", "tokenizer.path", "tokenizer.eos_token")
def eos_token(tokenizer: TokenizerFile) -> Findings:
    """tokenizer.eos_token is a token of the file; null finds one of the usual names."""
    facts = tokenizer.facts()
    if isinstance(facts, Facts) and tokenizer.end_token(facts.tokens) is None:
        yield "tokenizer.eos_token", *tokenizer.no_end_token(facts.added)
