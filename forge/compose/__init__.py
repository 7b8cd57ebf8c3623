"""Text to a config, with every problem of it. The package itself can be called."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.compose.engine import Composed


class _Callable(types.ModuleType):
    """`forge.compose` is this package, and the function of that name to who calls it."""

    def __call__(
        self, overrides: Sequence[str] = (), *, config_dirs: Sequence[str] = ()
    ) -> Composed:
        """The config that groups and values compose to. Raises ConfigError with every problem."""
        from forge.compose.composition import config

        return config(overrides, config_dirs=config_dirs)


sys.modules[__name__].__class__ = _Callable
