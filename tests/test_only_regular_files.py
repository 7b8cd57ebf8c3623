"""Pipes, sockets and devices where files are expected: refused at once, and no reader hangs."""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from example_sweep import Example

from forge import runs
from forge.config.data.chats import Chat
from forge.config.problems import ConfigError
from forge.config.regular import NotRegular
from forge.config.tokenizers import tiktoken_ranks
from forge.config.tokenizers.tokenizer_files import facts_of_file
from forge.data.text.corpus import matching
from forge.data.text.reading import open_bytes
from forge.data.tokens.token_files import token_file
from forge.families import folder, peft, shards, tokenizer
from forge.report import __main__ as report_verb
from forge.rundir.files import last_lines, read_json, read_rows, read_yaml

LONGEST = 20  # seconds


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A reader that waits at a pipe is interrupted."""

    def late(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("made", ["done", "partial"])
def test_a_run_with_pipes_leaves_the_others_listed(
    made: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Example(tmp_path / "sweeps" / "rates", steps=200)
    example.done(["optimizer.lr=0.002"], seed=2)
    state = {"at": 100} if made == "partial" else {}
    bad = getattr(example, made)(["optimizer.lr=0.001"], seed=1, **state)
    monkeypatch.chdir(tmp_path)
    files = {file.name for file in bad.path.iterdir() if file.is_file()}
    for name in sorted(files | {"run.lock", "notes.json", "derived.json", "samples.jsonl"}):
        content = (bad.path / name).read_bytes() if name in files else b""
        pipe(bad.path / name)
        assert (name, runs.main(["--json"])) == (name, 0)
        assert any("lr-0.002" in row["path"] for row in json.loads(capsys.readouterr().out)), name
        assert (name, report_verb.main(["sweeps/rates"])) == (name, 0)
        assert "lr=0.002" in capsys.readouterr().out, name
        (bad.path / name).unlink()
        if name in files:
            (bad.path / name).write_bytes(content)


def test_one_run_that_is_bad_is_refused_by_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="it is a FIFO, and only regular files are opened"):
        read_rows(pipe(tmp_path / "attempts.jsonl"))
    assert last_lines(tmp_path / "attempts.jsonl") == []


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a device"])
def test_no_reader_opens_what_is_no_regular_file(kind: str, tmp_path: Path) -> None:
    for name in (folder.CONFIG, peft.CONFIG, shards.SINGLE, "tokenizer_config.json", "x.gz", "x"):
        if kind == "a FIFO":
            pipe(tmp_path / name)
        elif kind == "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(tmp_path / name))
        else:
            (tmp_path / name).symlink_to("/dev/zero")
    place = str(tmp_path / "x")
    refused: list[tuple[Callable[..., object], object]] = [
        (folder.read_folder, tmp_path),
        (peft.read_adapter_config, tmp_path),
        (shards._header, tmp_path / shards.SINGLE),
        (tiktoken_ranks.read_ranks, tmp_path / "x"),
        (Chat(chat_template_path=place).template, None),
        (open_bytes, tmp_path / "x.gz"),
        (open_bytes, tmp_path / "x"),
        (read_json, tmp_path / "x"),
        (read_yaml, tmp_path / "x"),
        (token_file, tmp_path / "x"),
    ]
    for read, path in refused:
        with pytest.raises((OSError, ValueError), match=kind):
            read(path) if path else read()
    assert not tokenizer.begins_documents(tmp_path)
    for reader in ("json", "sentencepiece", "tiktoken"):
        assert kind in str(
            facts_of_file(reader, place, *(("gpt2", None) if reader == "tiktoken" else ()))
        )
    with pytest.raises(ValueError, match="a pipe, a socket or a device"):
        matching(place)
    assert pickle.loads(pickle.dumps(NotRegular(place, stat.S_IFIFO))).filename == place
