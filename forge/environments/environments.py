"""The environments of a rollout: one for each completion, called within a time limit."""

from __future__ import annotations

import inspect
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from forge.build import build
from forge.config.environments.entry import NAME, built_by, options_of
from forge.rewards.function import explained

SHAPE = "return (text, done, reward): a text, a bool, and a number or None"


class EnvironmentFault(ValueError):
    """An environment that failed: the failure, and a way out."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, hint)  # as given, so that it can be sent to other ranks

    def __str__(self) -> str:
        message, hint = self.args
        return f"environment: {message} -> {hint}"


class Reply(NamedTuple):
    """An answer of an environment: text after the turn, whether all ends, and the reward."""

    text: str
    done: bool
    reward: float | None


class Environments:
    """Makes and calls environments.

    entry: the `environment` section. trust: prefixes of targets outside of forge. stop: texts that
    end a turn, an attribute of the environment. concurrent: whether its attribute of this name lets
    environments of several completions be called at a time. Raises ConfigError for a target that
    cannot be built, EnvironmentFault for an object without reset and step.
    """

    def __init__(self, entry: Mapping[str, Any], trust: Sequence[str] = ()) -> None:
        self.options, self.trust = options_of(entry), trust
        self._target = built_by(entry)
        first = self._made()
        for name in ("reset", "step"):
            if not callable(getattr(first, name, None)):
                message = f"{self._target['_target_']} has no method {name}"
                raise EnvironmentFault(message, "give it reset(row) and step(text)")
        stop = getattr(first, "stop", ())
        self.stop = (stop,) if isinstance(stop, str) else tuple(map(str, stop))
        self.workers = (os.cpu_count() or 1) if getattr(first, "concurrent", False) else 1
        self._seeded = "seed" in inspect.signature(first.reset).parameters

    def _made(self) -> Any:
        return build(self._target, path=NAME, trust=self.trust)

    def begin(self, rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[Any]:
        """An environment for each row, reset. keys: of random numbers; a reset with a parameter
        `seed` gets an integer made of the key.
        """
        environments = [self._made() for _ in rows]

        def reset(index: int) -> None:
            seed = int.from_bytes(blake2b(keys[index].encode(), digest_size=7).digest(), "little")
            keywords = {"seed": seed} if self._seeded else {}
            if (value := environments[index].reset(dict(rows[index]), **keywords)) is not None:
                hint = "return nothing; the first text of a row is its prompt"
                raise EnvironmentFault(f"reset returned a {type(value).__name__}", hint)

        self._each("reset", reset, range(len(rows)))
        return environments

    def step(self, environments: Sequence[Any], texts: Sequence[str]) -> list[Reply]:
        """The answer of each environment to the text of a turn.

        Raises EnvironmentFault for one that raises, takes longer than its timeout, or returns
        anything but a text, a bool, and a number or None.
        """
        values = self._each(
            "step", lambda index: environments[index].step(texts[index]), range(len(texts))
        )
        return [checked(value) for value in values]

    def _each(self, name: str, call: Callable[[int], Any], indices: Sequence[int]) -> list[Any]:
        """Call a function for each index, `workers` at a time; the first failure is raised."""
        results: list[Any] = []
        for first in range(0, len(indices), self.workers):
            outcomes: dict[int, tuple[bool, Any]] = {}
            part = indices[first : first + self.workers]
            # A thread that hangs is left behind: it cannot be stopped, and ends with the process.
            threads = [
                threading.Thread(target=_run, args=(outcomes, call, index), daemon=True)
                for index in part
            ]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + self.options.timeout
            for thread in threads:
                thread.join(max(deadline - time.monotonic(), 0.0))
            for index in part:
                if index not in outcomes:
                    limit = f"{self.options.timeout:g} seconds"
                    message = f"{name} took longer than its timeout of {limit}"
                    raise EnvironmentFault(message, f"correct {name}, or environment.timeout=...")
                succeeded, value = outcomes[index]
                if isinstance(value, EnvironmentFault):
                    raise value
                if not succeeded:
                    message = f"{name} raised {explained(value)}"
                    raise EnvironmentFault(message, f"correct {name}")
                results.append(value)
        return results


def _run(outcomes: dict[int, tuple[bool, Any]], call: Callable[[int], Any], index: int) -> None:
    try:
        outcomes[index] = True, call(index)
    except BaseException as error:  # SystemExit too
        outcomes[index] = False, error


def checked(value: Any) -> Reply:
    """The answer of a step. Raises EnvironmentFault for any other value."""
    if not isinstance(value, tuple | list) or len(value) != 3:
        size = f" of {len(value)} values" if isinstance(value, tuple | list) else ""
        raise EnvironmentFault(f"step returned a {type(value).__name__}{size}", SHAPE)
    text, done, reward = value
    if not isinstance(text, str):
        raise EnvironmentFault(f"step returned a {type(text).__name__} as its text", SHAPE)
    if type(done).__name__ not in ("bool", "bool_"):  # of numpy too
        raise EnvironmentFault(f"step returned a {type(done).__name__} as done", SHAPE)
    if reward is None:
        return Reply(text, bool(done), None)
    if isinstance(reward, str | bytes) or not hasattr(reward, "__float__"):
        raise EnvironmentFault(f"step returned a {type(reward).__name__} as its reward", SHAPE)
    if not math.isfinite(number := float(reward)):
        raise EnvironmentFault(f"step returned {number} as its reward", SHAPE)
    return Reply(text, bool(done), number)
