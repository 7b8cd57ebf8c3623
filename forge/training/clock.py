"""The time that a run has trained."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds of training, those paused left out. before: those of earlier starts of the run."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.before = device, 0.0
        self.start()

    def start(self) -> None:
        self._started = time.perf_counter()
        self._paused_seconds = 0.0
        self._paused_at: float | None = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time spent in here does not count."""
        torch.get_device_module(self.device).synchronize()
        begin = time.perf_counter()
        outer, self._paused_at = self._paused_at, self._paused_at or begin
        try:
            yield
        finally:
            self._paused_at = outer
            if outer is None:
                self._paused_seconds += time.perf_counter() - begin

    def seconds(self) -> float:
        """Since the start."""
        return (self._paused_at or time.perf_counter()) - self._started - self._paused_seconds

    def total(self) -> float:
        """Over all starts of the run."""
        return self.before + self.seconds()
