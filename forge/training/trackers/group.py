"""The trackers of a run; none but the essential ones can fail it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol, runtime_checkable

logger = logging.getLogger(__name__)


@runtime_checkable
class Tracker(Protocol):
    """Takes metrics somewhere. It is made when the run starts, by rank 0, and used from one thread."""

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


class Trackers:
    """Several trackers as one; one that raises is closed and left out from then on, with one
    warning.

    An error of an essential one ends the run. Use it as a context manager, so that a progress bar
    gives the terminal back whatever happens.
    """

    def __init__(self) -> None:
        self._active: dict[str, Tracker] = {}
        self._essential: set[str] = set()

    def add(
        self, name: str, open_tracker: Callable[[], Tracker], *, essential: bool = False
    ) -> None:
        """Open one more tracker, if it can be opened; `name` is what a warning calls it."""
        if essential:
            self._essential.add(name)
        try:
            self._active[name] = open_tracker()
        except Exception as error:
            if essential:
                raise
            _warn(name, error)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Pass the metrics of one step to every tracker, in the order they were added."""
        for name, tracker in list(self._active.items()):
            try:
                tracker.log(step, values)
            except Exception as error:
                if name in self._essential:
                    raise
                _warn(name, error)
                del self._active[name]
                with contextlib.suppress(Exception):
                    tracker.close()

    def close(self) -> None:
        """Close every tracker, the last one added first; an error here is a warning for each of
        them.
        """
        while self._active:
            name, tracker = self._active.popitem()
            try:
                tracker.close()
            except Exception as error:
                _warn(name, error)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _warn(name: str, error: Exception) -> None:
    logger.warning(
        "%s failed and is off for the rest of this run, which goes on: %s: %s",
        name,
        type(error).__name__,
        error,
    )
