"""The graph of imports among modules of forge, and its circles."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

LEVELS = ("at run time", "with types", "in functions too")
"""Which imports count: those of a module as it is loaded; those for type checkers too; all."""


def imports(files: Mapping[str, str], level: str) -> dict[str, set[str]]:
    """By module, the modules of `files` that it imports at a level of `LEVELS`.

    An import in a function of a package's __init__ is not counted: it is for the first use of a
    name of the package, and loading a file of the package does not run it.
    """
    modules = {module_of(name): text for name, text in files.items()}
    packages = {module_of(name) for name in files if name.endswith("/__init__.py")}
    depth = LEVELS.index(level)
    return {
        module: set(
            _imported(
                parsed(text), modules, types=depth > 0, lazy=depth > 1 and module not in packages
            )
        )
        - {module}
        for module, text in modules.items()
    }


@functools.cache
def parsed(text: str) -> ast.Module:
    """The tree of a source text."""
    return ast.parse(text)


def module_of(name: str) -> str:
    """The module of a file: forge.launch.sweep of launch/sweep/__init__.py."""
    path = PurePosixPath(name).with_suffix("")
    parts = path.parts[:-1] if path.name == "__init__" else path.parts
    return ".".join(parts if parts[0] == "forge" else ("forge", *parts))


def _imported(
    tree: ast.AST, modules: Mapping[str, str], *, types: bool, lazy: bool
) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not types:
            continue
        if isinstance(node, ast.FunctionDef) and not lazy:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [name if name in modules else node.module for name in names]
        elif isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            yield from _imported(node, modules, types=types, lazy=lazy)
            continue
        yield from (target for target in targets if target in modules)


def circles(graph: Mapping[str, set[str]]) -> Iterator[set[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> Iterator[set[str]]:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph[module] & graph.keys():
            if other not in number:
                yield from visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            component = set(stack[stack.index(module) :])
            del stack[stack.index(module) :]
            if len(component) > 1:
                yield component

    for module in graph:
        if module not in number:
            yield from visit(module)
