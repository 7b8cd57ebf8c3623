"""The callbacks of a loop, each called at the moments that it overrides."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from forge.training.callback import Callback, call, name_of
from forge.training.state import TrainState

log = logging.getLogger(__name__)


class Moments:
    """Calls callbacks in their order; a loop, to them."""

    def __init__(self, callbacks: Iterable[Callback]) -> None:
        self.callbacks, self.state = list(callbacks), TrainState()
        self._acting: dict[str, list[Callback]] = {}

    def acting_at(self, moment: str) -> list[Callback]:
        """Those that override a moment, or another method."""
        if moment not in self._acting:
            idle = getattr(Callback, moment)
            methods = ((one, getattr(one, moment)) for one in self.callbacks)
            self._acting[moment] = [
                one for one, method in methods if getattr(method, "__func__", None) is not idle
            ]
        return self._acting[moment]

    def call(self, moment: str, *arguments: Any) -> None:
        """Every callback acts at this moment; on the thread of the loop."""
        for callback in self.acting_at(moment):
            call(callback, moment, self.state.step, self, *arguments)

    def requests(self) -> list[tuple[Callback, int]]:
        """What each callback of this rank asks of all ranks."""
        asked = self.acting_at("requested")
        return [(one, call(one, "requested", self.state.step, self)) for one in asked]

    def requested(self) -> bool:
        """Whether there is a request."""
        return any(number for _, number in self.requests())

    def results(self) -> dict[str, float]:
        """What all callbacks have for result.json."""
        found: dict[str, float] = {}
        for callback in self.acting_at("results"):
            found |= call(callback, "results", self.state.step)
        return found

    def close(self, error: BaseException | None) -> BaseException | None:
        """Tell callbacks of an error, and close all, the last first; returns the first error."""
        for callback in self.callbacks if error is not None else []:
            error = self._attempt(error, callback, "on_failure", self, error)
        for callback in reversed(self.callbacks):
            error = self._attempt(error, callback, "close")
        return error

    def _attempt(
        self, first: BaseException | None, callback: Callback, method: str, *arguments: Any
    ) -> BaseException | None:
        """Call a method, whatever was raised before; what it raises then is a warning."""
        try:
            call(callback, method, self.state.step, *arguments)
        except BaseException as error:
            if first is None:
                return error
            name, kind = name_of(callback), type(error).__name__
            log.warning("%s failed in %s too: %s: %s", name, method, kind, error)
        return first
