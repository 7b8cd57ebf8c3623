"""Tokenizers: exact round trips, byte counts against the text, foreign files, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from data_helpers import make_prose
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers, processors
from transformers import AutoTokenizer

from forge.config.data.text import HeldOut, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import Facts, TokenizerFile
from forge.data.text.corpus import text_files
from forge.data.text.split import RandomText, TrainingText, split_corpus
from forge.data.tokenizers.tokenizer import Tokenizer, byte_ids, load_file, train_bpe


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TrainingText:
    path = tmp_path_factory.mktemp("text") / "x.txt"
    path.write_text(make_prose(1500) + "def f(x):\n    return x + 1  # größer €\n" * 50)
    return TrainingText(splits=(split_corpus(text_files(Text(path=str(path))), HeldOut(0.1)),))


@pytest.fixture(scope="module")
def bpe(text: TrainingText) -> Tokenizer:
    return train_bpe(BPE(vocab_size=600), text=text)


def word_level(words: str, specials: tuple[str, ...]) -> tokenizers.Tokenizer:
    vocab = {word: i for i, word in enumerate(words.split())}
    raw = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.add_special_tokens(list(specials))
    return raw


def saved(raw: tokenizers.Tokenizer, path: Path) -> str:
    raw.save(str(path))
    return str(path)


@settings(deadline=None, max_examples=300)
@given(sample=st.text())
def test_any_text_comes_back_and_its_bytes_add_up(bpe, sample) -> None:
    ids = bpe.encode(sample)
    assert bpe.decode(ids) == sample
    assert bpe.encode_batch([sample, ""]) == [ids, []]
    assert bpe.token_bytes()[ids].sum() == len(sample.encode())


def test_text_cannot_spell_the_end_token(bpe) -> None:
    ids = bpe.encode("a<|endoftext|>b")
    assert bpe.eos_id not in ids
    assert bpe.decode(ids) == "a<|endoftext|>b"
    assert bpe.token_bytes()[bpe.eos_id] == 0


def test_saved_loaded_and_read_by_transformers(bpe, tmp_path) -> None:
    bpe.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.fingerprint == bpe.fingerprint
    assert (loaded.eos_id, loaded.vocab_size) == (bpe.eos_id, 600)
    assert loaded.encode("a<|endoftext|>b") == bpe.encode("a<|endoftext|>b")
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    sample = "def whale(captain):\n    return 'größer'"
    assert theirs.encode(sample) == bpe.encode(sample)
    assert theirs.eos_token_id == bpe.eos_id


def test_training_is_the_same_in_another_process(bpe, text) -> None:
    program = f"""if True:
        from forge.config.data.text import HeldOut, Text
        from forge.config.tokenizers.tokenizer import BPE
        from forge.data.text.corpus import text_files
        from forge.data.text.split import RandomText, TrainingText, split_corpus
        from forge.data.tokenizers.tokenizer import train_bpe
        corpus = text_files(Text(path={text.splits[0].corpus.source!r}))
        text = TrainingText(splits=(split_corpus(corpus, HeldOut(0.1)),))
        print(train_bpe(BPE(vocab_size=600), text=text).fingerprint)
        import sys
        assert "torch" not in sys.modules
    """
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == bpe.fingerprint


def test_validation_text_is_not_seen(tmp_path) -> None:
    """A word of the validation split alone gives no merge."""
    path = tmp_path / "x.jsonl"
    words = ("zebra", "quokka", "lynx", "vixen")
    path.write_text("".join(json.dumps({"text": f"{word} " * 40}) + "\n" for word in words))
    split = split_corpus(text_files(Text(path=str(path))), HeldOut(0.3))
    train = "".join(piece.text for piece, is_validation in split.pieces() if not is_validation)
    tokenizer = train_bpe(BPE(vocab_size=1000), text=TrainingText(splits=(split,)))
    for word in words:
        assert (len(tokenizer.encode(f" {word}")) == 1) == (f" {word}" in train)


def test_a_small_text_gives_a_small_vocabulary_and_says_so(tmp_path, caplog) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "ab"}\n{"text": "abc"}\n{"text": "abcd"}\n')
    split = split_corpus(text_files(Text(path=str(path))), HeldOut(0.1))
    tokenizer = train_bpe(BPE(vocab_size=4096), text=TrainingText(splits=(split,)))
    held_out = [piece.text for piece, is_validation in split.pieces() if is_validation]
    entries = 257 + (2 if "abcd" in held_out else 3)
    assert tokenizer.vocab_size == entries
    (record,) = caplog.records
    assert record.getMessage() == (
        f"tokenizer.vocab_size=4096: the training text gives only {entries} entries, then nothing "
        "is left to merge; the tokenizer has these"
    )


def test_a_foreign_file_adds_and_cuts_nothing(tmp_path, text) -> None:
    raw = word_level("[UNK] the whale", ("<s>", "</s>"))
    tokens = [("<s>", 3), ("</s>", 4)]
    raw.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=tokens)
    raw.enable_truncation(max_length=2)
    raw.enable_padding(length=6)
    tokenizer = load_file(TokenizerFile(path=saved(raw, tmp_path / "t.json")), text=text)
    assert tokenizer.encode("the whale the whale") == [1, 2, 1, 2]
    assert tokenizer.encode_batch(["the", "whale the whale"]) == [[1], [2, 1, 2]]
    assert (tokenizer.eos_token, tokenizer.eos_id, tokenizer.vocab_size) == ("</s>", 4, 5)


@pytest.mark.parametrize("add_bos", [False, True])
@pytest.mark.parametrize("kind", ["template", "sequence", "roberta"])
def test_other_readers_add_what_was_trained_on(tmp_path, text, kind, add_bos) -> None:
    """Whatever the file's own post-processor adds; where offsets leave a space out stays."""
    raw = word_level("[UNK] the whale", ("<s>", "</s>"))
    tokens = [("<s>", 3), ("</s>", 4)]
    template = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=tokens)
    level = processors.ByteLevel(trim_offsets=True)
    raw.post_processor = {
        "template": template,
        "sequence": processors.Sequence([level, template]),
        "roberta": processors.RobertaProcessing(("</s>", 4), ("<s>", 3)),
    }[kind]
    section = TokenizerFile(path=saved(raw, tmp_path / "t.json"), add_bos=add_bos)
    facts = section.facts()
    assert isinstance(facts, Facts)
    assert (facts.first, facts.last) == ("<s>", "</s>")
    tokenizer = load_file(section, text=text)
    for folder in (tmp_path / "run", tmp_path / "export"):
        tokenizer.save(folder)
        trained = tokenizer.document(tokenizer.encode("the whale")).tolist()
        assert trained == [3, 1, 2, 4][not add_bos :]
        read = AutoTokenizer.from_pretrained(folder)
        assert [*read("the whale").input_ids, 4] == trained
        again = Tokenizer.load(folder)
        assert again.fingerprint == tokenizer.fingerprint
        tokenizer = again
    trims = json.loads((tmp_path / "export" / "tokenizer.json").read_text())["post_processor"]
    if kind != "template" and not add_bos:
        assert (trims["type"], trims["trim_offsets"]) == ("ByteLevel", True)


def test_an_end_that_a_file_adds_alone_is_known_and_not_exported(tmp_path, text) -> None:
    """As transformers reads the file, which the rule tokenizer.file_ends says."""
    raw = word_level("[UNK] the whale", ("<s>", "</s>"))
    own = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 4)])
    raw.post_processor = own  # type: ignore[assignment]
    (tmp_path / "theirs").mkdir()
    path = saved(raw, tmp_path / "theirs" / "tokenizer.json")
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>"}
    (tmp_path / "theirs" / "tokenizer_config.json").write_text(json.dumps(said))
    assert AutoTokenizer.from_pretrained(tmp_path / "theirs")("the whale").input_ids == [1, 2, 4]
    section = TokenizerFile(path=path)
    facts = section.facts()
    assert isinstance(facts, Facts)
    assert (facts.first, facts.last) == (None, "</s>")
    load_file(section, text=text).save(tmp_path / "export")
    assert AutoTokenizer.from_pretrained(tmp_path / "export")("the whale").input_ids == [1, 2]


@pytest.mark.parametrize("token", ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[EOS]"])
def test_usual_end_tokens_are_found(tmp_path, text, token) -> None:
    path = saved(word_level("[UNK] the", ("<pad>", token)), tmp_path / "t.json")
    assert load_file(TokenizerFile(path=path), text=text).eos_id == 3
    assert load_file(TokenizerFile(path=path, eos_token="<pad>"), text=text).eos_id == 2


UNK = "[UNK]"
HOLES = {UNK: 0, "the": 7, "</s>": 3}
PIECES = {"<unk>": 0, "<0xC3>": 1, "<0xA9>": 2, "▁the": 3, "▁": 4, "é": 5}


@pytest.mark.parametrize(
    ("model", "end", "expected"),
    [
        (models.WordLevel(HOLES, unk_token="[UNK]"), "</s>", [5, 0, 0, 0, 0, 0, 0, 3]),
        (
            models.BPE(PIECES, [], unk_token="<unk>", byte_fallback=True),
            "</s>",
            [5, 1, 1, 4, 1, 2, 0],
        ),
        (models.WordPiece({"[UNK]": 0, "wha": 1, "##le": 2}), "[EOS]", [5, 3, 2, 0]),
    ],
    ids=["holes", "sentencepiece", "word piece"],
)
def test_bytes_of_tokens(tmp_path, text, model, end, expected) -> None:
    """Ids count to the last, also with holes; a special token is no text."""
    raw = tokenizers.Tokenizer(model)
    raw.add_special_tokens([end])
    tokenizer = load_file(TokenizerFile(path=saved(raw, tmp_path / "t.json")), text=text)
    assert tokenizer.token_bytes().tolist() == expected


def test_messages_about_a_file(tmp_path, text, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    def refusal(**options: str) -> str:
        with pytest.raises(ValueError) as caught:
            load_file(TokenizerFile(**options), text=text)
        return str(caught.value)

    saved(word_level("[UNK] the", ("<pad>", "<cls>")), tmp_path / "t.json")
    (tmp_path / "bad.json").write_text("{}")
    assert refusal() == "tokenizer.path is empty. Give the path of a tokenizer.json."
    what = f"tokenizer.path = no.json: no such file or directory, seen from {tmp_path}."
    assert refusal(path="no.json") == f"{what} Give the path of a tokenizer.json."
    what = "tokenizer.path = bad.json: it is not a tokenizer.json of the tokenizers library."
    assert refusal(path="bad.json") == f"{what} Give the path of a tokenizer.json."
    (tmp_path / "odd.json").write_text('{"model": {"vocab": {"a": 0}}}')
    what = "tokenizer.path = odd.json: not a tokenizer.json of the tokenizers library ("
    assert refusal(path="odd.json").startswith(what)
    fix = "Set \"tokenizer.eos_token='<pad>'\", or another of <pad>, <cls>."
    what = (
        "tokenizer.eos_token: there is no token like <|endoftext|> that ends a document in t.json."
    )
    assert refusal(path="t.json") == f"{what} {fix}"
    what = "tokenizer.eos_token: there is no token </s> in t.json."
    assert refusal(path="t.json", eos_token="</s>") == f"{what} {fix}"


@pytest.mark.parametrize("kind", ["bpe", "word_level", "word_piece", "unigram"])
def test_what_is_known_before_it_is_built_is_what_it_is(tmp_path, bpe, text, kind) -> None:
    """The file is read as JSON, without the library."""
    vocab = {"[UNK]": 0, "the": 7, "</s>": 3}
    model = {
        "word_level": lambda: models.WordLevel(vocab, unk_token="[UNK]"),
        "word_piece": lambda: models.WordPiece(vocab, unk_token="[UNK]"),
        "unigram": lambda: models.Unigram([("[UNK]", 0.0), ("the", -1.0), ("</s>", -2.0)], 0),
    }
    raw = bpe._raw if kind == "bpe" else tokenizers.Tokenizer(model[kind]())
    for added in ([], ["<pad>", "<end>"]):
        raw.add_special_tokens(added)
        section = TokenizerFile(path=saved(raw, tmp_path / f"{len(added)}.json"))
        known, built = section.facts(), load_file(section, text=text)
        assert isinstance(known, Facts)
        assert known.n_ids == section.n_ids == built.vocab_size
        assert known.tokens == raw.get_vocab()
        assert section.end_token(known) == built.eos_token
        assert set(added) <= set(known.added)


def test_bytes_are_their_own_ids(tmp_path) -> None:
    tokenizer = byte_ids(Bytes(), text=None)
    text = "plain, \x00\t\n ümlaut €𝄞 <|endoftext|>" + "".join(map(chr, range(256)))
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.eos_id, tokenizer.vocab_size, Bytes().n_ids) == (256, 257, 257)
    assert tokenizer.token_bytes().tolist() == [1] * 256 + [0]
    tokenizer.save(tmp_path)
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode(text) == list(text.encode())


def test_bytes_need_no_library_and_are_what_the_library_makes_of_their_file():
    ours = byte_ids(Bytes(), text=None)
    library = tokenizers.Tokenizer.from_str(ours._raw.to_str())
    library.encode_special_tokens = True
    assert library.to_str() == ours._raw.to_str()
    theirs = Tokenizer(library, eos_token=ours.eos_token)
    assert (theirs.vocab_size, theirs.eos_id) == (ours.vocab_size, ours.eos_id)
    assert theirs.fingerprint == ours.fingerprint
    assert (theirs.token_bytes() == ours.token_bytes()).all()
    texts = ["", "plain", "<|endoftext|> is spelled", "Ünïcödé 漢字 \U0001f600\n\t\0"]
    assert theirs.encode_batch(texts) == ours.encode_batch(texts)
    for ids in ([*ours.encode(texts[3]), 256, 65], [0xE6, 0xBC, 65, 0xFF, 0xC3], list(range(256))):
        assert theirs.decode(ids) == ours.decode(ids)


def test_of_random_tokens_a_bpe_has_all_its_ids_and_learns_nothing() -> None:
    made = train_bpe(BPE(_target_="x", vocab_size=300), text=RandomText())
    assert made.vocab_size == 300
    assert len(made.encode("né")) == 3  # a token a byte
    assert made.decode(made.encode("né")) == "né"
