"""Metrics on the terminal: a live bar, or plain lines; in a notebook one rewritten line."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, cast

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
)
from rich.table import Column
from rich.text import Text

from forge.config import numbers
from forge.config.numbers import compact, percent
from forge.launch.local.notebook import OneLine, in_notebook

if TYPE_CHECKING:
    from forge.training.tracker import Tracker

Clock = Callable[[], float]
Formats = dict[str, Callable[[float], str]]
# A line of a log, in this order; all other keys are for the other trackers.
TRAINING: Formats = {
    "train/loss": lambda value: f"loss {value:.4f}",
    "lr": lambda value: f"lr {value:.2e}",
    "tokens_per_second": lambda value: f"{compact(value)} tok/s",
    "mfu": lambda value: f"mfu {percent(value)}",
    "train/grad_norm": lambda value: f"grad {value:.3g}",
}
BAR = ("train/loss", "tokens_per_second", "mfu")
"""Metrics beside the bar, at their newest values."""
EVALUATION: Formats = {
    "eval/loss": lambda value: f"eval loss {value:.4f}",
    "eval/bits_per_byte": lambda value: f"bits/byte {value:.4f}",
    "eval/perplexity": lambda value: f"perplexity {value:.4g}",
    "eval/token_accuracy": lambda value: f"accuracy {percent(value)}",
}


def console_tracker(
    total_steps: int,
    *,
    resumed_at: int = 0,
    console: Console | None = None,
    clock: Clock = time.monotonic,
) -> Tracker:
    """Build a live bar below lines if `console` (default: stdout) is a terminal, else lines alone.

    In a notebook, one rewritten line. resumed_at: the step the run resumes from. rich alone would
    take a file for a terminal where FORCE_COLOR is set, as in CI and notebooks.
    """
    if console is None and in_notebook():
        return PlainConsole(total_steps, Console(file=cast(IO[str], OneLine())), clock)
    console = console or Console()
    live = console.file.isatty() and console.is_terminal and not console.is_dumb_terminal
    if live:
        return LiveConsole(total_steps, console, clock, resumed_at=resumed_at)
    return PlainConsole(total_steps, console, clock)


class PlainConsole:
    """Prints one line a log; nothing for a log without known metrics."""

    def __init__(self, total_steps: int, console: Console, clock: Clock) -> None:
        self.total_steps, self.console, self.clock = total_steps, console, clock
        self.first_log: tuple[int, float] | None = None

    def log(self, step: int, values: dict[str, float]) -> None:
        training, evaluation = _texts(values, TRAINING), _evaluated(values)
        if training:
            training += self.eta(step)
        if training or evaluation:
            print(self.line(step, training + evaluation), file=self.console.file, flush=True)

    def close(self) -> None:
        """Nothing to release."""

    def line(self, step: int, texts: list[str]) -> str:
        width = len(str(self.total_steps))
        return " | ".join([f"step {step:>{width}}/{self.total_steps}", *texts])

    def eta(self, step: int) -> list[str]:
        """Time of the remaining steps at the pace since the first log; nothing at the first log."""
        now = self.clock()
        self.first_log = self.first_log or (step, now)
        first_step, first_time = self.first_log
        if step <= first_step:
            return []
        remaining = max(0, self.total_steps - step) * (now - first_time) / (step - first_step)
        return [f"ETA {numbers.clock(remaining)}"]


class LiveConsole(PlainConsole):
    """A bar moving with every step; lines of logs and other output scroll by above the bar."""

    def __init__(
        self, total_steps: int, console: Console, clock: Clock, *, resumed_at: int = 0
    ) -> None:
        super().__init__(total_steps, console, clock)
        self._progress = Progress(
            BarColumn(20 if console.width >= 100 else 10, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            MetricsColumn(),
            TextColumn("{task.fields[eta]}", table_column=Column(no_wrap=True)),
            console=console,
            refresh_per_second=2,
        )
        self._task = self._progress.add_task(
            "", total=total_steps, completed=resumed_at, metrics="", eta=""
        )
        self._progress.start()

    def step(self, step: int) -> None:
        """Move the bar, drawn twice a second; does not wait for the device."""
        self._progress.update(self._task, completed=step, eta="".join(self.eta(step)))

    def log(self, step: int, values: dict[str, float]) -> None:
        training, evaluation = _texts(values, TRAINING), _evaluated(values)
        if training:
            newest = "  ".join(_texts(values, {name: TRAINING[name] for name in BAR}))
            self._progress.update(self._task, completed=step, metrics=newest)
        if training or evaluation:
            line = self.line(step, training + evaluation)
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._progress.stop()


class MetricsColumn(ProgressColumn):
    """Text on one line, the only column allowed to wrap, and therefore cut by a narrow terminal."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["metrics"], no_wrap=True, overflow="ellipsis")


def _evaluated(values: dict[str, float]) -> list[str]:
    """Texts of an evaluation: usual metrics, only the loss of further sets, any other metric."""
    names = (name for name in values if name.startswith("eval/") and name not in EVALUATION)
    usual = EVALUATION.keys() - {"eval/loss"}
    shown = (name for name in names if f"eval/{name.rpartition('/')[2]}" not in usual)
    texts = (f"{n.partition('/')[2].replace('/', ' ')} {values[n]:.4g}" for n in shown)
    return [*_texts(values, EVALUATION), *texts]


def _texts(values: dict[str, float], formats: Formats) -> list[str]:
    return [as_text(values[name]) for name, as_text in formats.items() if name in values]
