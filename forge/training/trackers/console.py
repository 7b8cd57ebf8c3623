"""Metrics on the terminal: a live bar, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

from forge.config.numbers import clock
from forge.training.trackers.group import Tracker
from forge.training.trackers.metric_text import EVALUATION, TRAINING, RemainingTime, texts

SEPARATOR = " | "
REFRESH_PER_SECOND = 2
WIDE = 100  # columns of a terminal that has room for a long bar


def console_tracker(
    total_steps: int, *, console: Console | None = None, clock: Callable[[], float] = time.monotonic
) -> Tracker:
    """A live bar where `console` (default: stdout) is a terminal, plain lines elsewhere.

    rich alone would take a file for a terminal where FORCE_COLOR is set, as CI and notebooks do.
    """
    console = console or Console()
    live = console.file.isatty() and console.is_terminal and not console.is_dumb_terminal
    return (LiveConsole if live else PlainConsole)(total_steps, console, clock)


def step_text(step: int, total_steps: int) -> str:
    """`step  10/1000`, of one width over the whole run."""
    return f"step {step:>{len(str(total_steps))}}/{total_steps}"


class PlainConsole:
    """One line a log; a log without anything to show prints nothing."""

    def __init__(self, total_steps: int, console: Console, clock: Callable[[], float]) -> None:
        self._total_steps = total_steps
        self._console = console
        self._remaining = RemainingTime(total_steps, clock)

    def log(self, step: int, values: dict[str, float]) -> None:
        training, evaluation = texts(values, TRAINING), texts(values, EVALUATION)
        if training and (seconds := self._remaining.seconds(step)) is not None:
            training.append(f"ETA {clock(seconds)}")
        if training or evaluation:
            line = SEPARATOR.join([step_text(step, self._total_steps), *training, *evaluation])
            print(line, file=self._console.file, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class FieldColumn(ProgressColumn):
    """A text field of the task on one line; a column that may wrap is the first to be cut on a
    narrow terminal.
    """

    def __init__(self, field: str, table_column: Column | None = None) -> None:
        super().__init__(table_column)
        self._field = field

    def render(self, task: Task) -> Text:
        return Text(task.fields[self._field], no_wrap=True, overflow="ellipsis")


class LiveConsole:
    """A bar with the newest training metrics; evaluations, and whatever is printed meanwhile,
    scroll by above it.
    """

    def __init__(self, total_steps: int, console: Console, clock: Callable[[], float]) -> None:
        self._total_steps = total_steps
        self._remaining = RemainingTime(total_steps, clock)
        self._progress = Progress(
            BarColumn(
                bar_width=20 if console.width >= WIDE else 10, table_column=Column(no_wrap=True)
            ),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            FieldColumn("metrics"),
            FieldColumn("eta", table_column=Column(no_wrap=True)),
            console=console,
            refresh_per_second=REFRESH_PER_SECOND,
        )
        self._task = self._progress.add_task("", total=total_steps, metrics="", eta="")
        self._progress.start()

    def log(self, step: int, values: dict[str, float]) -> None:
        training, evaluation = texts(values, TRAINING), texts(values, EVALUATION)
        if training:
            seconds = self._remaining.seconds(step)
            eta = "" if seconds is None else f"ETA {clock(seconds)}"
            self._progress.update(self._task, completed=step, metrics="  ".join(training), eta=eta)
        if evaluation:
            line = SEPARATOR.join([step_text(step, self._total_steps), *evaluation])
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()
