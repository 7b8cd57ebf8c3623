"""forge.prepare: what it writes against a plain loop, the same bytes however it came about, and
every refusal.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from data_helpers import build_section, files, make_prose, shards_of, tokens, written

from forge import prepare as verb
from forge.config.data.mixture import Mix
from forge.config.data.text import Pairs, Shards, Synthetic, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.data.preparing import shard_folder as preparation
from forge.data.preparing.cached import prepare_tokens
from forge.data.preparing.parts import corpus_parts
from forge.data.preparing.soundness import find_damage

DOCUMENTS = [make_prose(4, seed) for seed in range(80)]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "LEAST_PART", 2000)
    monkeypatch.setattr(preparation, "PARTS_AT_LEAST", 1)
    monkeypatch.setattr(preparation, "LARGEST_PART", 2000)


@pytest.fixture
def data(tmp_path: Path) -> Text:
    return written(tmp_path / "docs.jsonl", DOCUMENTS)


def made(out: Path, data: Any, section: Any = None, **options: Any) -> dict[str, Any]:
    return shards_of(out, data, section or BPE(vocab_size=300), **options)


def test_shards_are_what_a_plain_loop_makes(tmp_path: Path, data: Text) -> None:
    manifest = made(tmp_path / "out", data)
    plain = tokenizers.Tokenizer.from_file(str(tmp_path / "out/tokenizer/tokenizer.json"))
    end = plain.token_to_id("<|endoftext|>")
    seen = []
    for split in ("train", "val"):
        ids = tokens(tmp_path / "out", split)
        offsets = np.fromfile(tmp_path / "out" / split / "documents.i64", "<i8").tolist()
        assert (offsets[0], offsets[-1]) == (0, len(ids))
        here = [ids[a:b] for a, b in itertools.pairwise(offsets)]
        texts = [plain.decode(each[:-1]) for each in here]
        assert here == [[*plain.encode(text).ids, end] for text in texts]
        assert texts == [text for text in DOCUMENTS if text in texts], "in order, each once"
        assert manifest["splits"][split]["documents"] == len(texts) > 5
        assert manifest["splits"][split]["tokens"] == len(ids)
        assert manifest["splits"][split]["bytes"] == sum(len(text.encode()) for text in texts)
        seen += texts
    assert sorted(seen) == sorted(DOCUMENTS)
    assert len(list((tmp_path / "out/train").glob("0*.bin"))) > 5
    assert manifest["read"] == {
        "documents": 80,
        "empty": 0,
        "duplicates": 0,
        "duplicate_bytes": 0,
        "near_duplicates": 0,
        "near_duplicate_bytes": 0,
        "repetitive": 0,
        "repetitive_bytes": 0,
        "files_without_text": 0,
    }


def test_they_are_trained_on_as_those_of_the_cache(tmp_path: Path, data: Text) -> None:
    """Also a document that is cut into many pieces and lies in many parts."""
    (tmp_path / "long.txt").write_text(make_prose(900))
    for each in (data, Text(path=f"{tmp_path}/long.txt", cache_dir=data.cache_dir)):
        out = tmp_path / f"out{len(each.path)}"
        made(out, each)
        cached = prepare_tokens(each, BPE(vocab_size=300), build=build_section)
        own = TokenizerFile(path=str(out / "tokenizer" / "tokenizer.json"))
        read = prepare_tokens(Shards(path=str(out)), own, build=build_section)
        assert read.manifest["files"] == len(list(out.glob("*/0*.bin")))
        for split in ("train", "val"):
            one, other = getattr(cached, split), getattr(read, split)
            assert one.read(0, len(one)).tolist() == other.read(0, len(other)).tolist()
        assert find_damage(out) == []


def test_the_targets_of_pairs_are_kept(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n} + 1 =", "response": f" {n + 1}"} for n in range(300)]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = Pairs(path=f"{tmp_path}/x.jsonl", cache_dir=f"{tmp_path}/cache", val_fraction=0.2)
    made(tmp_path / "out", data, Bytes())
    store = prepare_tokens(Shards(path=f"{tmp_path}/out"), Bytes(), build=build_section).train
    ids, counted = store.read(0, len(store)), store.counted
    assert counted is not None
    learnt = bytes(id % 256 for id in ids[counted.read(0, len(store)) == 1]).decode()
    held = bytes(id % 256 for id in ids[counted.read(0, len(store)) == 0]).decode()
    assert {int(text) for text in learnt.split("\0")[:-1]} < {*range(1, 301)}
    assert [int(text) + 1 for text in held.split(" + 1 =")[:-1]] == [
        int(text) for text in learnt.split("\0")[:-1]
    ]
    assert find_damage(tmp_path / "out") == []


def test_the_number_of_processes_makes_no_difference(tmp_path: Path, data: Text) -> None:
    said: list[tuple[str, int, int, int]] = []
    made(tmp_path / "one", data)
    made(tmp_path / "two", data, processes=2, progress=lambda *each: said.append(each))
    assert files(tmp_path / "one") == files(tmp_path / "two")
    done = [each[1:3] for each in said if each[0] == "tokenise"]
    assert done == sorted(done)
    assert done[-1][0] == done[-1][1]
    assert len(done) > 5


PROGRAM = """if True:
    import sys
    from forge import prepare
    from forge.data.preparing import shard_folder as preparation
    if __name__ == "__main__":
        preparation.LEAST_PART = preparation.LARGEST_PART = 2000
        preparation.PARTS_AT_LEAST = 1
        sys.exit(prepare.main(sys.argv[1:]))
"""


@pytest.mark.nightly
def test_after_kill_9_it_goes_on_and_the_shards_are_the_same(tmp_path: Path) -> None:
    """What was complete is not made again, and no process is left behind."""
    written(tmp_path / "docs.jsonl", [make_prose(4, seed) for seed in range(3000)])
    (tmp_path / "program.py").write_text(PROGRAM)
    texts = ["data=text", f"data.path={tmp_path}/docs.jsonl", f"data.cache_dir={tmp_path}/cache"]

    def command(out: Path) -> list[str]:
        program = [sys.executable, str(tmp_path / "program.py"), str(out), "--processes", "2"]
        return [*program, *texts, "tokenizer.vocab_size=300", "run.device=cpu"]

    out, parts = tmp_path / "out", tmp_path / "out" / ".parts"
    child = subprocess.Popen(command(out), start_new_session=True, stderr=subprocess.DEVNULL)
    while len(list(parts.glob("0*"))) < 3:
        assert child.poll() is None
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    deadline = time.monotonic() + 20
    while subprocess.run(["pgrep", "-s", str(child.pid)], capture_output=True).stdout:
        assert time.monotonic() < deadline, "a process is left"
        time.sleep(0.05)
    kept = {path.name: path.stat().st_ino for path in parts.glob("0*/train/00000.bin")}
    assert not (out / "manifest.json").exists()
    again = subprocess.run(command(out), capture_output=True, text=True, check=True)
    assert "continue: " in again.stderr
    found = {path.stat().st_ino for path in (out / "train").glob("0*.bin")}
    assert {*kept.values()} <= found
    assert not parts.exists()
    subprocess.run(command(tmp_path / "undisturbed"), check=True, capture_output=True)
    assert files(out) == files(tmp_path / "undisturbed")


def test_a_kill_while_parts_become_shards(
    tmp_path: Path, data: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path / "undisturbed", data)
    gather, calls = preparation._gather, []

    def killed(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return gather(*given)

    monkeypatch.setattr(preparation, "_gather", killed)
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "out", data)
    assert list((tmp_path / "out/train").glob("0*.bin"))
    made(tmp_path / "out", data)
    assert files(tmp_path / "out") == files(tmp_path / "undisturbed")


def test_documents_that_came_before_are_left_out_and_counted(tmp_path: Path) -> None:
    long = make_prose(60)
    texts = [*DOCUMENTS[:20], DOCUMENTS[3], "", long, DOCUMENTS[19], long, DOCUMENTS[3] + " "]
    data = written(tmp_path / "x.jsonl", texts)
    manifest = made(tmp_path / "out", data, Bytes(), deduplicate=True)
    kept = [*DOCUMENTS[:20], long, texts[-1]]
    made(tmp_path / "plain", written(tmp_path / "y.jsonl", kept), Bytes())
    assert manifest["read"] == {
        "documents": 26,
        "empty": 1,
        "duplicates": 3,
        "duplicate_bytes": sum(len(text.encode()) for text in (texts[3], texts[19], long)),
        "near_duplicates": 0,
        "near_duplicate_bytes": 0,
        "repetitive": 0,
        "repetitive_bytes": 0,
        "files_without_text": 0,
    }
    for split in ("train", "val"):
        assert tokens(tmp_path / "out", split) == tokens(tmp_path / "plain", split)


def test_few_parts_are_in_memory(
    tmp_path: Path, data: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corpus is read no further than two parts a process ahead."""
    read, most = [0], [0]

    def counted(*given: Any, **options: Any) -> Any:
        for part in corpus_parts(*given, **options):
            read[0] += 1
            done = len(list((tmp_path / "out" / ".parts").glob("0*")))
            most[0] = max(most[0], read[0] - done)
            yield part

    monkeypatch.setattr(preparation, "corpus_parts", counted)
    made(tmp_path / "out", data, processes=2)
    assert read[0] > 8
    assert most[0] <= 2 * 2 + 2


def refusal(out: Path, data: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        made(out, data, **options)
    return str(caught.value).replace(str(out), "OUT")


def test_refusals(tmp_path: Path, data: Text, monkeypatch: pytest.MonkeyPatch) -> None:
    out, other = tmp_path / "out", "Remove it, or name another directory."
    tokens = "data: these are tokens already. Train on them as they are."
    assert refusal(out, Synthetic()) == tokens
    several = "data: shards are of one corpus, and this mixes several. Prepare each by itself; "
    mix = Mix(sources={"a": {"data": "python"}})
    assert refusal(out, mix) == f"{several}data=mix mixes shards too."
    made(out, data)
    said = f"OUT: it was made with another deduplicate, tokenizer. {other}"
    assert refusal(out, data, section=BPE(vocab_size=301), deduplicate=True) == said
    (out / "manifest.json").write_text("{}")
    assert refusal(out, data) == f"OUT: manifest.json cannot be read ('manifest'). {other}"
    (out / "manifest.json").unlink()
    said = "OUT: it has files that forge.prepare did not make. Name another directory."
    assert refusal(out, data) == said
    empty = written(tmp_path / "e.jsonl", ["", ""])
    assert refusal(tmp_path / "e", empty).endswith(
        "(1 file(s), all empty). Give some text to train on."
    )

    def failing(error: Exception) -> str:
        def encode(*given: Any, **options: Any) -> int:
            raise error

        monkeypatch.setattr(preparation, "encode_part", encode)
        return refusal(tmp_path / "new", data).replace(f"{tmp_path}/new", "OUT")

    assert failing(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))) == (
        "OUT: cannot write there (No space left on device). Make room or name another directory; "
        "the same command continues with what is made."
    )
    assert failing(BrokenProcessPool()) == (
        "OUT: a process that tokenises was ended, most often because memory ran out. "
        "The same command continues, with --processes fewer at a time."
    )


def test_a_split_without_its_tokenizer_still_knows_it(tmp_path: Path, data: Text) -> None:
    made(tmp_path / "out", data)
    (tmp_path / "out" / "train").rename(tmp_path / "alone")
    own = TokenizerFile(path=str(tmp_path / "out" / "tokenizer" / "tokenizer.json"))
    alone = Shards(path=str(tmp_path / "alone"))
    assert len(prepare_tokens(alone, own, build=build_section).train) > 1000
    with pytest.raises(ValueError) as caught:
        prepare_tokens(alone, Bytes(), build=build_section)
    what = "these shards were made with another tokenizer. Choose theirs."
    assert str(caught.value) == f"data.path = {tmp_path}/alone: {what}"


def overwrite(path: Path, place: int, value: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + len(value)] = value
    path.write_bytes(content)


DAMAGES: dict[str, tuple[Any, str]] = {
    "flipped": (
        lambda out: overwrite(out / "train/00002.bin", 10, b"\x01"),
        "train: 00002.bin does not have the content that was written",
    ),
    "torn": (
        lambda out: os.truncate(out / "train/00001.bin", 10),
        "train/00001.bin has 10 bytes instead of",
    ),
    "missing": (lambda out: (out / "val/00000.bin").unlink(), "val/00000.bin is missing"),
    "ids": (
        lambda out: overwrite(out / "train/00000.bin", 0, b"\xff\xff"),
        "train: 00000.bin has the token 65535 of 300 ids",
    ),
    "offsets": (
        lambda out: overwrite(out / "val/documents.i64", 8, b"\x01\x00"),
        "val: documents.i64 does not have the places where documents end",
    ),
    "index": (
        lambda out: overwrite(out / "train/index.json", 30, b"7"),
        "train/index.json does not have the content that was written",
    ),
    "tokenizer": (
        lambda out: overwrite(out / "tokenizer/tokenizer.json", 9, b"?"),
        "tokenizer/tokenizer.json does not have the content that was written",
    ),
    "manifest": (lambda out: (out / "manifest.json").unlink(), "manifest.json is missing"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_validation_finds(
    tmp_path: Path, data: Text, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hurt, said = DAMAGES[name]
    made(tmp_path / "out", data)
    assert verb.main([str(tmp_path / "out"), "--validate"]) == 0
    assert capsys.readouterr().out.endswith("all of it is as it was written\n")
    hurt(tmp_path / "out")
    assert verb.main([str(tmp_path / "out"), "--validate"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(line.strip().startswith(said) for line in lines), lines
    assert lines[-1] == "  -> remove it and prepare it again"


SUMMARY = """\
OUT, of DIR/docs.jsonl
  read   4 documents of 1 file
  train  TRAIN
  val    VAL
  left out: 1 empty document, 1 document that came before (210 bytes)
  train on it: data=shards data.path=OUT tokenizer=file tokenizer.path=OUT/tokenizer
"""


def test_the_verb_says_what_it_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["a" * 300, "b" * 210, "", "b" * 210]
    data = written(tmp_path / "docs.jsonl", texts)
    words = [str(tmp_path / "out"), "--processes", "1", "--deduplicate", "data=text"]
    words += [f"data.path={data.path}", f"data.cache_dir={data.cache_dir}", "tokenizer=bytes"]
    assert verb.main([*words, "run.device=cpu"]) == 0
    shown = capsys.readouterr()
    (a, b) = ("301 tokens, 1 document, 300 bytes", "211 tokens, 1 document, 210 bytes")
    text = shown.out.replace(str(tmp_path / "out"), "OUT").replace(str(tmp_path), "DIR")
    assert text in (
        SUMMARY.replace("TRAIN", a).replace("VAL", b),
        SUMMARY.replace("TRAIN", b).replace("VAL", a),
    )
    lines = shown.err.splitlines()
    stages = dict.fromkeys(line.partition(":")[0] for line in lines)
    assert list(stages) == ["read the corpus", "make the tokenizer", "tokenise"]
    assert lines[-1].startswith("tokenise: 100.0%, 512 tokens, ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "OUT   [command line]\n     one directory is made, and 0 are named."),
        (["a", "b"], "OUT   [command line]\n     one directory is made, and 2 are named."),
        (["a", "--processes", "0"], "--processes\n     at least one process tokenises."),
        (["a", "data=nope"], "data=nope   [command line]\n     there is no data named 'nope'"),
    ],
)
def test_refusals_of_the_verb(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb.main(words) == 2
    assert said in capsys.readouterr().err
