"""The contract of a tracker, a destination of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tracker(Protocol):
    """Receives metrics. Made at the start of the run, by rank 0, and used from one thread."""

    def log(self, step: int, values: dict[str, float]) -> None:
        """Receive metrics by name, of a log, an evaluation or a callback.

        `train/loss`, `lr`, ... of a log, `eval/loss`, ... of an evaluation. step counts optimizer
        updates and never falls; several calls may have the same step. A value may be NaN or
        infinite. `values` is shared with the other trackers and must not be changed. The next
        update waits for the return.
        """
        ...

    def close(self) -> None:
        """Write buffered metrics and release resources.

        Called once, in any case short of a kill; no `log` follows.
        """
        ...


@runtime_checkable
class Tables(Protocol):
    """A tracker that shows tables too."""

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Receive a table: rows with the same columns, of texts and numbers."""
        ...


@runtime_checkable
class Steps(Protocol):
    """A tracker told of every update, besides every log."""

    def step(self, step: int) -> None: ...
