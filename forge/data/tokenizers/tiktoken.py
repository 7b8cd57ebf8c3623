"""Ranks of tiktoken as a tokenizer of the `tokenizers` library with the same ids."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers

from forge.config.tokenizers.tiktoken_ranks import pattern_of, read_ranks, special_ids
from forge.config.tokenizers.tokenizer_files import Tiktoken
from forge.data.text.split import TrainingText
from forge.data.tokenizers.byte_text import visible_bytes
from forge.data.tokenizers.merges import merges_of
from forge.data.tokenizers.tokenizer import Tokenizer, complete_tokenizer, usable


def tiktoken(section: Tiktoken, *, text: TrainingText) -> Tokenizer:
    """The tokenizer of a file of ranks; `text`, passed to every tokenizer, is not read."""
    facts = usable(section, "a .tiktoken file")
    ranks = read_ranks(Path(section.path).expanduser())
    special = special_ids(ranks, section.pattern, section.special_tokens)
    words = words_of(section.pattern)
    raw = of_ranks(ranks, words, special)
    for token, number in special.items():
        if number in raw.encode(token).ids:
            fault = f"text that spells {token} would be this token. Name it otherwise."
            raise ValueError(f"tokenizer.special_tokens: {fault}")
    raw.add_special_tokens(list(special))
    return complete_tokenizer(raw, section, facts)


def words_of(pattern: str) -> Regex:
    """The compiled pattern of words of tokenizer.pattern. ValueError: no regular expression."""
    try:
        return Regex(pattern_of(pattern))
    except Exception as error:  # the library raises a bare Exception
        fault = f"it is no regular expression ({error})"
        raise ValueError(f"tokenizer.pattern = {pattern}: {fault}.") from error


def of_ranks(
    ranks: Mapping[bytes, int], words: Regex, special: Mapping[str, int]
) -> tokenizers.Tokenizer:
    """Build a BPE of the same words: a known word is one token, else merged in the order of ranks.
    Special tokens have their ids in the model, since added tokens only get the next free ids.
    """
    letters = visible_bytes()
    vocab = {"".join(map(letters.__getitem__, token)): rank for token, rank in ranks.items()}
    model = models.BPE(vocab={**vocab, **special}, merges=merges_of(vocab), ignore_merges=True)
    return with_words(tokenizers.Tokenizer(model), words)


def with_words(raw: tokenizers.Tokenizer, words: Regex) -> tokenizers.Tokenizer:
    """The tokenizer, which now cuts text into these words before it encodes their bytes."""
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    return raw
