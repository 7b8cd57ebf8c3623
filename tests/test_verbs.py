"""`python -m forge`: its verbs, their help, and what the tab key completes."""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forge import __main__, completion, verbs
from forge.completion import query_line

KNOWN = verbs.verbs()


def test_every_verb_is_listed_with_what_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main([]) == 0
    listed = capsys.readouterr().out.splitlines()
    for name, verb in KNOWN.items():
        assert f"  {name:<12} {verb.what}" in listed
    assert {"train", "check", "resume", "report", "runs", "evaluate", "doctor"} <= set(KNOWN)
    assert "worker" not in KNOWN


@pytest.mark.parametrize("name", KNOWN)
def test_the_help_of_a_verb_ends_with_its_examples(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(KNOWN[name].module)
    with contextlib.suppress(SystemExit):
        assert module.main(["--help"]) == 0
    shown = capsys.readouterr().out.rstrip().splitlines()
    examples = [f"  {line}" for line in KNOWN[name].examples]
    assert shown[-len(examples) - 1 :] == ["examples:", *examples]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["chek"],
            "  1. chek   [command line]\n     forge has no such verb.\n     -> did you mean",
        ),
        (["seed=1"], "     -> forge train seed=1 ...\n"),
        (["zzzzz"], "     -> forge --help lists them\n"),
        (["eval"], "     -> forge train eval.enabled=true"),
        (["ls"], "     -> forge runs lists"),
        (["sweep"], "     -> forge train -m "),
        (["api"], "     -> forge serve RUN"),
        (["finetune"], "     -> forge train objective=sft data=chat"),
    ],
)
def test_a_word_that_is_no_verb(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(words) == 2
    assert said in capsys.readouterr().err


def test_a_verb_gets_the_words_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "forge", "explain", "seed", "seed=7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "seed = 7")


LINES = {
    "forge tr": "train",
    "forge che": "check checkpoints",
    "forge train model=moe": "model=moe_small model=moe_tiny",
    "forge check -m model=tiny,sma": "model=tiny,small",
    "forge train optimizer=adamw optimizer.be": "optimizer.betas=",
    "forge train optimizer.be": "",
    "forge train optimizer.neste": "optimizer.nesterov=",
    "forge train optimizer.nesterov=": "optimizer.nesterov=false optimizer.nesterov=true",
    "forge train ++model.mixer": "++model.mixer.",
    "forge train run.device=c": "run.device=cpu run.device=cuda",
    "forge train train.max_steps=": "train.max_steps=1600",
    "forge train --cfg": "--cfg",
    "forge resume r": "",
    "forge resume runs/mine train.max_ste": "train.max_steps=",
    "forge status s": "",
    "forge nonsense x": "",
}


@pytest.mark.parametrize("line", LINES)
def test_what_a_line_is_completed_to(line: str) -> None:
    assert [text.strip() for text in query_line(line)] == LINES[line].split()


def test_options_of_a_folder_are_completed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [tiny, _self_]\n")
    assert query_line(f"forge train -cd {tmp_path} model=min") == ["model=mine"]


def test_bash_replaces_what_was_typed(tmp_path: Path) -> None:
    """Bash divides words at `=`, and replaces the part after it alone."""
    script = tmp_path / "forge"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m forge "$@"\n')
    script.chmod(0o755)
    ask = """
    COMP_LINE='forge train model=tin'; COMP_POINT=${#COMP_LINE}; _forge; echo "${COMPREPLY[*]}"
    COMP_LINE='forge train sch'; COMP_POINT=${#COMP_LINE}; _forge; echo "${COMPREPLY[*]}"
    COMP_WORDBREAKS=' '; COMP_LINE='forge train seed=1 model=tin'; COMP_POINT=${#COMP_LINE}; _forge
    echo "${COMPREPLY[*]}"
    """
    done = subprocess.run(
        ["bash", "-c", completion.BASH + ask],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["tiny", "scheduler. scheduler=", "model=tiny"], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_read_their_code(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    subprocess.run([shell, "-n"], input=completion.SHELLS[shell], text=True, check=True)


def test_a_shell_without_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert completion.main(["powershell"]) == 2
    assert "there is completion for bash, zsh, fish." in capsys.readouterr().err
