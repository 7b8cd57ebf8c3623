"""Training of a BPE laid out as tiktoken's: the 256 bytes, merges by rank, then special tokens."""

from __future__ import annotations

import json
import logging

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from forge.config.tokenizers.ranked_bpe import RankedBPE
from forge.config.tokenizers.tokenizer_stated import TEMPLATE
from forge.data.text.split import RandomText, TrainingText
from forge.data.tokenizers.added_tokens import add_tokens
from forge.data.tokenizers.byte_text import visible_bytes
from forge.data.tokenizers.tiktoken import of_ranks, with_words, words_of
from forge.data.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def train_ranks(section: RankedBPE, *, text: TrainingText | RandomText) -> Tokenizer:
    """Train the merges, and put the special tokens after them; fewer merges if the text gives no
    more. For random tokens, build as many ids, all beyond the bytes unused.
    """
    words = words_of(section.pattern)
    letters = visible_bytes()
    byte_of = {letter: byte for byte, letter in enumerate(letters)}
    entries = list(letters)
    size = section.vocab_size - len(section.special_tokens)
    if isinstance(text, RandomText):
        entries += [f"<unused {number}>" for number in range(256, size)]
        ranks = {entry.encode(): rank for rank, entry in enumerate(entries) if rank >= 256}
        ranks = {bytes([byte]): byte for byte in range(256)} | ranks
    else:
        entries += _merged(section, with_words(tokenizers.Tokenizer(models.BPE()), words), text)
        spelled = (bytes(byte_of[letter] for letter in entry) for entry in dict.fromkeys(entries))
        ranks = {spelling: rank for rank, spelling in enumerate(spelled)}
    if len(ranks) < size:
        log.warning(
            "tokenizer.vocab_size=%d: the training text gives only %d entries, then nothing is "
            "left to merge; the tokenizer has these",
            section.vocab_size,
            len(ranks) + len(section.special_tokens),
        )
    special = {token: len(ranks) + number for number, token in enumerate(section.special_tokens)}
    raw = of_ranks(ranks, words, special)
    raw.add_special_tokens(list(special))
    add_tokens(raw, section)
    # Without a token that ends documents the next one's beginning marks their end.
    return Tokenizer(
        raw,
        eos_token=section.end or section.begin,
        bos_token=section.begin if section.begin in special else None,
        add_bos=section.add_bos,
        add_eos=section.add_eos,
        stated={TEMPLATE: section.template} if section.template else {},
    )


def _merged(section: RankedBPE, raw: tokenizers.Tokenizer, text: TrainingText) -> list[str]:
    """The entries that merges make, in their order."""
    trainer = trainers.BpeTrainer(
        vocab_size=section.vocab_size - len(section.special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(text.sample(section.train_bytes, section.document_characters), trainer)
    return ["".join(pair) for pair in json.loads(raw.to_str())["model"]["merges"]]
