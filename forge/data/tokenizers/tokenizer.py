"""Text to token ids and back, by the `tokenizers` library; trained, or read from a file.

The library is imported on use: a run on random bytes needs no tokenizer library.
"""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.config.tokenizers.tokenizer import BPE, END_OF_TEXT, Bytes
from forge.config.tokenizers.tokenizer import Tokenizer as Section
from forge.config.tokenizers.tokenizer_files import FILE_NAME, Existing, Facts, tokenizer_overrides
from forge.config.tokenizers.tokenizer_stated import CONFIG_NAME, STATED
from forge.data.text.split import RandomText, TrainingText
from forge.data.tokenizers.added_tokens import add_tokens, stated_with
from forge.data.tokenizers.byte_text import ByteText, visible_bytes
from forge.data.tokenizers.words import Words
from forge.rundir.files import read_json

if TYPE_CHECKING:
    import tokenizers

TOKENIZER_FILE, CONFIG_FILE = FILE_NAME, CONFIG_NAME
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
SENTENCEPIECE_SPACE = "▁"
log = logging.getLogger(__name__)


class Tokenizer:
    """Ids of plain text: nothing is added, cut or padded; no text spells a special token.

    Documents begin with the token `begin_id` and end with `last_id`, where these are not None.
    `end_id` marks the end of a document: the end token, else the begin token of the next.
    """

    def __init__(
        self,
        raw: tokenizers.Tokenizer | ByteText,
        *,
        eos_token: str,
        bos_token: str | None = None,
        add_bos: bool = False,
        add_eos: bool = True,
        stated: Mapping[str, Any] | None = None,
    ) -> None:
        """add_bos: documents begin with bos_token. add_eos: documents end with eos_token. stated:
        chat and token statements of the tokenizer's folder, saved along.
        """
        assert add_bos or add_eos
        self.stated = dict(stated or {})
        raw.no_truncation()
        raw.no_padding()
        raw.encode_special_tokens = True
        self._raw = raw
        self.eos_token, self.bos_token = eos_token, bos_token
        self.eos_id = self._id(eos_token)
        self._set_borders(add_bos=add_bos, add_eos=add_eos)
        if not isinstance(raw, ByteText):
            _add_only(raw, bos_token if add_bos else None, self.begin_id)
        self.vocab_size = max(raw.get_vocab().values()) + 1

    def _set_borders(self, *, add_bos: bool, add_eos: bool) -> None:
        self.add_bos, self.add_eos = add_bos, add_eos
        self.begin_id = self._id(self.bos_token) if add_bos else None
        self.last_id = self.eos_id if add_eos else None
        self.end_id = self.eos_id if self.begin_id is None or add_eos else self.begin_id

    @property
    def bos_id(self) -> int | None:
        """The id of the begin token; None without one."""
        return None if self.bos_token is None else self._id(self.bos_token)

    @property
    def ids(self) -> dict[str, int]:
        """The id of each token."""
        return self._raw.get_vocab()

    @property
    def borders(self) -> frozenset[int]:
        """The tokens beginning or ending documents, in this run or in a text with its own."""
        return frozenset(
            {self.eos_id} if self.bos_token is None else {self.eos_id, self._id(self.bos_token)}
        )

    def with_borders(
        self, *, add_bos: bool | None = None, add_eos: bool | None = None
    ) -> Tokenizer:
        """A copy with the same ids and other begin or end tokens of documents; None = unchanged.

        ValueError: the token does not exist, or no border token would remain.
        """
        begins = self.add_bos if add_bos is None else add_bos
        ends = self.add_eos if add_eos is None else add_eos
        if begins and self.bos_token is None:
            fault = "add_bos=true, and the tokenizer has no token that begins documents"
            raise ValueError(f"{fault}. Set tokenizer.bos_token, or add_bos=false.")
        if begins == ends and (not begins or self.bos_token == self.eos_token):
            fault = f"add_bos={begins} and add_eos={ends}".lower()
            raise ValueError(f"{fault}: no one token is between two documents. Set one of them.")
        other = copy.copy(self)
        other.__dict__.pop("fingerprint", None)
        other._set_borders(add_bos=begins, add_eos=ends)
        return other

    def with_added(self, section: Section) -> Tokenizer:
        """A copy with the tokens added by a section. ValueError: a token exists already."""
        import tokenizers

        raw = tokenizers.Tokenizer.from_str(self._raw.to_str())
        add_tokens(raw, section)
        borders = {"add_bos": self.add_bos, "add_eos": self.add_eos, "bos_token": self.bos_token}
        return Tokenizer(raw, eos_token=self.eos_token, **borders, stated=self.stated)

    def _id(self, token: str | None) -> int:
        index = None if token is None else self._raw.token_to_id(token)
        assert index is not None, token
        return index

    def named_id(self, name: str) -> int | None:
        """The id of a token named in the tokenizer's folder, e.g. pad_token; None without a
        name.
        """
        stated = self.stated.get(name)
        token = stated.get("content") if isinstance(stated, dict) else stated
        return self._raw.token_to_id(token) if isinstance(token, str) else None

    def encode(self, text: str) -> list[int]:
        return self._raw.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of several texts, on all cores."""
        encodings = self._raw.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_marked(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Encode texts with special tokens read from their spelling, as in the output of chat
        templates. Returns for each text its ids and the (first, past-the-end) characters of each
        id.
        """
        self._raw.encode_special_tokens = False
        try:
            encodings = self._raw.encode_batch(list(texts), add_special_tokens=False)
        finally:
            self._raw.encode_special_tokens = True
        return [(encoding.ids, encoding.offsets) for encoding in encodings]

    @property
    def special_tokens(self) -> list[str]:
        """The spellings, in templates, of the tokens never spelled by text."""
        added = self._raw.get_added_tokens_decoder()
        return [token.content for _, token in sorted(added.items()) if token.special]

    def remember_words(self) -> Words | None:
        """A faster encoder of batches on one core; None except for byte-level BPE of a usual
        pattern.
        """
        return Words.of(self._raw)

    def document(self, ids: Sequence[int]) -> np.ndarray:
        """Ids of a whole document, with its begin and end tokens: uint32 [tokens]."""
        borders = ([] if token is None else [token] for token in (self.begin_id, self.last_id))
        first, last = borders
        return np.array([*first, *ids, *last], dtype=np.uint32)

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
        result[[index for index in (self.begin_id, self.last_id) if index is not None]] = 0
        return result

    def _uses(self, component: str) -> bool:
        """Whether the pre-tokeniser, the decoder or the model is, or contains, `component`."""
        description = json.loads(self._raw.to_str())
        parts = [description[part] for part in ("pre_tokenizer", "decoder", "model")]
        return f'"type": "{component}"' in json.dumps(parts)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the encoding of text, and of the begin and end of documents."""
        borders = [self.eos_token]
        borders += [f"begins with {self.bos_token}"] if self.add_bos else []
        borders += [] if self.add_eos else ["does not end with it"]
        return hashlib.sha256("\n".join([*borders, self._raw.to_str()]).encode()).hexdigest()

    def typed(self, path: Path) -> str:
        """The options for a command line to get this tokenizer from its file."""
        return tokenizer_overrides(path, self.add_bos, self.add_eos)

    def to_json(self) -> str:
        """The content of tokenizer.json."""
        return self._raw.to_str()

    def save(self, directory: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as transformers reads them."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / TOKENIZER_FILE).write_text(self._raw.to_str(), encoding="utf-8")
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", **self.stated}
        config["eos_token"] = self.eos_token
        if self.bos_token is not None:
            config["bos_token"] = self.bos_token
        if self.add_bos:
            config["add_bos_token"] = True
        if not self.add_eos:
            config["documents_end_with_eos_token"] = False
        (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    @staticmethod
    def load(directory: Path) -> Tokenizer:
        """Load a tokenizer written by `save`."""
        import tokenizers

        raw = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
        config = read_json(directory / CONFIG_FILE)
        return Tokenizer(
            raw,
            eos_token=config["eos_token"],
            bos_token=config.get("bos_token"),
            add_bos=config.get("add_bos_token", False),
            add_eos=config.get("documents_end_with_eos_token", True),
            stated={name: config[name] for name in STATED if name in config},
        )


def _add_only(raw: tokenizers.Tokenizer, token: str | None, index: int | None) -> None:
    """Set the file's post-processor to begin texts with this token and add no other, whatever the
    original added: a model has not learnt tokens absent from the run's training.
    """
    from tokenizers import processors

    if token is not None and index is not None:
        begin = {"special_tokens": [(token, index)], "single": [token, "$A"]}
        raw.post_processor = processors.TemplateProcessing(**begin)
    elif raw.num_special_tokens_to_add(False):
        processor = json.loads(raw.to_str())["post_processor"]
        trims = [
            trim for trim in processor.get("processors", [processor]) if "trim_offsets" in trim
        ]
        options = ("add_prefix_space", "trim_offsets", "use_regex")
        levels = [
            processors.ByteLevel(**{name: trim[name] for name in options if name in trim})
            for trim in trims
        ]
        raw.post_processor = levels[0] if levels else None


def train_bpe(section: BPE, *, text: TrainingText | RandomText) -> Tokenizer:
    """Train a byte-level BPE with GPT-2's pre-tokeniser; fewer entries if the text gives no more.
    For random tokens, build as many ids, all beyond the bytes unused.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    raw = tokenizers.Tokenizer(models.BPE())
    if isinstance(text, RandomText):
        unused = range(256, section.vocab_size - len(_own_tokens(section)))
        names = [*visible_bytes(), *(f"<unused {number}>" for number in unused)]
        vocab = {name: number for number, name in enumerate(names)}
        raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=section.vocab_size,
        special_tokens=_own_tokens(section),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    if isinstance(text, RandomText):
        raw.add_special_tokens(_own_tokens(section))
        return _made(raw, section)
    raw.train_from_iterator(text.sample(section.train_bytes), trainer)
    if raw.get_vocab_size() != section.vocab_size:
        log.warning(
            "tokenizer.vocab_size=%d: the training text gives only %d entries, then nothing is "
            "left to merge; the tokenizer has these",
            section.vocab_size,
            raw.get_vocab_size(),
        )
    return _made(raw, section)


def byte_ids(section: Bytes, *, text: TrainingText) -> Tokenizer:
    """The byte b as id b, 256 for the end of text and 257 for the beginning; `text` is not read."""
    if not (section.add_bos or section.added):
        return _made(ByteText(END_OF_TEXT), section)
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    vocab = {letter: byte for byte, letter in enumerate(visible_bytes())}
    raw = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(_own_tokens(section))
    return _made(raw, section)


def _own_tokens(section: BPE | Bytes) -> list[str]:
    return list(dict.fromkeys([END_OF_TEXT, *([section.begin] if section.add_bos else [])]))


def _made(raw: tokenizers.Tokenizer | ByteText, section: BPE | Bytes) -> Tokenizer:
    if not isinstance(raw, ByteText):
        add_tokens(raw, section)
    return Tokenizer(
        raw,
        eos_token=END_OF_TEXT,
        bos_token=section.begin if section.add_bos else None,
        add_bos=section.add_bos,
        add_eos=section.add_eos,
    )


def load_file(section: Existing, *, text: TrainingText) -> Tokenizer:
    """A trained tokenizer.json; `text`, passed to every tokenizer, is not read."""
    import tokenizers

    facts = usable(section, "a tokenizer.json")
    try:
        raw = tokenizers.Tokenizer.from_file(str(facts.file))
    except Exception as error:  # the library raises a bare Exception
        fault = f"not a tokenizer.json of the tokenizers library ({error})"
        hint = "Save one with tokenizer.save(), or take the tokenizer.json of a transformers model."
        raise ValueError(f"{_key(section)} = {section.place}: {fault}. {hint}") from error
    return complete_tokenizer(raw, section, facts)


def usable(section: Existing, kind: str) -> Facts:
    """The facts of a tokenizer file. ValueError, naming its key: the file is missing or of another
    kind.
    """
    key, facts = _key(section), section.facts()
    hint = f"Give the {section.where} of {kind}."
    if not section.place:
        raise ValueError(f"{key} is empty. {hint}")
    if isinstance(facts, str):
        missing = section.where == "path" and not Path(section.place).expanduser().exists()
        seen = f", seen from {Path.cwd()}" if missing else ""
        raise ValueError(f"{key} = {section.place}: {facts}{seen}. {hint}")
    return facts


def _key(section: Existing) -> str:
    return f"tokenizer.{section.where}"


def complete_tokenizer(raw: tokenizers.Tokenizer, section: Existing, facts: Facts) -> Tokenizer:
    """Complete a read tokenizer with the begin and end tokens of documents and the added tokens.
    ValueError: a border token is missing, or would be spelled by text; an added token exists.
    """
    add_tokens(raw, section)
    bos, eos = section.begin_token(facts), section.end_token(facts)
    for option, token, used in (
        ("eos_token", eos, section.add_eos),
        ("bos_token", bos, section.add_bos),
    ):
        if used and token is None:
            fault, hint = section.no_token(option, facts.added)
            raise ValueError(f"tokenizer.{option}: {fault} Set {hint}.")
    last = eos or bos
    assert last is not None
    borders = {"add_bos": section.add_bos, "add_eos": section.add_eos}
    assert facts.file is not None
    return Tokenizer(
        raw, eos_token=last, bos_token=bos, **borders, stated=stated_with(section, facts.file)
    )
