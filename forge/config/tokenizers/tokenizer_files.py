"""Existing tokenizers: files of four kinds, and names on the Hugging Face hub."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forge.config.data import hub
from forge.config.field import opt, section
from forge.config.problems import quoted
from forge.config.regular import read_json
from forge.config.rule import Findings, rule
from forge.config.tokenizers import tiktoken_ranks
from forge.config.tokenizers.tokenizer import END_OF_TEXT, Tokenizer
from forge.config.tokenizers.tokenizer_stated import CONFIG_NAME, stated_token

FILE_NAME = "tokenizer.json"
PICKLE, HOW_TO = "tokenizer.pkl", "docs/how_to.md has the lines that write them"
LARGEST_FILE = 1 << 28  # bytes; those of 256,000 ids have 33 MB
USUAL_EOS = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "[EOS]",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",
)
USUAL_BOS = (
    "<|begin_of_text|>",
    "<s>",
    "<bos>",
    "[BOS]",
    "<|bos|>",
    "<|startoftext|>",
    "<｜begin▁of▁sentence｜>",
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a tokenizer file: ids up to the last one, all tokens with their ids, and the added
    tokens. bos, eos: tokens that begin and end a document, if stated. first, last: tokens of the
    post-processor before and after a text. file: the file itself.
    """

    n_ids: int
    tokens: Mapping[str, int] = field(repr=False)
    added: tuple[str, ...]
    bos: str | None = None
    eos: str | None = None
    first: str | None = None
    last: str | None = None
    file: Path | None = None


@section
class Existing(Tokenizer):
    """Base of tokenizers that were made elsewhere."""

    where = "path"  # the option with the tokenizer's place
    eos_token: str | None = opt(
        None, "token that ends a document; null = as the file says, else a usual one", verbatim=True
    )

    @property
    def ids_before(self) -> int | None:
        facts = self.read()
        return facts.n_ids if isinstance(facts, Facts) else None

    def facts(self) -> Facts | str:
        """Facts of the file with the tokens added by options, or the reason it cannot be used."""
        stated, added_tokens = self.read(), self.added
        if isinstance(stated, str) or not added_tokens:
            return stated
        tokens = {
            **stated.tokens,
            **{token: stated.n_ids + n for n, token in enumerate(added_tokens)},
        }
        n_ids, added = stated.n_ids + len(added_tokens), (*stated.added, *added_tokens)
        return replace(stated, n_ids=n_ids, tokens=tokens, added=added)

    def read(self) -> Facts | str:
        """Facts of the file, or the reason it cannot be used."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        return getattr(self, self.where)

    def end_token(self, facts: Facts) -> str | None:
        """The token that ends a document, if any."""
        return _first_known(self.eos_token, facts.eos, USUAL_EOS, facts)

    def begin_token(self, facts: Facts) -> str | None:
        """The token that begins a document, if any."""
        return _first_known(self.bos_token, facts.bos, USUAL_BOS, facts)

    def no_token(self, option: str, added: Sequence[str]) -> tuple[str, str]:
        """(what is wrong, what to do) without an eos_token or bos_token. added: the file's own
        added tokens.
        """
        usual, does = {
            "eos_token": (USUAL_EOS[0], "ends"),
            "bos_token": (USUAL_BOS[0], "begins"),
        }[option]
        token = getattr(self, option) or f"like {usual} that {does} a document"
        hint = f"tokenizer.{option}=... with one of its tokens"
        if added:
            examples = ", ".join(added[:12])
            hint = f'"tokenizer.{option}={quoted(added[0])}", or another of {examples}'
        return f"there is no token {token} in {self.place}.", hint


def _first_known(
    chosen: str | None, stated: str | None, usual: Sequence[str], facts: Facts
) -> str | None:
    candidates = (stated, *usual) if chosen is None else (chosen,)
    return next((token for token in candidates if token in facts.tokens), None)


@section
class TokenizerFile(Existing):
    """Any tokenizer.json of the Hugging Face `tokenizers` library, or the folder of a model."""

    schema_name = "file"
    _target_: str = "forge.data.tokenizers.tokenizer.load_file"
    path: str = opt("", "a tokenizer.json, or its directory", path=True)

    def read(self) -> Facts | str:
        return facts_of_file("json", self.path)


def tokenizer_overrides(path: str | Path, add_bos: bool, add_eos: bool) -> str:
    """The overrides that select the tokenizer of a file."""
    words = [f"tokenizer=file tokenizer.path={path}"]
    words += ["tokenizer.add_bos=true"] if add_bos else []
    return " ".join([*words, *([] if add_eos else ["tokenizer.add_eos=false"])])


@section
class HubTokenizer(Existing):
    """The tokenizer.json of a model on the Hugging Face hub, from its cache where it is there."""

    schema_name = "hf"
    where = "name"
    _target_: str = "forge.data.tokenizers.tokenizer.load_file"
    name: str = opt("", "id of a model on the hub, such as gpt2")
    revision: str = opt("main", "branch, tag or commit of the model")

    def read(self) -> Facts | str:
        file, fault = hub.fetch_tokenizer(self.name, self.revision) if self.name else ("", "")
        return fault or facts_of_file("json", file)


@section
class SentencePiece(Existing):
    """A .model of SentencePiece, unigram or BPE."""

    schema_name = "sentencepiece"
    _target_: str = "forge.data.tokenizers.sentencepiece.sentencepiece"
    path: str = opt("", "a .model file", path=True)

    def read(self) -> Facts | str:
        return facts_of_file("sentencepiece", self.path)


@section
class Tiktoken(Existing):
    """Byte-pair ranks in a file of tiktoken."""

    schema_name = "tiktoken"
    _target_: str = "forge.data.tokenizers.tiktoken.tiktoken"
    path: str = opt("", "a file of ranks, such as cl100k_base.tiktoken", path=True)
    pattern: str = opt(
        "cl100k",
        f"how text is cut into words: as of {', '.join(tiktoken_ranks.ENCODINGS)}, or by a regular "
        "expression of your own",
        verbatim=True,
    )
    special_tokens: list[str] | None = opt(
        None, "special tokens after the last rank; null = as usual for the pattern"
    )

    def read(self) -> Facts | str:
        special = None if self.special_tokens is None else tuple(self.special_tokens)
        return facts_of_file("tiktoken", self.path, self.pattern, special)


def facts_of_file(kind: str, name: str, *options: Any) -> Facts | str:
    """Facts of a file of a kind, or the reason it cannot be used."""
    if not name:
        return "it is empty"
    try:
        path = Path(name).expanduser()
        stat, beside = path.stat(), path.with_name(CONFIG_NAME)
        changed = stat.st_mtime_ns, beside.stat().st_mtime_ns if beside.exists() else 0
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return _facts(kind, path, stat.st_size, changed, options)


@functools.lru_cache(maxsize=8)  # the points of a sweep ask for the same file
def _facts(
    kind: str, path: Path, size: int, changed: tuple[int, int], options: tuple[Any, ...]
) -> Facts | str:
    if size > LARGEST_FILE:
        return f"it has {size:,} bytes, and no tokenizer has more than {LARGEST_FILE:,}"
    try:
        return READERS[kind](path, *options)
    except (OSError, ValueError) as error:
        return str(error)


def _of_json(path: Path) -> Facts:
    try:
        content = read_json(path)
        vocab = content["model"]["vocab"]  # a dict, or of Unigram a list of pairs
        is_list = isinstance(vocab, list)
        ids = {pair[0]: index for index, pair in enumerate(vocab)} if is_list else dict(vocab)
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or ()}
        tokens = ids | added
        n_ids = max(tokens.values()) + 1
        first, last = put_around(content)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError("it is not a tokenizer.json of the tokenizers library") from error
    bos, eos = (stated_token(path, name) for name in ("bos_token", "eos_token"))
    fields = {"tokens": tokens, "added": tuple(added), "bos": bos, "eos": eos}
    return Facts(n_ids=n_ids, **fields, first=first, last=last, file=path)


def put_around(content: dict[str, Any]) -> tuple[str | None, str | None]:
    """The tokens the post-processor of a tokenizer.json puts before a text, and after it."""
    first = last = None
    root = content.get("post_processor") or {}
    for processor in root.get("processors") or [root]:
        if "cls" in processor:  # processors of BERT and RoBERTa
            first, last = first or processor["cls"][0], last or processor["sep"][0]
        parts = processor.get("single") if processor.get("type") == "TemplateProcessing" else None
        ends = [part.get("SpecialToken", {}).get("id") for part in parts or ()]
        if len(ends) > 1:
            first, last = first or ends[0], last or ends[-1]
        elif ends:
            first = first or ends[0]
    return first, last


def _of_sentencepiece(path: Path) -> Facts:
    from forge.config.tokenizers import (
        sentencepiece_model,
    )  # few runs read such a file

    model = sentencepiece_model.read_model(path)
    if model.model_type not in ("unigram", "bpe"):
        raise ValueError(
            f"it divides text by {model.model_type}, and only unigram and bpe are read"
        )
    if model.space_is_suffix:
        raise ValueError("it writes a space after a word, and only those before are read")
    if any(piece.kind == sentencepiece_model.UNUSED for piece in model.pieces):
        raise ValueError("it has pieces that are marked as unused, which are not read")
    control = [piece.text for piece in model.pieces if piece.kind == sentencepiece_model.CONTROL]
    return Facts(
        n_ids=len(model.pieces),
        tokens={piece.text: number for number, piece in enumerate(model.pieces)},
        added=tuple(control),
        bos=model.named(model.bos),
        eos=model.named(model.eos),
        file=path,
    )


def _of_tiktoken(path: Path, pattern: str, special: tuple[str, ...] | None) -> Facts:
    ranks = tiktoken_ranks.read_ranks(path)
    special_ids = tiktoken_ranks.special_ids(ranks, pattern, special)
    n_ids = max([*ranks.values(), *special_ids.values()]) + 1
    return Facts(n_ids=n_ids, tokens=special_ids, added=tuple(special_ids), file=path)


READERS: dict[str, Callable[..., Facts]] = {
    "json": _of_json,
    "sentencepiece": _of_sentencepiece,
    "tiktoken": _of_tiktoken,
}


@rule("tokenizer.path")
def tokenizer_path(tokenizer: TokenizerFile) -> Findings:
    """tokenizer=file needs the path of an existing tokenizer.json; without one it is that of the
    run in checkpoint.init_from.
    """
    path, facts = tokenizer.path, tokenizer.facts()
    message, hint = "", "check the path; it is relative to where you are"
    if not path:
        hint = "tokenizer.path=my/tokenizer.json, or checkpoint.init_from=my/run with its own"
        yield "tokenizer.path", hint
    elif os.path.isdir(path):
        message = f"the directory {path} has no {FILE_NAME}."
        if os.path.isfile(os.path.join(path, PICKLE)):  # of nanochat
            message = f"{PICKLE} in {path} is a pickle, which may run any code."
            hint = f"a file of its ranks, as tiktoken has them; {HOW_TO}"
        if os.path.isfile(model := os.path.join(path, "tokenizer.model")):
            hint = f"tokenizer=sentencepiece tokenizer.path={model}"
        elif os.path.isfile(os.path.join(path, "config.json")):  # of a model
            hint = f"put the {FILE_NAME} of its model there, or tokenizer.path=my/{FILE_NAME}"
    elif not os.path.exists(path):
        message = f"there is no file {path}."
        if not os.path.splitext(path)[1]:
            hint += "; by a name on the Hugging Face hub: tokenizer=hf tokenizer.name=..."
    elif isinstance(facts, str):
        message = f"{path} cannot be used: {facts}."
        hint = "one that tokenizer.save() wrote, or that of a transformers model"
        other = {".model": "sentencepiece", ".tiktoken": "tiktoken"}.get(os.path.splitext(path)[1])
        hint = f"tokenizer={other} tokenizer.path={path}" if other else hint
    if message:
        yield "tokenizer.path", message, hint


@rule("tokenizer.name")
def tokenizer_name(tokenizer: HubTokenizer) -> Findings:
    """tokenizer=hf needs the name of a model with a tokenizer.json, in the cache or on the hub."""
    if not tokenizer.name:
        yield "tokenizer.name", "tokenizer.name=... with the id of a model, such as gpt2"
    elif isinstance(facts := tokenizer.facts(), str):
        hint = "check the name; or a copy on this machine, tokenizer=file tokenizer.path=my/folder"
        yield "tokenizer.name", f"{tokenizer.name} cannot be used: {facts}.", hint


@rule("tokenizer.model", "tokenizer.path")
def tokenizer_model(tokenizer: SentencePiece) -> Findings:
    """tokenizer=sentencepiece needs the path of a .model, unigram or BPE."""
    yield from _unusable(tokenizer, "my/tokenizer.model", "a .model that spm_train wrote")


@rule("tokenizer.ranks", "tokenizer.path", "tokenizer.pattern", "tokenizer.special_tokens")
def tokenizer_ranks(tokenizer: Tiktoken) -> Findings:
    """tokenizer=tiktoken needs the path of a file with a token in base64 and its rank a line."""
    yield from _unusable(tokenizer, "my/ranks.tiktoken", "a .tiktoken file, complete")


def _unusable(tokenizer: SentencePiece | Tiktoken, example: str, other: str) -> Findings:
    facts = tokenizer.facts()
    if not tokenizer.path:
        yield "tokenizer.path", f"tokenizer.path={example}"
    elif isinstance(facts, str):
        yield "tokenizer.path", f"{tokenizer.path} cannot be used: {facts}.", other


@rule("tokenizer.eos_token", "tokenizer.path", "tokenizer.eos_token")
def eos_token(tokenizer: Existing) -> Findings:
    """tokenizer.eos_token is a token of the file; null finds the one it names, or a usual one."""
    facts = tokenizer.facts()
    if isinstance(facts, Facts) and tokenizer.add_eos and tokenizer.end_token(facts) is None:
        yield "tokenizer.eos_token", *tokenizer.no_token("eos_token", facts.added)


@rule("tokenizer.usual_eos", "tokenizer.path", "tokenizer.eos_token", warning=True)
def usual_eos(tokenizer: Existing) -> Findings:
    """A token that only looks like the end of a text is taken where the files name none."""
    facts = tokenizer.facts()
    if not isinstance(tokenizer, TokenizerFile | HubTokenizer) or not isinstance(facts, Facts):
        return
    token = tokenizer.end_token(facts)
    if tokenizer.eos_token is None and tokenizer.add_eos and token and token != facts.eos:
        message = f"{tokenizer.place} names no token that ends a text; {token} is taken."
        hint = f'"tokenizer.eos_token={quoted(token)}", or another token'
        yield "tokenizer.eos_token", message, hint


@rule("tokenizer.bos_token", "tokenizer.path", "tokenizer.bos_token", "tokenizer.add_bos")
def bos_token(tokenizer: Existing) -> Findings:
    """With tokenizer.add_bos, tokenizer.bos_token is a token of the file; null finds the one it
    names, or a usual one.
    """
    facts = tokenizer.facts()
    if isinstance(facts, Facts) and tokenizer.add_bos and tokenizer.begin_token(facts) is None:
        yield "tokenizer.bos_token", *tokenizer.no_token("bos_token", facts.added)


@rule("tokenizer.one_token", "tokenizer.bos_token", "tokenizer.add_bos", "tokenizer.add_eos")
def one_token(tokenizer: Tokenizer) -> Findings:
    """One token does not both begin and end documents: each would be followed by an empty one."""
    begin, end = tokenizer.begin, END_OF_TEXT
    if isinstance(tokenizer, Existing):
        facts = tokenizer.facts()
        if isinstance(facts, str):
            return
        begin, end = tokenizer.begin_token(facts) or "", tokenizer.end_token(facts) or ""
    if tokenizer.add_bos and tokenizer.add_eos and begin and begin == end:
        message = f"{begin} would begin and end every document."
        hint = "tokenizer.add_eos=false, or tokenizer.add_bos=false"
        yield "tokenizer.add_bos", message, hint
