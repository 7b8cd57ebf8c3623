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
    """This package as `forge.compose`, callable like a function."""

    def __call__(self, overrides: Options = (), *, config_dirs: Sequence[str] = ()) -> Composed:
        """Compose a config from groups and values, in the project of the working directory. Raises
        ConfigError with every problem.
        """
        from forge.compose.composition import config
        from forge.compose.options import texts
        from forge.compose.trust import in_project

        return config(in_project(texts(overrides)), config_dirs=config_dirs)


sys.modules[__name__].__class__ = _Callable
