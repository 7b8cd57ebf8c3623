"""Text to a config, with every problem of it. The package itself can be called."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forge.compose.engine import Composed
    from forge.compose.options import Options


def make_callable(module: str, function: Callable[..., Any]) -> None:
    """Make a module callable: a call of it is a call of `function`."""
    members = {"__call__": staticmethod(function)}
    sys.modules[module].__class__ = type("CallableModule", (types.ModuleType,), members)


def _compose(overrides: Options = (), *, config_dirs: Sequence[str] = ()) -> Composed:
    """Compose a config from groups and values, in the project of the working directory. Raises
    ConfigError with every problem.
    """
    from forge.compose.composition import config
    from forge.compose.options import texts
    from forge.compose.trust import in_project

    return config(in_project(texts(overrides)), config_dirs=config_dirs)


make_callable(__name__, _compose)
