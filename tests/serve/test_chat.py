"""`python -m forge.chat` through its standard input, and refusals of both verbs."""

from __future__ import annotations

import io
import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from forge.chat import __main__ as chat
from forge.chat import talk
from forge.serve import __main__ as serve

Capture = pytest.CaptureFixture[str]


def talked(monkeypatch: pytest.MonkeyPatch, run: Path, lines: list[str], *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return chat.main([str(run), "--tokens", "9", *words])


def test_a_text_is_continued(talker: Path, loaded: Any, monkeypatch, capsys: Capture) -> None:
    """With the texts of forge.generate, line by line, and a word that this is no chat."""
    lines = ["the sea", "/regenerate", "/set temperature 0", "and", "/quit", "never"]
    assert talked(monkeypatch, talker, lines) == 0
    shown = capsys.readouterr()
    assert "learned from plain text" in shown.err

    def written(text: str, **how: Any) -> str:
        return loaded.generate(text, max_new_tokens=9, **how)

    second = written("the sea", seed=1)
    third = written(f"the sea{second}and", temperature=0, seed=2)
    assert shown.out == "".join(
        f"{text.lstrip(chr(10))}\n" for text in (written("the sea", seed=0), second, third)
    )


def test_a_conversation(
    talker: Path, loaded: Any, monkeypatch, capsys: Capture, tmp_path: Path
) -> None:
    """Answers are those of forge.generate --chat, the history included; it is saved as a row."""
    monkeypatch.setattr(talk, "talks", lambda trained: True)
    file = tmp_path / "talk.jsonl"
    lines = ["hi", "so", f"/save {file}", "/clear", "hi", f"/save {file}"]
    assert talked(monkeypatch, talker, lines, "--system", "Be kind.") == 0
    out = capsys.readouterr().out
    rows = [json.loads(line)["messages"] for line in file.read_text().splitlines()]
    assert [turn["role"] for turn in rows[0]] == ["system", *["user", "assistant"] * 2]
    for turns, seed in ((rows[0][:2], 0), (rows[0][:4], 1), (rows[1][:2], 2)):
        answer = loaded.chat(turns, max_new_tokens=9, seed=seed)
        assert answer in out
        assert {"role": "assistant", "content": answer} in rows[seed // 2]


def test_commands_that_cannot_be(talker: Path, monkeypatch, capsys: Capture) -> None:
    lines = ["/nothing", "/regenerate", "/save a.txt", "/save a.jsonl", "/set heat 1"]
    lines += ["/set top_p 2", "/set top_k x", "/system Be kind.", "a " * 200, "/help"]
    assert talked(monkeypatch, talker, lines) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    for said in (
        "no command /nothing",
        "no answer yet",
        "ends with .jsonl",
        "nothing to save",
        "no option heat",
        "top_p=2.0: must be above 0",
        "top_k is a number, not 'x'",
        "no system turn",
        "/clear begins again",
        "/quit",
    ):
        assert said in shown.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--tokens", "0"], "--tokens 0: must be at least 1"),
        (["--stop", ""], "--stop ''"),
        (["--temperature", "-1"], "temperature=-1.0: must be at least 0"),
        (["--system", "Be kind."], "--system: this run learned from plain text"),
    ],
)
def test_options_of_chat(talker: Path, capsys: Capture, words: list[str], said: str) -> None:
    assert chat.main([str(talker), *words]) == 2
    assert said in capsys.readouterr().err


def test_what_cannot_be_served(talker: Path, tmp_path: Path, monkeypatch, capsys: Capture) -> None:
    """A run without a checkpoint, a taken port, an impossible number, a missing extra."""
    assert serve.main([str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert serve.main([str(talker), "--slots", "0"]) == 2
    assert "--slots 0: must be at least 1" in capsys.readouterr().err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert serve.main([str(talker), "--port", port]) == 2
    assert f"cannot listen at 127.0.0.1, port {port}" in capsys.readouterr().err
    monkeypatch.setattr(serve, "NEEDED", ("starlette", "no_such_server"))
    assert serve.main([str(talker)]) == 2
    assert capsys.readouterr().err == (
        "forge.serve needs no_such_server: pip install 'forge-lm[serve]'\n"
    )
