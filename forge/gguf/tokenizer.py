"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json.

The split of text before BPE is named by tokenizer.ggml.pre; the rules are those of llama.cpp's
llama-vocab.cpp and of the models' own tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from forge.config.tokenizers.sentencepiece_model import (
    BYTE,
    CONTROL,
    USER_DEFINED,
    Piece,
    SentencePieceModel,
)
from forge.config.tokenizers.tiktoken_ranks import ENCODINGS
from forge.data.tokenizers.sentencepiece import convert
from forge.families.shards import FolderError
from forge.gguf.reader import GGUFFile

PREFIX = "tokenizer.ggml."
Split = pre_tokenizers.PreTokenizer


def _pattern(name: str) -> Split:
    words = pre_tokenizers.Split(Regex(ENCODINGS[name].pattern), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, as_bytes])


def _gpt2() -> Split:
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def _digits_first() -> Split:
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2()])


SPLITS: Mapping[str, Callable[[], Split]] = {
    "gpt-2": _gpt2,
    "olmo": _gpt2,
    "smollm": _digits_first,
    "llama-bpe": lambda: _pattern("llama3"),
    "dbrx": lambda: _pattern("llama3"),
    "qwen2": lambda: _pattern("qwen"),
}
"""Splits of text into words by the names of llama.cpp."""
BEGINS = ("llama-bpe",)
"""BPE tokenizers that begin a text with BOS where the file does not state it."""


def write_tokenizer(file: GGUFFile, folder: Path) -> None:
    """Write the tokenizer files of a folder. Raises FolderError for an unknown kind."""
    facts = {
        key.removeprefix(PREFIX): value
        for key, value in file.metadata.items()
        if key.startswith(PREFIX)
    }
    kind, pre = facts.get("model"), str(facts.get("pre", ""))
    raw = _tokenizer(file, facts, kind, pre)
    tokens = facts["tokens"]
    begins = bool(facts.get("add_bos_token", kind == "llama" or pre in BEGINS))
    stated = {
        f"{name}_token": tokens[int(facts[f"{key}_token_id"])]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"{key}_token_id" in facts
    }
    around = {
        "bos": begins and "bos_token" in stated,
        "eos": bool(facts.get("add_eos_token", False)) and "eos_token" in stated,
    }
    added = {name: stated[f"{name}_token"] for name, is_added in around.items() if is_added}
    if added:
        raw.post_processor = _put_around(added, tokens)
    raw.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **stated}
    config |= {f"add_{name}_token": is_added for name, is_added in around.items()}
    if template := file.metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")


def _tokenizer(
    file: GGUFFile, facts: dict[str, Any], kind: object, pre: str
) -> tokenizers.Tokenizer:
    """The tokenizer of a file, without the tokens that it adds to a text."""
    needed = ("tokens", "merges") if kind == "gpt2" else ("tokens", "scores", "token_type")
    if kind in ("gpt2", "llama") and (missing := [n for n in needed if n not in facts]):
        message = f"{file.path} lacks {', '.join(PREFIX + name for name in missing)}"
        raise FolderError(message, "a file with its tokenizer")
    if kind == "gpt2":
        return _bpe(file, facts, pre)
    if kind == "llama":
        return convert(_sentencepiece(facts))
    message = f"{file.path} has a tokenizer of the kind {kind!r}; gpt2 and llama are read"
    raise FolderError(message, "the folder of the model, with its tokenizer.json")


def _put_around(added: Mapping[str, str], tokens: Sequence[str]) -> processors.TemplateProcessing:
    """The step that puts BOS before a text and EOS after it. added: these tokens, by bos, eos."""
    single = " ".join(filter(None, (added.get("bos"), "$A", added.get("eos"))))
    return processors.TemplateProcessing(
        single=single,
        pair=f"{single} {single.replace('$A', '$B')}",
        special_tokens=[(token, tokens.index(token)) for token in added.values()],
    )


def _bpe(file: GGUFFile, facts: Mapping[str, Any], pre: str) -> tokenizers.Tokenizer:
    if pre not in SPLITS:
        message = f"{file.path} splits text as {pre or 'unstated'!r} before BPE"
        hint = f"known are {', '.join(SPLITS)}; the folder of the model has a tokenizer.json"
        raise FolderError(message, hint)
    tokens: Sequence[str] = facts["tokens"]
    merges = [tuple(merge.split(" ")) for merge in facts["merges"]]
    model = models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=merges,
        ignore_merges=pre == "llama-bpe",
    )
    raw = tokenizers.Tokenizer(model)
    if pre == "qwen2":
        raw.normalizer = normalizers.NFC()
    raw.pre_tokenizer = SPLITS[pre]()
    raw.decoder = decoders.ByteLevel()
    kinds = facts.get("token_type") or [1] * len(tokens)
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == CONTROL:
            raw.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == USER_DEFINED:
            raw.add_tokens([AddedToken(token, normalized=False)])
    return raw


def _sentencepiece(facts: Mapping[str, Any]) -> SentencePieceModel:
    entries = zip(facts["tokens"], facts["scores"], facts["token_type"], strict=True)
    pieces = tuple(Piece(text=text, score=score, kind=kind) for text, score, kind in entries)
    return SentencePieceModel(
        pieces=pieces,
        model_type="bpe",
        byte_fallback=any(piece.kind == BYTE for piece in pieces),
        space_is_suffix=False,
        unk=int(facts.get("unknown_token_id", 0)),
        bos=int(facts.get("bos_token_id", 1)),
        eos=int(facts.get("eos_token_id", 2)),
        charsmap=b"",
        add_dummy_prefix=bool(facts.get("add_space_prefix", True)),
        remove_extra_whitespaces=bool(facts.get("remove_extra_whitespaces", False)),
        escape_whitespaces=True,
    )
