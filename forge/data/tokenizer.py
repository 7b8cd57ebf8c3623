"""Text to token ids and back, by the `tokenizers` library; trained here or read from a file."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from forge.config.tokenizer import BPE, FILE_NAME, Bytes, TokenizerFile
from forge.data.split import TrainingText
from forge.rundir.files import read_json

END_OF_TEXT = "<|endoftext|>"
TOKENIZER_FILE = FILE_NAME
CONFIG_FILE = "tokenizer_config.json"
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SENTENCEPIECE_SPACE = "▁"
log = logging.getLogger(__name__)


class Tokenizer:
    """Ids of plain text: nothing is added, cut or padded; no text spells a special token."""

    def __init__(self, raw: tokenizers.Tokenizer, *, eos_token: str) -> None:
        eos_id = raw.token_to_id(eos_token)
        assert eos_id is not None, eos_token
        raw.no_truncation()
        raw.no_padding()
        raw.encode_special_tokens = True
        self._raw = raw
        self.eos_token = eos_token
        self.eos_id = eos_id
        self.vocab_size = max(raw.get_vocab().values()) + 1

    def encode(self, text: str) -> list[int]:
        return self._raw.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, on all cores."""
        encodings = self._raw.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens spelled out; ids that end within a character give U+FFFD."""
        return self._raw.decode(ids, skip_special_tokens=False)

    def token_bytes(self) -> np.ndarray:
        """UTF-8 bytes of each token: int64 [vocab_size]; 0 for special tokens and unused ids.

        Exact for byte-level tokenizers without a normaliser or prefix space (GPT-2, Llama 3, ours).
        Else an estimate: SentencePiece's ▁ counts as one space and <0x0A> as one byte, ## of
        WordPiece as nothing.
        """
        is_byte_level = self._uses("ByteLevel")
        is_word_piece = self._uses("WordPiece")
        added = self._raw.get_added_tokens_decoder()
        result = np.zeros(self.vocab_size, dtype=np.int64)
        for token, index in self._raw.get_vocab().items():
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

    def _uses(self, component: str) -> bool:
        """Whether the pre-tokeniser, the decoder or the model is, or contains, such a component."""
        description = json.loads(self._raw.to_str())
        parts = [description[part] for part in ("pre_tokenizer", "decoder", "model")]
        return f'"type": "{component}"' in json.dumps(parts)

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.eos_token}\n{self._raw.to_str()}".encode()).hexdigest()

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as transformers reads them."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / TOKENIZER_FILE).write_text(self._raw.to_str(), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.eos_token}
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(directory: Path) -> Tokenizer:
        raw = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        config = read_json(directory / CONFIG_FILE)
        return Tokenizer(raw, eos_token=config["eos_token"])


def train_bpe(section: BPE, *, text: TrainingText) -> Tokenizer:
    """A byte-level BPE with GPT-2's pre-tokeniser; of fewer entries if the text gives no more."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=section.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    raw.train_from_iterator(text.sample(section.train_bytes), trainer)
    if raw.get_vocab_size() != section.vocab_size:
        log.warning(
            "tokenizer.vocab_size=%d: the training text gives only %d entries, then nothing is "
            "left to merge; the tokenizer has these",
            section.vocab_size,
            raw.get_vocab_size(),
        )
    return Tokenizer(raw, eos_token=END_OF_TEXT)


def byte_ids(section: Bytes, *, text: TrainingText) -> Tokenizer:
    """The byte b as id b, and 256 for the end of text; `text` is not read.

    In the library a byte is the letter that GPT-2 writes for it: itself where it can be seen, else
    one of those from 256 on, in order (openai/gpt-2, src/encoder.py, bytes_to_unicode).
    """
    seen = {*range(33, 127), *range(161, 173), *range(174, 256)}
    unseen = iter(range(256, 512))
    letters = [chr(byte if byte in seen else next(unseen)) for byte in range(256)]
    vocab = {letter: byte for byte, letter in enumerate(letters)}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([END_OF_TEXT])
    return Tokenizer(raw, eos_token=END_OF_TEXT)


def load_file(section: TokenizerFile, *, text: TrainingText) -> Tokenizer:
    """A trained tokenizer.json; `text`, which every tokenizer is offered, is not read."""
    path = Path(section.path).expanduser()
    if not section.path:
        raise ValueError("tokenizer.path is empty. Give the path of a tokenizer.json.")
    if not path.is_file():
        what = f"tokenizer.path = {section.path}: no such file, seen from {Path.cwd()}."
        raise ValueError(f"{what} Give the path of a tokenizer.json.")
    try:
        raw = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        what = f"not a tokenizer.json of the tokenizers library ({error})"
        fix = "Save one with tokenizer.save(), or take the tokenizer.json of a transformers model."
        raise ValueError(f"tokenizer.path = {section.path}: {what}. {fix}") from error
    eos_token = section.end_token(raw.get_vocab())
    if eos_token is None:
        added = [token.content for token in raw.get_added_tokens_decoder().values()]
        what, fix = section.no_end_token(added)
        raise ValueError(f"tokenizer.eos_token: {what} Set {fix}.")
    return Tokenizer(raw, eos_token=eos_token)
