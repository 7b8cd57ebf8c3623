"""Tokens added after a tokenizer's own, with the same ids as in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.tokenizers.tokenizer import ADDED, Tokenizer, already_there
from forge.config.tokenizers.tokenizer_stated import stated_beside

if TYPE_CHECKING:
    import tokenizers

SPECIAL = ("extra_special_tokens", "additional_special_tokens")


def add_tokens(raw: tokenizers.Tokenizer, section: Tokenizer) -> None:
    """Add the tokens of a section, the special ones last. ValueError: a token exists already, or
    gets an id out of order, now or after saving and reading.

    Added tokens match their exact spelling, whatever a normaliser makes of text.
    """
    if not section.added:
        return
    import tokenizers
    from tokenizers import AddedToken

    for key in ADDED:
        for token in getattr(section, key):
            if (number := raw.token_to_id(token)) is not None:
                fault = already_there(token, number)
                raise ValueError(f"tokenizer.{key}: {fault} Leave it out.")
    first = max(raw.get_vocab().values()) + 1
    raw.add_tokens([AddedToken(token, normalized=False) for token in section.add_tokens])
    special = [AddedToken(t, normalized=False, special=True) for t in section.add_special_tokens]
    raw.add_special_tokens(special)
    saved = tokenizers.Tokenizer.from_str(raw.to_str())
    for number, token in enumerate(section.added, start=first):
        for number_there in (raw.token_to_id(token), saved.token_to_id(token)):
            if number_there != number:
                fault = f"{token} gets the id {number_there}, and the next one is {number}"
                why = "there are gaps between the ids that are there"
                raise ValueError(f"tokenizer.add_tokens: {fault}, since {why}. Add no tokens.")


def stated_with(section: Tokenizer, file: Path) -> dict[str, Any]:
    """The statements of files beside a tokenizer, extended by the added special tokens."""
    stated = stated_beside(file)
    if not section.add_special_tokens:
        return stated
    name = next((n for n in SPECIAL if n in stated), SPECIAL[-1])
    special_tokens = stated.get(name) or []
    if isinstance(special_tokens, Mapping):  # special tokens by names of their own
        name, special_tokens = SPECIAL[-1], stated.get(SPECIAL[-1]) or []
    return {**stated, name: [*special_tokens, *section.add_special_tokens]}
