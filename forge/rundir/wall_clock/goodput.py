"""Where the hours of a run went: the wall clock since its submission, by name, over all starts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge.config.numbers import time_span
from forge.rundir.files import rows_if_readable
from forge.rundir.signs import last_sign
from forge.rundir.wall_clock.record import UNBEGUN, read_record
from forge.rundir.wall_clock.starts import COMMAND, REQUEUE, RESTART, ROWS

MEANINGS = {
    "queue": "from the submission to the launch",
    "start": "from the launch to the first step",
    "compile": "torch.compile at work",
    "data_wait": "steps waiting for data",
    "step": "training",
    "rollout": "completions sampled and rewarded for training",
    "checkpoint": "training waiting for a save",
    "evaluation": "evaluation, tasks and samples",
    "end": "after the last step, until the processes are gone",
    "lost": "work after the last save of a start that died, made again by the next start",
    "restart": "starts after the first, and the time before one nobody asked for, queued or not",
    "idle": "nobody at work on the run",
}
USEFUL = ("step", "rollout")
WORK = ("step", "rollout", "data_wait", "checkpoint", "evaluation")


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """Seconds by name, in the order of MEANINGS, without names of no time; they sum to the wall
    clock. lost_steps: steps made again. starts: of processes.
    """

    seconds: Mapping[str, float]
    lost_steps: int = 0
    starts: int = 0

    @property
    def wall(self) -> float:
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The share of the wall clock in training that was not lost."""
        return sum(self.seconds.get(name, 0.0) for name in USEFUL) / max(self.wall, 1e-9)

    def plain(self) -> dict[str, Any]:
        """As in result.json."""
        seconds = {name: round(value, 3) for name, value in self.seconds.items()}
        counts = {"lost_steps": self.lost_steps, "starts": self.starts}
        return {
            "goodput": round(self.share, 4),
            "wall_seconds": round(self.wall, 3),
            "seconds": seconds,
            **counts,
        }

    def words(self) -> str:
        """A line: the share, and the largest names first."""
        parts = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        shown = [f"{name} {time_span(value)}" for name, value in parts if value >= 0.5]
        lost = f"; {self.lost_steps:,} steps made again" if self.lost_steps else ""
        return f"{self.share:.1%} of {time_span(self.wall)}: {', '.join(shown)}{lost}"


@dataclass(kw_only=True)
class Start:
    """A start of the run's processes. end: when they were gone, None if unknown. marks: seconds by
    name at each save, by step.
    """

    record: Mapping[str, Any]
    end: float | None = None
    marks: dict[int, Mapping[str, float]] = field(default_factory=dict)


def read_goodput(run_dir: Path, *, running: bool = False) -> Goodput | None:
    """The goodput of a run; None before its first start. running: the newest start is at work."""
    starts, submissions = read_starts(run_dir)
    if starts and running:
        starts[-1].end = time.time()
    elif starts and starts[-1].end is None:
        starts[-1].end = max(starts[-1].record["time"], last_sign(run_dir))
    return add_up(starts, submissions) if starts else None


def read_starts(run_dir: Path, *, newest: bool = True) -> tuple[list[Start], list[float]]:
    """All starts, oldest first, and the times of submissions. newest: the start of ledger.json
    too.
    """
    starts, submissions = list[Start](), list[float]()
    marks, exits = dict[int, Mapping[str, float]](), list[float]()

    def add(record: Mapping[str, Any]) -> None:
        end = next((when for when in exits if when >= record["time"] - 1.0), None)
        starts.append(Start(record=record, end=end, marks=dict(marks)))
        marks.clear()
        exits.clear()

    for row in rows_if_readable(run_dir / ROWS):
        event = row.get("event")
        if event == "submit":
            submissions.append(row["time"])
        elif event == "exit":
            exits.append(row["time"])
        elif event == "save":
            marks[row["step"]] = row["seconds"]
        elif event == "start":
            add(row)
    if newest and (record := read_record(run_dir)) is not None:
        add(record)
    return starts, submissions


def add_up(starts: Sequence[Start], submissions: Iterable[float]) -> Goodput:
    """Name every second from the first submission to the end of the last start."""
    total = dict.fromkeys(MEANINGS, 0.0)
    asked = sorted(submissions)
    clock = min([*asked[:1], starts[0].record["began"]])
    lost_steps = 0
    for number, start in enumerate(starts):
        record = start.record
        began = max(record["began"], clock)
        submitted = next((when for when in asked if clock <= when <= began), None)
        if record["cause"] == RESTART or (record["cause"] == REQUEUE and number):
            total["restart"] += began - clock
        elif record["cause"] == COMMAND:
            submitted = began if submitted is None else submitted
            total["idle"] += submitted - clock
            total["queue"] += began - submitted
        else:
            total["queue"] += began - clock
        end = max(record["time"] if start.end is None else start.end, began)
        seconds = _of_start(start, end - began)
        firsts = (other.record["first"] for other in starts[number + 1 :])
        later = [first for first in firsts if first != UNBEGUN]
        kept = max(min([record["step"], *later]), record["first"])
        if kept < record["step"]:
            lost_steps += record["step"] - kept
            _move_lost(seconds, start.marks.get(kept, {}))
        for name, value in seconds.items():
            total["restart" if name == "start" and number else name] += value
        clock = end
    named = {name: value for name, value in total.items() if value > 0}
    return Goodput(seconds=named, lost_steps=lost_steps, starts=len(starts))


def _of_start(start: Start, wall: float) -> dict[str, float]:
    """The seconds of a start by name. Time after its last record has the record's name."""
    seconds = {name: value for name, value in start.record["seconds"].items() if name in MEANINGS}
    name, rest = start.record["name"], wall - sum(seconds.values())
    seconds[name] = max(seconds.get(name, 0.0) + rest, 0.0)
    return seconds


def _move_lost(seconds: dict[str, float], mark: Mapping[str, float]) -> None:
    """Rename work after a save, or after the begin of the start; mark: seconds at the save."""
    for name in WORK:
        after = max(seconds.get(name, 0.0) - mark.get(name, 0.0), 0.0)
        if after:
            seconds[name] -= after
            seconds["lost"] = seconds.get("lost", 0.0) + after
