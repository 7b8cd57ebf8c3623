"""Tokenizers that others made: ids against the libraries that made them, and what is refused."""

from __future__ import annotations

import base64
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tokenizers
from data_helpers import build_section, make_prose
from huggingface_hub import constants
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from forge.config.data import hub
from forge.config.data.text import PythonSource
from forge.config.tokenizers.tiktoken_ranks import ENCODINGS
from forge.config.tokenizers.tokenizer import Tokenizer as Section
from forge.config.tokenizers.tokenizer_files import (
    Facts,
    HubTokenizer,
    SentencePiece,
    Tiktoken,
    TokenizerFile,
)
from forge.data.text.corpus import python_source
from forge.data.tokenizers.tokenizer import Tokenizer

WORDS = (
    "größer über naïve café – “quoted” 日本語のテキスト 中文 한국어 русский ελληνικά 🙂🚀 ½ ﬁ Ａ İſ"
)
LINES = [
    line
    for path in python_source(PythonSource()).files[:25]
    for line in path.read_text().splitlines()
]
LINES += [WORDS] * 100
ODD = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "a  b",
    "\ta\n",
    "a\n\n  b\r\n",
    "x" * 60,
    "▁x▁▁y",
    "e\u0301",
]
ODD += [
    "<s>",
    "a<s>b</s> <unk> <0x0A>",
    "<|endoftext|>",
    "日本語",
    "½ﬁＡ",
    "\u200b\ufeffz",
    "I'LL, we'ſ",
]
ODD += [
    "1234567 12 ٣٤٥",
    "\x00\x01",
    "foo_Bar fooBAR don't DON'T",
    "<sep>",
    "<sep>a <sep> b<sep>",
    "🙂" * 9,
]
LETTERS = [
    *map(chr, range(32, 127)),
    *map(chr, range(160, 600)),
    *"あ中가🙂▁\n\t\u3000\u2028\u0301",
]


def samples() -> list[str]:
    draw = random.Random(0)
    texts = ["\n".join(draw.choices(LINES, k=5)) for _ in range(100)]
    return ODD + texts + ["".join(draw.choices(LETTERS, k=draw.randint(1, 40))) for _ in range(300)]


def built(section: Section) -> Tokenizer:
    return build_section(section, path="tokenizer", text=None)


def spm(path: Path, **options: Any) -> sentencepiece.SentencePieceProcessor:
    out = io.BytesIO()
    options = {"model_type": "bpe", "byte_fallback": True, "vocab_size": 700} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=out,
        character_coverage=0.9995,
        minloglevel=2,
        **options,
    )
    path.write_bytes(out.getvalue())
    return sentencepiece.SentencePieceProcessor(model_file=str(path))


AS_IT_IS = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
GEMMA = AS_IT_IS | {
    "add_dummy_prefix": False,
    "user_defined_symbols": ["<sep>", "▁▁", "▁▁▁", "\n\n"],
}


SKIPPED = ("unigram", "gemma")  # which of its symbols that overlap is taken is another one
OTHER = {"bos_id": -1, "eos_id": 3, "eos_piece": "<end>", "pad_id": 1, "control_symbols": "<mask>"}
SPMS: dict[str, dict[str, Any]] = {
    "llama": {},
    "as it is": AS_IT_IS,
    "unknown characters": {"byte_fallback": False},
    "own symbols": {"user_defined_symbols": ["<sep>"]},
    "other ids": OTHER,
    "gemma": GEMMA,
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("unigram", "bpe") for name in SPMS if (kind, name) != SKIPPED],
)
def test_ids_are_those_of_sentencepiece(tmp_path: Path, kind: str, name: str) -> None:
    options = SPMS[name]
    theirs = spm(tmp_path / "t.model", model_type=kind, **options)
    section = SentencePiece(path=str(tmp_path / "t.model"))
    ours = built(section)
    assert (ours.vocab_size, ours.eos_id) == (theirs.vocab_size(), theirs.eos_id())
    assert section.n_ids == ours.vocab_size
    differ = []
    for text in samples():
        wanted, found = theirs.encode(text), ours.encode(text)
        if wanted != found:
            differ.append(text)
            assert Counter(wanted) == Counter(found) or text == "<sep>", "equally likely pieces"
        assert not {theirs.bos_id(), theirs.eos_id()} & {*found}
        if options.get("byte_fallback", True):
            assert ours.decode(found) == theirs.decode(found)
    assert len(differ) <= 2


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """Those of a trained BPE, by its bytes."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator(LINES, trainer)
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(byte): byte for byte in seen}
    unseen = (byte for byte in range(256) if byte not in seen)
    byte_of |= {chr(256 + place): byte for place, byte in enumerate(unseen)}
    return {bytes(byte_of[c] for c in token): rank for token, rank in raw.get_vocab().items()}


def write_ranks(path: Path, ranks: dict[bytes, int]) -> str:
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize("pattern", [*ENCODINGS, r"\w+|\s+|[^\w\s]+"])
def test_ids_are_those_of_tiktoken(tmp_path: Path, ranks: dict[bytes, int], pattern: str) -> None:
    """With the patterns as it has them itself, where it has them."""
    from tiktoken_ext import openai_public

    known = {"gpt2": openai_public.r50k_pat_str}
    words = known.get(pattern) or getattr(ENCODINGS.get(pattern), "pattern", pattern)
    theirs = tiktoken.Encoding("x", pat_str=words, mergeable_ranks=ranks, special_tokens={})
    borders: Any = {"add_bos": True, "add_eos": False} if pattern == "nanochat" else {}
    path = write_ranks(tmp_path / "x.tiktoken", ranks)
    section = Tiktoken(path=path, pattern=pattern, **borders)
    ours = built(section)
    for text in samples():
        assert ours.encode(text) == theirs.encode(text, disallowed_special=()), text
        assert ours.decode(ours.encode(text)) == text
    assert section.n_ids == ours.vocab_size


def test_special_tokens_of_the_encodings() -> None:
    """openai/tiktoken and meta-llama/llama-models, by the number of ranks in their files."""
    ids = {"gpt2": (50256, 0), "cl100k": (100256, 1), "o200k": (199998, 1)}
    for name, (n_ranks, place) in ids.items():
        assert ENCODINGS[name].special["<|endoftext|>"] == place
        theirs = {"gpt2": 50256, "cl100k": 100257, "o200k": 199999}
        assert n_ranks + place == theirs[name]
    special = ENCODINGS["llama3"].special
    assert (len(special), special["<|end_of_text|>"], special["<|eot_id|>"]) == (256, 1, 9)
    assert special["<|reserved_special_token_250|>"] == 255


def test_special_tokens_of_ranks(tmp_path: Path, ranks: dict[bytes, int]) -> None:
    path = write_ranks(tmp_path / "x.tiktoken", ranks)
    llama = built(Tiktoken(path=path, pattern="llama3", add_bos=True))
    assert (llama.begin_id, llama.eos_id, llama.vocab_size) == (900, 901, 900 + 256)
    gap = built(Tiktoken(path=path))
    assert (gap.eos_id, gap.vocab_size) == (901, 921)
    own = built(Tiktoken(path=path, special_tokens=["<|bos|>", "</s>"]))
    assert (own.eos_id, own.vocab_size, own.bos_token) == (901, 902, "<|bos|>")
    assert not {900, 901} & {*own.encode("<|bos|></s>")}
    own.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert [again.encode(text) for text in ODD] == [own.encode(text) for text in ODD]


def refusal(section: Section) -> str:
    with pytest.raises(ValueError) as caught:
        built(section)
    return str(caught.value)


def test_files_that_cannot_be_used(tmp_path: Path, ranks: dict[bytes, int]) -> None:
    def ranks_of(text: str) -> str:
        (tmp_path / "bad.tiktoken").write_text(text)
        said = refusal(Tiktoken(path=f"{tmp_path}/bad.tiktoken"))
        head, tail = f"tokenizer.path = {tmp_path}/bad.tiktoken: ", ". Give the path of "
        return said.removeprefix(head).partition(tail)[0]

    assert ranks_of("YQ== 0\nYg==\n") == "line 2 is not a token in base64 and its rank"
    assert ranks_of("YQ== 0\n!!! 1\n") == "line 2 is not a token in base64 and its rank"
    assert ranks_of("YQ== 0\nYg== 0\n") == "it has two tokens of one rank"
    assert ranks_of("") == "it is empty"
    said = "the byte 0 is no token of it, so not every text has tokens"
    assert ranks_of("YQ== 0\n") == said
    path = write_ranks(tmp_path / "x.tiktoken", ranks)
    said = refusal(Tiktoken(path=path, pattern="(", special_tokens=["</s>"]))
    assert said.startswith("tokenizer.pattern = (: it is no regular expression (")
    said = refusal(Tiktoken(path=path, special_tokens=["</s>", "abc"]))
    what = "text that spells abc would be this token. Name it otherwise."
    assert said == f"tokenizer.special_tokens: {what}"
    assert refusal(Tiktoken()) == "tokenizer.path is empty. Give the path of a .tiktoken file."
    fix = "Give the path of a SentencePiece .model."
    (tmp_path / "bad.model").write_text("no model")
    said = refusal(SentencePiece(path=f"{tmp_path}/bad.model"))
    assert said == f"tokenizer.path = {tmp_path}/bad.model: it is not a SentencePiece model. {fix}"
    spm(tmp_path / "words.model", model_type="word", byte_fallback=False)
    said = refusal(SentencePiece(path=f"{tmp_path}/words.model"))
    what = "it divides text by word, and only unigram and bpe are read"
    assert said == f"tokenizer.path = {tmp_path}/words.model: {what}. {fix}"
    spm(tmp_path / "suffix.model", treat_whitespace_as_suffix=True)
    said = refusal(SentencePiece(path=f"{tmp_path}/suffix.model"))
    what = "it writes a space after a word, and only those before are read"
    assert said == f"tokenizer.path = {tmp_path}/suffix.model: {what}. {fix}"


def folder_of(path: Path, **stated: Any) -> Path:
    """A folder as transformers saves it."""
    raw = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    raw.add_special_tokens(["</s>", "<begin>", "<end>"])
    PreTrainedTokenizerFast(tokenizer_object=raw, **stated).save_pretrained(path)
    return path


def test_a_folder_says_which_tokens_begin_and_end(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "a", bos_token="<begin>", eos_token="<end>")
    file = str(folder / "tokenizer.json")
    tokenizer = built(TokenizerFile(path=file))
    assert (tokenizer.eos_token, tokenizer.bos_token) == ("<end>", "<begin>")
    assert built(TokenizerFile(path=file, eos_token="</s>")).eos_token == "</s>"
    content = json.loads((folder / "tokenizer_config.json").read_text())
    content["eos_token"] = {"content": "</s>", "__type": "AddedToken"}
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    assert built(TokenizerFile(path=file)).eos_token == "</s>"
    (folder / "tokenizer_config.json").unlink()
    assert built(TokenizerFile(path=file)).eos_token == "</s>", "a usual one"
    said = refusal(TokenizerFile(path=file, add_bos=True))
    what = f"there is no token like <|begin_of_text|> that begins a document in {file}."
    assert said == f"tokenizer.bos_token: {what} " + (
        "Set \"tokenizer.bos_token='</s>'\", or another of </s>, <begin>, <end>."
    )
    named = TokenizerFile(path=file, add_bos=True, bos_token="<begin>")
    assert built(named).begin_id == 3


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub as its library lays it out, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.fetch_tokenizer.cache_clear()
    hub.reachable.cache_clear()
    yield tmp_path / "hub"  # type: ignore[misc]
    hub.fetch_tokenizer.cache_clear()
    hub.reachable.cache_clear()


def test_a_name_on_the_hub_is_read_from_its_cache(cache: Path) -> None:
    model = cache / "models--my--model"
    folder = folder_of(model / "snapshots" / ("1" * 40), eos_token="<end>")
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("1" * 40)
    section = HubTokenizer(name="my/model")
    known, tokenizer = section.facts(), built(section)
    assert isinstance(known, Facts)
    assert (known.file, section.n_ids) == (folder / "tokenizer.json", 5)
    assert (tokenizer.eos_token, tokenizer.encode("the the")) == ("<end>", [1, 1])
    assert built(HubTokenizer(name="my/model", revision="1" * 40)).eos_token == "<end>"
    absent = "it is not in the cache of Hugging Face, and the hub cannot be reached to fetch it"
    said = refusal(HubTokenizer(name="gpt2"))
    assert said == f"tokenizer.name = gpt2: {absent}. Give the name of a tokenizer.json."


def test_documents_and_prompts_begin_as_transformers_begins_them(tmp_path: Path) -> None:
    spm(tmp_path / "t.model")
    section = SentencePiece(path=str(tmp_path / "t.model"), add_bos=True)
    tokenizer = built(section)
    tokenizer.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert (again.begin_id, again.last_id, again.end_id) == (1, 2, 2)
    assert again.fingerprint == tokenizer.fingerprint
    plain = built(SentencePiece(path=str(tmp_path / "t.model")))
    other = built(SentencePiece(path=str(tmp_path / "t.model"), add_bos=True, add_eos=False))
    assert len({each.fingerprint for each in (tokenizer, plain, other)}) == 3
    assert (other.begin_id, other.last_id, other.end_id) == (1, None, 1)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    text = make_prose(2)
    assert theirs.encode(text) == [1, *tokenizer.encode(text)]
    assert theirs.eos_token_id == 2
