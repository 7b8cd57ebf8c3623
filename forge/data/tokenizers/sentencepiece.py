"""A SentencePiece model as a tokenizer of the `tokenizers` library.

The steps of google/sentencepiece in src/normalizer.cc, src/unigram_model.cc and src/bpe_model.cc,
built from parts of the library: the same ids, compared in tests.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from forge.config.tokenizers.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
    read_model,
)
from forge.config.tokenizers.tokenizer_files import SentencePiece
from forge.data.text.split import TrainingText
from forge.data.tokenizers.merges import merges_of
from forge.data.tokenizers.tokenizer import Tokenizer, complete_tokenizer, usable

SPACE = "▁"


def sentencepiece(section: SentencePiece, *, text: TrainingText) -> Tokenizer:
    """The tokenizer of a .model; `text`, passed to every tokenizer, is not read."""
    facts = usable(section, "a SentencePiece .model")
    return complete_tokenizer(convert(read_model(Path(section.path).expanduser())), section, facts)


def convert(model: SentencePieceModel) -> tokenizers.Tokenizer:
    """Convert a model; ids equal SentencePiece's but for three cases: equally likely divisions,
    overlapping user symbols of a unigram model, and a text of exactly one user symbol of a BPE
    model (no space is put before).
    """
    is_bpe = model.model_type == "bpe"
    raw = tokenizers.Tokenizer(_bpe(model) if is_bpe else _unigram(model))
    user_symbols = [piece.text for piece in model.pieces if is_bpe and piece.kind == USER_DEFINED]
    raw.normalizer = _normalizer(model, user_symbols)
    unspellable = [piece.text for piece in model.pieces if piece.kind in (UNKNOWN, CONTROL, BYTE)]
    if not is_bpe and (parting := _parting(unspellable)):
        raw.pre_tokenizer = pre_tokenizers.Split(parting, "isolated")
    first = [decoders.Strip(" ", 1, 0)] if model.add_dummy_prefix else []
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *first]
    raw.decoder = decoders.Sequence(parts)
    special = [piece.text for piece in model.pieces if piece.kind == CONTROL]
    raw.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in special])
    raw.add_tokens([AddedToken(text, normalized=True) for text in user_symbols])
    return raw


def _unigram(model: SentencePieceModel) -> models.Model:
    """Unigram model; a user symbol of score 0 is likelier than any pieces spelling the symbol."""
    user_kind = USER_DEFINED
    vocab = [(piece.text, piece.score - 0.1 * (piece.kind == user_kind)) for piece in model.pieces]
    return models.Unigram(vocab, model.unk, model.byte_fallback)


def _bpe(model: SentencePieceModel) -> models.Model:
    numbered = list(enumerate(model.pieces))
    return models.BPE(
        vocab={piece.text: number for number, piece in numbered},
        merges=merges_of({p.text: (-p.score, n) for n, p in numbered if p.kind == NORMAL}),
        unk_token=model.named(model.unk),
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _normalizer(model: SentencePieceModel, own: Sequence[str]) -> normalizers.Normalizer:
    """Normaliser of text. own: user symbols, searched by the library in normalised text and
    normalised themselves.
    """
    parts: list[normalizers.Normalizer] = []
    if model.charsmap:
        parts.append(normalizers.Precompiled(model.charsmap))
    if model.remove_extra_whitespaces:
        parts.append(normalizers.Replace(Regex(r"\A +| +\z"), ""))
        parts.append(normalizers.Replace(Regex(" {2,}"), " "))
    if model.add_dummy_prefix:
        alone = f"(?!(?:{'|'.join(map(re.escape, own))})\\z)" if own else ""
        parts.append(normalizers.Replace(Regex(rf"\A{alone}(?=[\s\S])"), SPACE))
    if model.escape_whitespaces:
        parts.append(normalizers.Replace(" ", SPACE))
    return normalizers.Sequence(parts)


def _parting(texts: Sequence[str]) -> Regex | None:
    """Pattern dividing text within unspellable pieces: Unigram, unlike SentencePiece, has no pieces
    hidden from text.
    """
    ways = [
        f"(?<={re.escape(text[:-1])})(?={re.escape(text[-1])})" for text in texts if len(text) > 1
    ]
    return Regex("|".join(ways)) if ways else None
