"""A user's own package of config groups: the import for a search path entry registers the package's
schemas.
"""

from __future__ import annotations

import importlib

IMPORTABLE = (
    "install it (pip install -e DIRECTORY), or put the directory that holds it on PYTHONPATH"
)


def import_fault(module: str) -> tuple[str, str] | None:
    """Import a package of config groups; (what is wrong, what to do) where the import fails."""
    try:
        package = importlib.import_module(module)
    except Exception as error:
        return explain_import(module, error)
    if not hasattr(package, "__path__") or package.__file__ is None:
        return f"{module} is no package.", "a folder with an __init__.py, in which the groups are"
    return None


def explain_import(module: str, error: Exception) -> tuple[str, str]:
    """(reason of a failed import, what to do)."""
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is None or not f"{module}.".startswith(f"{absent}."):
        reason = next(iter(str(error).splitlines()), "no details").rstrip(".")
        message = f"importing {module} fails: {type(error).__name__}: {reason}."
        return message, "correct the package"
    parent, _, name = absent.rpartition(".")
    if parent:
        return f"the package {parent} has no '{name}'.", "check the path"
    inside = f", which {module} is in" if absent != module else ""
    return f"there is no package {absent}{inside}.", IMPORTABLE
