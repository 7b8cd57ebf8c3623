"""Metrics as short text for the console."""

from __future__ import annotations

from collections.abc import Callable

from forge.config.numbers import compact, percent

Formatter = Callable[[float], str]


# What a training log shows, in this order; other keys are for the other trackers.
TRAINING: dict[str, Formatter] = {
    "train/loss": lambda value: f"loss {value:.4f}",
    "lr": lambda value: f"lr {value:.2e}",
    "tokens_per_second": lambda value: f"{compact(value)} tok/s",
    "mfu": lambda value: f"mfu {percent(value)}",
    "train/grad_norm": lambda value: f"grad {value:.3g}",
}
EVALUATION: dict[str, Formatter] = {
    "eval/loss": lambda value: f"eval loss {value:.4f}",
    "eval/bits_per_byte": lambda value: f"bits/byte {value:.4f}",
    "eval/perplexity": lambda value: f"perplexity {value:.4g}",
    "eval/token_accuracy": lambda value: f"accuracy {percent(value)}",
}


def texts(values: dict[str, float], formatters: dict[str, Formatter]) -> list[str]:
    """The text of every value that has a formatter."""
    return [formatter(values[name]) for name, formatter in formatters.items() if name in values]


class RemainingTime:
    """How long the rest takes at the pace since the first log."""

    def __init__(self, total_steps: int, clock: Callable[[], float]) -> None:
        self._total_steps = total_steps
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def seconds(self, step: int) -> float | None:
        """Seconds from `step` to the end; None until two different steps were seen."""
        now = self._clock()
        if self._first is None:
            self._first = (step, now)
        first_step, first_time = self._first
        if step <= first_step:
            return None
        return max(0, self._total_steps - step) * (now - first_time) / (step - first_step)
