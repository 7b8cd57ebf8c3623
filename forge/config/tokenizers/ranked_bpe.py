"""A BPE laid out as tiktoken's, with special tokens at its end; `tokenizer=nanochat` is one."""

from __future__ import annotations

from forge.config.field import opt, section
from forge.config.problems import literal, typed_override
from forge.config.rule import Findings, rule
from forge.config.tokenizers import tiktoken_ranks
from forge.config.tokenizers.chat_template import NAMED
from forge.config.tokenizers.tokenizer import BPE, END_OF_TEXT


@section
class RankedBPE(BPE):
    """A byte-level BPE trained on the training split: the 256 bytes, merges by rank, and special
    tokens at the end.
    """

    schema_name = "ranked_bpe"
    _target_: str = "forge.data.tokenizers.ranked_bpe.train_ranks"
    pattern: str = opt(
        "cl100k",
        f"how text is cut into words: as of {', '.join(tiktoken_ranks.ENCODINGS)}, or by a regular "
        "expression of your own",
        verbatim=True,
    )
    special_tokens: list[str] = opt(
        [END_OF_TEXT],
        "special tokens, the last ids of vocab_size; with those that begin and end documents",
        verbatim=True,
    )
    document_characters: int = opt(
        0, "learn from at most so many first characters of each document; 0 = all", ge=0
    )
    chat_template: str | None = opt(
        None,
        f"Jinja that is kept with the tokenizer for chats, or {', '.join(NAMED)}; null = none",
        verbatim=True,
    )

    @property
    def end(self) -> str | None:
        return END_OF_TEXT if END_OF_TEXT in self.special_tokens else None

    @property
    def special_ids(self) -> dict[str, int]:
        """The special tokens with their ids."""
        first = self.vocab_size - len(self.special_tokens)
        return {token: first + number for number, token in enumerate(self.special_tokens)}

    @property
    def specials(self) -> tuple[str, ...]:
        return (*self.special_tokens, *self.add_special_tokens)

    @property
    def template(self) -> str | None:
        return NAMED.get(self.chat_template or "", self.chat_template)


@rule(
    "tokenizer.special_tokens",
    *("tokenizer.special_tokens", "tokenizer.vocab_size", "tokenizer.add_bos", "tokenizer.add_eos"),
)
def special_tokens(tokenizer: RankedBPE) -> Findings:
    """tokenizer.special_tokens have those that begin and end documents, each once, and room in
    tokenizer.vocab_size after the 256 bytes.
    """
    key, names = "tokenizer.special_tokens", tokenizer.special_tokens
    needed = {tokenizer.begin: tokenizer.add_bos, END_OF_TEXT: tokenizer.add_eos}
    missing = next((token for token, used in needed.items() if used and token not in names), None)
    if missing is not None:
        option = "add_bos" if missing == tokenizer.begin and tokenizer.add_bos else "add_eos"
        hint = f"add {missing} to them, or tokenizer.{option}=false"
        yield key, f"{missing} is none of them, and tokenizer.{option}=true needs it.", hint
    elif "" in names or len(set(names)) < len(names):
        once = list(filter(None, dict.fromkeys(names)))
        hint = typed_override(key, literal(once))
        yield key, "a token is empty or named twice.", hint
    elif tokenizer.vocab_size < (least := 256 + len(names)):
        message = f"256 bytes and {len(names)} special tokens are {least}."
        yield "tokenizer.vocab_size", message, f"tokenizer.vocab_size={least}"
