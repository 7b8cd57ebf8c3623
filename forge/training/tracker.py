"""The contract of a tracker: where metrics go."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Takes metrics somewhere. Made when the run starts, by rank 0, and used from one thread."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Take metrics by name: those of a log (`train/loss`, `lr`, ...), of an evaluation
        (`eval/loss`, ...), or what a callback logged.

        step counts optimizer updates and never falls; several calls may have the same. A value may
        be NaN or infinite. `values` is shared with the other trackers: it must not be changed. The
        next update waits for the return.
        """
        ...

    def close(self) -> None:
        """Write what is held back and release all. Called once, however the run ends short of a
        kill; no `log` follows.
        """
        ...


@runtime_checkable
class Steps(Protocol):
    """What is told of every update, and not of every log alone."""

    def step(self, step: int) -> None: ...
