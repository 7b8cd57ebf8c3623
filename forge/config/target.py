"""Which `_target_` paths may be built, checked without importing any of them."""

from __future__ import annotations

import ast
import functools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.config.errors import closest, did_you_mean

ALLOWED = ("forge.", "torch.optim.", "torch.nn.")
PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
ROOT = Path(__file__).parents[1]


def allowed(path: str, trust: Sequence[str] = ()) -> bool:
    """Whether a `_target_` is under forge, torch.optim, torch.nn or a prefix that the user trusts."""
    prefixes = (*ALLOWED, *(prefix if prefix.endswith(".") else f"{prefix}." for prefix in trust))
    return path.startswith(prefixes)


def target_fault(path: Any, trust: Sequence[str] = (), key: str = "") -> tuple[str, str] | None:
    """(what is wrong, what to do) with a `_target_`, or None; with its key, what to do can be typed.

    forge's own modules are read, not imported, so that a misspelt name is found before anything starts;
    other packages are checked when they are built.
    """
    given = f"{key}=" if key else ""
    if not isinstance(path, str) or not PATH.fullmatch(path):
        return f"'{path}' is not the path of a class or function.", f"such as {given}torch.optim.SGD"
    if not allowed(path, trust):
        package = path.partition(".")[0]
        return f"{path} is not under {', '.join(ALLOWED)} or a trusted prefix.", f"if you trust it: run.trust=[{package}.]"
    if not path.startswith("forge."):
        return None
    module, _, name = path.rpartition(".")
    file = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    if not os.path.isfile(file):  # unlike is_file, also for a name that is too long
        return f"there is no module {module}.", "check the path"
    names = _names(file)
    if name not in names:
        return f"{module} has no '{name}'.", did_you_mean(
            [f"{given}{module}.{n}" for n in closest(name, names)]
        ) or f"it has {', '.join(names)}"
    return None


@functools.cache
def _names(file: Path) -> tuple[str, ...]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"))
