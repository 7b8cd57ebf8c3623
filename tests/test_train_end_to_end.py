"""Runs as a person starts them: processes, signals, and errors on the terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.tiny import TINY

SAMPLES = [
    "metrics.enable_console=true",
    "eval.enabled=true",
    "eval.interval=3",
    "eval.steps=2",
    "eval.sample_prompts=[ship]",
    "eval.sample_tokens=8",
]
ENDLESS = ["train.max_steps=1000000"]
HANGING_SAVE = (
    "import sys, time; from forge import worker; "
    "from forge.training.checkpoints.checkpoint import Checkpointer as C; "
    "C.save = lambda *a, **k: time.sleep(60); sys.exit(worker.main(sys.argv[1:]))"
)
MAKE_ONLY = (
    "import sys; from forge import cli; from forge.rundir import directory; "
    "c, r = cli.resolved(sys.argv[1:]); print(directory.create(r, overrides=c.overrides)[0])"
)
FROM_PYTHON = (
    "import sys, forge; found = forge.train(forge.compose(sys.argv[1:])); "
    "print(found.status, found.reason, found.step)"
)
STOPS = "finishing this step, then saving; once more ends at once"
Process = subprocess.Popen[str]


@pytest.fixture
def command(text_file: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """forge.train of a small model into tmp_path/run."""
    place = ["data=text", f"data.path={text_file}", f"run.dir={tmp_path / 'run'}"]
    return lambda *overrides: [sys.executable, "-m", "forge.train", *place, *TINY, *overrides]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


def result(path: Path) -> dict[str, object]:
    return json.loads((path / "result.json").read_text())


def rows(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def checkpoints(path: Path) -> list[str]:
    return sorted(p.name for p in (path / "checkpoints").iterdir())


def test_a_run_shows_what_it_does_and_ends_with_a_summary(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Inline it is the same run, to the byte of what it logs."""
    done, path = run(command(*SAMPLES)), tmp_path / "run"
    assert (done.returncode, done.stderr) == (0, "")
    found = result(path)
    assert {name: found[name] for name in ("status", "reason", "step", "tokens")} == {
        "status": "finished",
        "reason": "end",
        "step": 6,
        "tokens": 6 * 4 * 16,
    }
    assert checkpoints(path) == ["step_6"]
    assert f"run directory: {path}" in done.stdout
    said = done.stdout.splitlines()
    assert said[1] == "start: load torch on 1 rank"
    first = next(number for number, line in enumerate(said) if line.startswith("  model "))
    assert said[first : first + 4] == first_lines(path)
    assert not set(done.stdout) & {"\x1b", "\r", "\x08"}, "control characters in a pipe"
    assert "all steps done, after 6 steps and 384 tokens" in done.stdout
    assert f"python -m forge.generate {path} --prompt" in done.stdout
    metrics = rows(path / "metrics.jsonl")
    assert [row["step"] for row in metrics if "eval/loss" in row] == [3, 6]
    assert found["metrics"]["eval/loss"] == metrics[-1]["eval/loss"]  # type: ignore[index]
    (sample,) = rows(path / "samples.jsonl")
    assert (sample["step"], sample["prompt"]) == (6, "ship")
    assert "--- sample at step 6 ---\nship" in done.stdout
    inline = run(command(*SAMPLES, "run.inline=true", f"run.dir={tmp_path / 'inline'}"))
    assert inline.returncode == 0
    logged = (tmp_path / "inline" / "metrics.jsonl").read_bytes()
    assert logged == (path / "metrics.jsonl").read_bytes()


def first_lines(path: Path) -> list[str]:
    """What the run begins with, of six steps of the small model, from what it left."""
    splits = json.loads((path / "data.json").read_text())["splits"]
    tokens = [f"{splits[name]['tokens']:,}" for name in ("train", "val")]
    block = 4 * 16 * 16 + 3 * 16 * 32 + 2 * 16 + 2 * 8  # attention, feed-forward, norms, of heads
    parameters = 300 * 16 + 2 * block + 16
    config = (path / "config.yaml").read_text()
    text = re.search(r"  path: (.*/text.txt)", config)[1]  # type: ignore[index]
    return [
        f"  model   decoder of 2 layers, width 16: {parameters:,} parameters",
        f"  data    text {text}: {tokens[0]} tokens to train on, {tokens[1]} to validate on",
        "  layout  single: 1 rank on cpu, fp32",
        "  steps   6 of 4 x 16 = 64 tokens, muon at 0.01, adamw at 0.01; 384 tokens in all",
    ]


def test_on_a_terminal_a_bar_moves_with_every_step_and_lines_scroll_above(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """Between logs too, which are none but the last here."""
    shown, main = bytearray(), pty.openpty()
    words = command("metrics.enable_console=true", "metrics.log_interval=1000")
    words += ["train.max_steps=400", "data.num_workers=0"]
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    started = subprocess.Popen(words, stdout=main[1], stderr=main[1], env=environ)
    os.close(main[1])
    with suppress(OSError):  # the end of a terminal
        while got := os.read(main[0], 1 << 16):
            shown += got
    os.close(main[0])
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert started.wait() == 0, text
    drawn = {int(step) for step in re.findall(r"(\d+)/400 ", text)}
    assert {0, 400} < drawn, text
    drawn_last = [line.rpartition("\r")[2] for line in text.replace("\r\n", "\n").split("\n")]
    above = next(n for n, line in enumerate(drawn_last) if line.startswith("step 400/400 | loss "))
    assert re.match(r"━+ 400/400 loss .* ETA 0:00:00", drawn_last[above + 1])


@pytest.fixture
def running(command: Callable[..., list[str]], tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """A run without end that has made its first steps, in a process group of its own.

    code: Python in place of forge.train, which is given the overrides, or the run directory where
    it is a worker. in_background: as a command in the background of a script, with SIGINT ignored.
    """
    started: list[Process] = []

    def start(*overrides: str, code: str = "", in_background: bool = False) -> Process:
        words = command(*ENDLESS, *overrides)
        if code == FROM_PYTHON:
            words = [sys.executable, "-c", code, *words[3:]]
        elif code:
            made = run([sys.executable, "-c", MAKE_ONLY, *words[3:]])
            words = [sys.executable, "-c", code, made.stdout.strip()]
        ignored = signal.SIG_IGN if in_background else signal.default_int_handler
        before = signal.signal(signal.SIGINT, ignored)
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process: Process = subprocess.Popen(words, text=True, start_new_session=True, **both)
        signal.signal(signal.SIGINT, before)
        started.append(process)
        metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") > 2):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_saves_and_ends(
    running: Callable[..., Process], tmp_path: Path, number: int
) -> None:
    options = ["data.num_workers=2", "metrics.enable_console=true"]
    process, path = running(*options), tmp_path / "run"
    os.killpg(process.pid, number)
    out, err = process.communicate(timeout=30)
    name = signal.Signals(number).name
    assert process.returncode == 128 + number, err
    assert err.strip() == f"{name}: {STOPS}"
    found = result(path)
    assert (found["status"], found["reason"]) == ("stopped", name)
    assert checkpoints(path) == [f"step_{found['step']}"]
    assert f"{name}, after {found['step']} steps" in out


INTERRUPTED = {
    "one rank": ("", []),
    "inline": ("", ["run.inline=true"]),
    "two ranks": ("", ["parallel=fsdp", "run.num_processes=2"]),
    "from Python": (FROM_PYTHON, []),
}


@pytest.mark.nightly
@pytest.mark.parametrize(("code", "options"), INTERRUPTED.values(), ids=INTERRUPTED)
def test_an_interrupt_of_the_command_alone(
    running: Callable[..., Process], tmp_path: Path, code: str, options: list[str]
) -> None:
    """As `kill -INT` sends it, to a command that a script has started in the background."""
    process, path = running(*options, code=code, in_background=True), tmp_path / "run"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == (0 if code else 130), err
    assert err.strip() == f"SIGINT: {STOPS}"
    found = result(path)
    assert (found["status"], found["reason"]) == ("stopped", "SIGINT")
    assert checkpoints(path) == [f"step_{found['step']}"]
    assert not code or out.endswith(f"stopped SIGINT {found['step']}\n")


@pytest.mark.nightly
def test_a_second_signal_ends_at_once(running: Callable[..., Process], tmp_path: Path) -> None:
    process = running(code=HANGING_SAVE)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.3)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=5)
    assert process.returncode == 130
    assert not (tmp_path / "run" / "result.json").exists()


@pytest.mark.nightly
def test_a_stop_that_takes_too_long_is_ended(running: Callable[..., Process]) -> None:
    process = running("train.shutdown_timeout_sec=0.5", code=HANGING_SAVE)
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 143
    assert 0.4 < time.monotonic() - began < 5
    assert "the stop took longer than train.shutdown_timeout_sec=0.5" in err


@pytest.mark.ci("more0")
@pytest.mark.parametrize("more", [["run.num_processes=2", "parallel=fsdp"], ["run.inline=true"]])
def test_a_mistake_in_the_data_is_said_once_and_leaves_nothing(
    command: Callable[..., list[str]], tmp_path: Path, more: list[str]
) -> None:
    """No run directory, no folder above it, and no advice to continue."""
    bad, place = tmp_path / "bad.jsonl", f"{tmp_path}/new/run"
    bad.write_text('{"text": "fine"}\nnot json\n')
    done = run(command(f"data.path={bad}", f"run.dir={place}", *more))
    assert done.returncode == 2
    assert done.stderr == (
        f"\ndata.path: {bad} line 2 is not JSON (Expecting value at column 1). "
        "Every line must be one JSON object.\n"
        "(nothing was trained, and the run directory is removed again)\n"
    )
    assert done.stdout == f"run directory: {place}\ndata: read the corpus\n"
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


@pytest.mark.nightly
def test_what_was_there_before_a_refused_run_stays(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """A folder with a hidden file, and a run that continues after its text has become bad."""
    text, place = tmp_path / "mine.txt", tmp_path / "run"
    place.mkdir()
    (place / ".mine").touch()
    train = command(f"data.path={text}", "train.max_steps=2")
    text.write_bytes(b"\xff")
    assert run(train).returncode == 2
    assert [path.name for path in place.iterdir()] == [".mine"]
    text.write_text("".join(f"{i} the sea and the ship\n" for i in range(200)))
    assert run(train).returncode == 0
    text.write_bytes(b"\xff")
    done = run([*train, "train.max_steps=4"])
    assert done.returncode == 2
    again = f"the run continues with: python -m forge.resume {place}"
    assert done.stderr.splitlines()[-1] == f"(the traceback is in {place}/error.json; {again})"
    assert checkpoints(place) == ["step_2"]
