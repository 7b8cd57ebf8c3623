"""The `tokenizer` group: text to token ids, and the first and last tokens of documents; tokenizers
of files are in forge.config.tokenizers.tokenizer_files.
"""

from __future__ import annotations

from omegaconf import MISSING

from forge.config.field import Section, opt, section
from forge.config.rule import Findings, rule

END_OF_TEXT, BEGIN_OF_TEXT = "<|endoftext|>", "<|bos|>"
ADDED = ("add_tokens", "add_special_tokens")


@section
class Tokenizer(Section):
    """Base of every tokenizer section."""

    _target_: str = MISSING
    add_bos: bool = opt(False, "begin every document, and every prompt, with bos_token")
    add_eos: bool = opt(
        True, "end every document with eos_token; false = only bos_token marks borders"
    )
    bos_token: str | None = opt(
        None,
        f"token that begins a document; null = that of the file, else a new {BEGIN_OF_TEXT}",
        verbatim=True,
    )

    add_tokens: list[str] = opt(
        [],
        "tokens to add after the vocabulary; text that spells one becomes one id",
        verbatim=True,
    )
    add_special_tokens: list[str] = opt(
        [],
        "special tokens to add after add_tokens: written by chat templates, never read from text",
        verbatim=True,
    )

    @property
    def added(self) -> tuple[str, ...]:
        """The added tokens, in the order of their ids."""
        return (*self.add_tokens, *self.add_special_tokens)

    @property
    def ids_before(self) -> int | None:
        """The number of ids without added tokens; None if unknown before the tokenizer is built."""
        return None

    @property
    def n_ids(self) -> int | None:
        """The number of token ids; None if unknown before the tokenizer is built."""
        base_ids = self.ids_before
        return None if base_ids is None else base_ids + len(self.added)

    @property
    def begin(self) -> str:
        """The first token of a document, for a tokenizer made here."""
        return BEGIN_OF_TEXT if self.bos_token is None else self.bos_token

    @property
    def end(self) -> str | None:
        """The last token of a document, for a tokenizer made here; None without one."""
        return END_OF_TEXT

    @property
    def specials(self) -> tuple[str, ...]:
        """The special tokens that options name."""
        return tuple(self.add_special_tokens)

    @property
    def template(self) -> str | None:
        """The Jinja for chats that options give."""
        return None


@section
class BPE(Tokenizer):
    """A byte-level BPE trained on the training split of the corpus, cached by the content."""

    schema_name = "bpe"
    _target_: str = "forge.data.tokenizers.tokenizer.train_bpe"
    vocab_size: int = opt(
        4096, "vocabulary size, including the 256 bytes and the end of text", ge=257, le=1 << 24
    )
    train_bytes: int = opt(64_000_000, "train on at most this many bytes", gt=0)

    @property
    def ids_before(self) -> int | None:
        return self.vocab_size


@section
class Bytes(Tokenizer):
    """An id for each of the 256 bytes, and one for the end of text."""

    schema_name = "bytes"
    _target_: str = "forge.data.tokenizers.tokenizer.byte_ids"

    @property
    def ids_before(self) -> int | None:
        return 258 if self.add_bos and self.begin != END_OF_TEXT else 257


def already_there(token: str, number: int) -> str:
    """The fault of a token to add: the token already has an id."""
    return f"{token} is there already, with the id {number}, so that it need not be added."


@rule("tokenizer.add_eos", "tokenizer.add_bos", "tokenizer.add_eos")
def document_borders(tokenizer: Tokenizer) -> Findings:
    """A document has a token that ends it, or at least one that begins it."""
    if not (tokenizer.add_bos or tokenizer.add_eos):
        message = "with tokenizer.add_bos=false nothing says where a document ends."
        yield "tokenizer.add_eos", message, "tokenizer.add_eos=true, or tokenizer.add_bos=true"


@rule("tokenizer.vocab_size", "tokenizer.add_bos", "tokenizer.vocab_size")
def room_for_tokens(tokenizer: BPE) -> Findings:
    """tokenizer.vocab_size has room for 256 bytes, the end of text and, with tokenizer.add_bos, its
    beginning.
    """
    if tokenizer.add_bos and tokenizer.begin != END_OF_TEXT and tokenizer.vocab_size < 258:
        yield "tokenizer.vocab_size", "tokenizer.vocab_size=258"
