"""How many bytes of text each token stands for, for bits per byte."""

from __future__ import annotations

import json
import re

import numpy as np
import tokenizers

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SENTENCEPIECE_SPACE = "▁"


def token_bytes(raw: tokenizers.Tokenizer, vocab_size: int) -> np.ndarray:
    """UTF-8 bytes of each token: int64 [vocab_size]; 0 for special tokens and unused ids.

    Exact for byte-level tokenizers without a normaliser or prefix space (GPT-2, Llama 3, ours).
    Else an estimate: SentencePiece's ▁ counts as one space and <0x0A> as one byte, WordPiece's ##
    as nothing.
    """
    is_byte_level = _uses(raw, "ByteLevel")
    is_word_piece = _uses(raw, "WordPiece")
    added = raw.get_added_tokens_decoder()
    result = np.zeros(vocab_size, dtype=np.int64)
    for token, index in raw.get_vocab().items():
        if index in added:
            result[index] = 0 if added[index].special else len(token.encode())
        elif is_byte_level:
            # A byte-level token is spelled with one character a byte.
            result[index] = len(token)
        elif BYTE_TOKEN.fullmatch(token):
            result[index] = 1
        else:
            plain = token.replace(SENTENCEPIECE_SPACE, " ")
            result[index] = len((token.removeprefix("##") if is_word_piece else plain).encode())
    return result


def _uses(raw: tokenizers.Tokenizer, component: str) -> bool:
    """Whether the pre-tokeniser, the decoder or the model is, or contains, such a component."""
    description = json.loads(raw.to_str())
    return any(
        f'"type": "{component}"' in json.dumps(description[part])
        for part in ("pre_tokenizer", "decoder", "model")
    )
