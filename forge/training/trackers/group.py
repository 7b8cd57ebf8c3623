"""The trackers of a run, none of which can fail it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """Takes the metrics of a step; `step` counts optimizer updates and never falls."""

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


class Trackers:
    """Several trackers as one; one that raises is closed and left out from then on, with one warning.

    Use it as a context manager, so that a progress bar gives the terminal back whatever happens.
    """

    def __init__(self) -> None:
        self._active: dict[str, Tracker] = {}

    def add(self, name: str, open_tracker: Callable[[], Tracker]) -> None:
        """Open one more tracker, if it can be opened; `name` is what a warning calls it."""
        try:
            self._active[name] = open_tracker()
        except Exception as error:
            _warn(name, error)

    def log(self, step: int, values: dict[str, float]) -> None:
        """Pass the metrics of one step to every tracker, in the order they were added."""
        for name, tracker in list(self._active.items()):
            try:
                tracker.log(step, values)
            except Exception as error:
                _warn(name, error)
                del self._active[name]
                with contextlib.suppress(Exception):
                    tracker.close()

    def close(self) -> None:
        """Close every tracker, the last one added first."""
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
    logger.warning("%s failed and is off for the rest of this run, which goes on: %s: %s", name, type(error).__name__, error)
