"""Tokens that are added to tokenizers of every kind, beside what transformers adds to them."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sentencepiece
from data_helpers import make_prose
from helpers.refusing import problems
from transformers import PreTrainedTokenizerFast

import forge
from forge.config.data.text import HeldOut, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer import Tokenizer as Section
from forge.config.tokenizers.tokenizer_files import SentencePiece, Tiktoken, TokenizerFile
from forge.data.text.corpus import text_files
from forge.data.text.split import TrainingText, split_corpus
from forge.data.tokenizers.sentencepiece import sentencepiece as sentencepiece_of
from forge.data.tokenizers.tiktoken import tiktoken
from forge.data.tokenizers.tokenizer import Tokenizer, byte_ids, load_file, train_bpe

ORDINARY, SPECIAL = ["<think>", "[X]"], ["<|tool|>"]
ADDED = {"add_tokens": ORDINARY, "add_special_tokens": SPECIAL}
SAID = "so<think>it[X] is <|tool|>."


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TrainingText:
    path = tmp_path_factory.mktemp("text") / "my.txt"
    path.write_text(make_prose(600) + SAID)
    corpus = text_files(Text(path=str(path)))
    return TrainingText(splits=(split_corpus(corpus, HeldOut(0.1)),))


def of_sentencepiece(folder: Path) -> SentencePiece:
    lines, prefix = make_prose(600).splitlines() or ["a"], str(folder / "t")
    more = {"vocab_size": 300, "model_type": "bpe", "byte_fallback": True}
    source = iter(lines * 3)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=source, model_prefix=prefix, hard_vocab_limit=False, **more
    )
    return SentencePiece(path=f"{prefix}.model")


def of_tiktoken(folder: Path) -> Tiktoken:
    lines = [f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256)]
    (folder / "bytes.tiktoken").write_text("".join(lines))
    return Tiktoken(path=str(folder / "bytes.tiktoken"), special_tokens=["<|endoftext|>"])


def of_file(folder: Path) -> TokenizerFile:
    byte_ids(Bytes(), text=None).save(folder)  # type: ignore[arg-type]
    return TokenizerFile(path=str(folder / "tokenizer.json"))


KINDS: dict[str, tuple[Callable[[Path], Section], Callable[..., Tokenizer]]] = {
    "bytes": (lambda folder: Bytes(), byte_ids),
    "bpe": (lambda folder: BPE(vocab_size=300), train_bpe),
    "file": (of_file, load_file),
    "sentencepiece": (of_sentencepiece, sentencepiece_of),
    "tiktoken": (of_tiktoken, tiktoken),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_gets_the_next_id(kind: str, text: TrainingText, tmp_path: Path) -> None:
    make, build = KINDS[kind]
    section = make(tmp_path)
    plain, ours = build(section, text=text), build(replace(section, **ADDED), text=text)
    assert replace(section, **ADDED).n_ids == ours.vocab_size == plain.vocab_size + 3

    plain.save(tmp_path / "plain")
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path / "plain")
    theirs.add_tokens(ORDINARY)
    theirs.add_special_tokens({"additional_special_tokens": SPECIAL})
    first = plain.vocab_size
    assert theirs.convert_tokens_to_ids(ORDINARY + SPECIAL) == [first, first + 1, first + 2]
    ids = ours.encode(SAID)
    assert (ids.count(first), ids.count(first + 1), ids.count(first + 2)) == (1, 1, 0)
    marked, _ = ours.encode_marked([SAID])[0]
    assert marked.count(first + 2) == 1
    if kind != "sentencepiece":  # of which transformers normalises the tokens too
        assert marked == theirs(SAID, add_special_tokens=False).input_ids
        assert ours.decode(marked) == SAID
    assert len(ours.token_bytes()) == first + 3

    ours.save(tmp_path / "saved")
    again = Tokenizer.load(tmp_path / "saved")
    assert (again.encode(SAID), again.fingerprint) == (ids, ours.fingerprint)
    assert plain.with_added(replace(section, **ADDED)).encode(SAID) == ids


def test_a_token_of_a_trained_vocabulary_is_refused(text: TrainingText) -> None:
    """Which no rule can know before it is trained."""
    with pytest.raises(
        ValueError, match=r"^tokenizer\.add_tokens: e is there already, with the id"
    ):
        train_bpe(BPE(vocab_size=300, add_tokens=["<a>", "e"]), text=text)


def test_ids_with_gaps_are_refused(text: TrainingText, tmp_path: Path) -> None:
    """The library numbers what is added otherwise when it reads the file again."""
    gaps = replace(of_tiktoken(tmp_path), special_tokens=None, **ADDED)
    with pytest.raises(ValueError, match="<think> gets the id 261, and the next one is 277"):
        tiktoken(gaps, text=text)


def test_tokens_are_typed_without_quotes() -> None:
    names = ["<think>", "</think>", "[X]", "007", "true", "a b"]
    typed = [f"tokenizer.add_tokens=[{','.join(names)}]", "tokenizer.add_special_tokens=['<,>',b]"]
    tokenizer = forge.compose(typed).validate().config.tokenizer
    assert (list(tokenizer.add_tokens), list(tokenizer.add_special_tokens)) == (names, ["<,>", "b"])
    (refused,) = problems(["tokenizer.add_tokens=<a>,<b>"])
    assert refused.fix == "tokenizer.add_tokens=[<a>,<b>]"
