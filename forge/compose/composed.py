"""The config that a user of Python holds: what `forge.compose` returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.config.root import Config

if TYPE_CHECKING:
    from forge.resolve.resolve import Resolution


@dataclass(kw_only=True)
class Composed(Config):
    """A config that was composed from groups and values."""

    def validate(self, *, world_size: int | None = None) -> Resolution:
        """Resolve a copy: what would run, with warnings and derived values.

        Raises ConfigError with every problem.
        """
        from forge.resolve.resolve import resolve

        return resolve(self, world_size=world_size)
