"""A user's own package: imported for its search path entry, so that it can register its schemas."""

from __future__ import annotations

import importlib

IMPORTABLE = (
    "install it (pip install -e DIRECTORY), or put the directory that holds it on PYTHONPATH"
)


def import_fault(module: str) -> tuple[str, str] | None:
    """Import a package that holds YAML files; (what is wrong, what to do) when that fails, whatever
    it raises.
    """
    try:
        package = importlib.import_module(module)
    except Exception as error:
        return explain(module, error)
    if not hasattr(package, "__path__"):
        return (
            f"{module} is a module, and no package that can hold groups.",
            "name the package whose folders are the groups",
        )
    return (
        None
        if package.__file__
        else (f"the folder of {module} has no __init__.py.", "add one; it may be empty")
    )


def explain(module: str, error: Exception) -> tuple[str, str]:
    """Why a module could not be imported, and what helps: it may be absent, or raise something
    itself.
    """
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent is not None and f"{module}.".startswith(f"{absent}."):
        inside = f", which {module} is in" if absent != module else ""
        if "." in absent:
            parent, _, name = absent.rpartition(".")
            return f"the package {parent} has no '{name}'.", "check the path"
        return f"there is no package {absent}{inside}.", IMPORTABLE
    return (
        f"importing {module} fails: {type(error).__name__}: {_first_line(error)}.",
        "correct the package",
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "no details").rstrip(".")
