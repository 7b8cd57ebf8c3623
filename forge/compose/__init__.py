"""Text to a config, with every problem of it. The package itself can be called."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forge.compose.engine import Composed
    from forge.compose.options import Options


class _Callable(types.ModuleType):
    """`forge.compose` is this package, and the function of that name to who calls it."""

    def __call__(self, overrides: Options = (), *, config_dirs: Sequence[str] = ()) -> Composed:
        """The config that groups and values compose to, in the project that the working directory
        is in. Raises ConfigError with every problem.
        """
        from forge.compose.composition import config
        from forge.compose.options import texts
        from forge.compose.trust import in_project

        return config(in_project(texts(overrides)), config_dirs=config_dirs)


sys.modules[__name__].__class__ = _Callable
