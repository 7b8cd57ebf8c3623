"""What a user sees on the console."""

from __future__ import annotations

import io
import logging
import math
from functools import partial
from pathlib import Path

import pytest
from helpers.fake_display import Display
from rich.console import Console

from forge.config.metrics import Metrics
from forge.training.callbacks.build_trackers import build_trackers
from forge.training.callbacks.console import LiveConsole, console_tracker

TRAINING = {
    "train/loss": 3.14159,
    "train/grad_norm": 1.2345,
    "lr": 3e-4,
    "tokens_per_second": 12345.6,
    "mfu": 0.4123,
}
GOLDEN = """\
step  10/100 | loss 3.1416 | lr 3.00e-04 | 12.3k tok/s | mfu 41.2% | grad 1.23
step  20/100 | loss 2.5000 | lr 3.00e-04 | 12.3k tok/s | mfu 41.2% | grad 1.23 | ETA 0:02:00
step  20/100 | eval loss 2.4000 | bits/byte 1.9000 | perplexity 11.02 | accuracy 33.3%
step  30/100 | loss nan | lr 3.00e-04 | 12.3k tok/s | mfu nan | grad inf | ETA 0:02:20
step 100/100 | loss 0.0001 | ETA 0:00:00
"""


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def script(console: Console | None, clock: Clock):
    """The logs of a short run: 10 steps in 15 seconds at first, then in 25."""
    tracker = console_tracker(100, console=console, clock=clock)
    tracker.log(10, TRAINING)
    clock.now += 15
    tracker.log(20, TRAINING | {"train/loss": 2.5})
    tracker.log(
        20,
        {
            "eval/loss": 2.4,
            "eval/bits_per_byte": 1.9,
            "eval/perplexity": 11.02318,
            "eval/token_accuracy": 1 / 3,
        },
    )
    clock.now += 25
    tracker.log(
        30, TRAINING | {"train/loss": math.nan, "train/grad_norm": math.inf, "mfu": math.nan}
    )
    tracker.log(30, {"memory/peak": 1.0})
    tracker.log(100, {"train/loss": 1e-4})
    tracker.close()


def test_plain_lines_where_there_is_no_terminal():
    stream = io.StringIO()
    script(Console(file=stream, width=40), Clock())
    assert stream.getvalue() == GOLDEN


def test_a_notebook_shows_one_line_in_place_of_all(monkeypatch, capsys):
    """The newest of training, and of evaluation below it."""
    display = Display(monkeypatch)
    script(None, Clock())
    first, second, evaluation, third, last = GOLDEN.splitlines()
    shown = [[training] for training in (first, second)]
    shown += [[training, evaluation] for training in (second, third, last)]
    assert display.shown == [["\n".join(lines) for lines in shown]]
    assert capsys.readouterr().out == ""


def test_plain_lines_go_to_stdout_and_the_file_gets_the_same_logs(tmp_path, capsys):
    trackers = build_trackers(Metrics(), tmp_path, total_steps=5, config_dict={}).open()
    trackers.log(5, {"train/loss": 1.0})
    trackers.close()
    assert capsys.readouterr().out == "step 5/5 | loss 1.0000\n"
    assert '"train/loss": 1.0' in (tmp_path / "metrics.jsonl").read_text()


class Terminal(io.StringIO):
    """A terminal that keeps what is written."""

    def isatty(self) -> bool:
        return True


def terminal(width: int, stream: Terminal) -> Console:
    return Console(
        file=stream, force_terminal=True, width=width, color_system=None, _environ={"TERM": "xterm"}
    )


@pytest.mark.parametrize(
    ("width", "bar", "shown", "cut"),
    [
        (
            120,
            "━" * 20,
            "100/100 loss 0.0001  12.3k tok/s  mfu 41.2% ETA 0:00:00",
            None,
        ),
        (50, "━" * 10, "100/100 loss 0.0001", "…"),
    ],
)
def test_live_bar_on_a_terminal(width, bar, shown, cut):
    stream, clock = Terminal(), Clock()
    tracker = console_tracker(100, console=terminal(width, stream), clock=clock)
    assert isinstance(tracker, LiveConsole)
    tracker.step(10)
    tracker.log(10, TRAINING)
    clock.now += 10
    tracker.step(100)
    tracker.log(100, TRAINING | {"train/loss": 1e-4})
    tracker.close()
    frames = [line.split("\x1b[2K")[-1].rstrip() for line in stream.getvalue().splitlines()]
    last = next(frame for frame in reversed(frames) if "100/100" in frame)
    assert last.startswith(bar + " ")
    assert shown in last
    assert "ETA 0:00:00" in last
    assert (cut is None) or cut in last
    assert len(last) <= width
    assert stream.getvalue().endswith("\x1b[?25h")  # the cursor is back


def test_every_step_moves_the_bar_without_a_line(monkeypatch):
    """From the step that the run resumes from; the rest is estimated between logs too."""
    stream, clock, shown = Terminal(), Clock(), []
    made = partial(console_tracker, console=terminal(100, stream), clock=clock)
    monkeypatch.setattr("forge.training.callbacks.console.console_tracker", made)
    trackers = build_trackers(Metrics(), Path(), total_steps=100, config_dict={})
    trackers.resumed_at = 40
    bar = trackers.open()._active["console"]
    for step in (41, 42, 60):
        shown.append(bar._progress.tasks[0].completed)
        clock.now += 2
        trackers.step(step)
    bar._progress.refresh()
    trackers.close()
    assert shown == [40, 41, 42]
    frame = [line for line in stream.getvalue().splitlines() if "/100" in line][-1]
    assert " 60/100 " in frame.split("\x1b[2K")[-1]
    assert "ETA 0:00:08" in frame  # 19 steps in 4 seconds
    assert "step" not in stream.getvalue()


def test_lines_prints_and_warnings_scroll_by_above_the_bar(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setattr("sys.stderr", stream)
    tracker = console_tracker(100, console=terminal(100, stream))
    tracker.log(50, TRAINING)
    tracker.log(50, {"eval/loss": 2.4})
    print("a [bold]sample[/bold]")
    logging.lastResort.handle(logging.makeLogRecord({"msg": "careful", "levelno": logging.WARNING}))
    tracker.close()
    lines = [line.split("\x1b[2K")[-1].rstrip() for line in stream.getvalue().splitlines()]
    logs = (f"step  50/100 | {rest}" for rest in ("loss 3.1416 | lr 3.00e-04", "eval loss 2.4000"))
    assert all(any(line.startswith(log) for line in lines) for log in logs)
    for text in ("a [bold]sample[/bold]", "careful"):
        assert text in lines, f"{text!r} is not a line of its own"


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_no_frame_is_written_into_a_file(variable, monkeypatch, tmp_path):
    """rich takes these, which CI and notebooks set, for the sign of a terminal."""
    monkeypatch.setenv(variable, "1")
    with (tmp_path / "log.txt").open("w+") as file:
        assert Console(file=file).is_terminal
        script(Console(file=file), Clock())
        file.seek(0)
        assert file.read() == GOLDEN
