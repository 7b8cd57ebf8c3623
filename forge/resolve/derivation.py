"""What a derivation is, and how one is declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from forge.config.problems import Problem
from forge.config.root import Config
from forge.plan.world import World


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A value that was worked out: its key, the value and why."""

    key: str
    value: Any
    why: str


Body = Callable[[Config, World], Iterator[Derived | Problem]]


@dataclass(frozen=True, kw_only=True)
class Derivation:
    """A pure function from what it reads to what it works out, or why it cannot."""

    function: Body
    reads: tuple[str, ...]
    writes: tuple[str, ...]


def derivation(*, reads: tuple[str, ...], writes: tuple[str, ...]) -> Callable[[Body], Derivation]:
    """Turn a function over the typed config into a derivation."""
    return lambda body: Derivation(function=body, reads=reads, writes=writes)
