"""Signatures of classes and functions, read from the file that defines them: nothing is imported,
nothing of the file runs, and torch is not waited for.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Definition = ast.ClassDef | ast.FunctionDef
KEEPS_PARAMETERS = {"override", "staticmethod"}
DEEPEST = 20  # longest chain of imports and base classes to follow


class _Unread:
    """A default that is no plain value, as `torch.float32`."""


UNREAD, REQUIRED = _Unread(), _Unread()


@dataclass(frozen=True)
class Signature:
    """Parameters with a name, in their order, each with its default.

    REQUIRED = no default; UNREAD = a default no file could hold. anything: any other name is taken
    too. places: the parameters of arguments without a name.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    anything: bool = False
    places: tuple[str, ...] = ()


def read_signature(target: str) -> Signature | None:
    """Read the signature of a dotted path; None where the files do not tell."""
    module, _, name = target.rpartition(".")
    definition = _definition(module, name)
    if definition is None or not _is_plain(definition[1]):
        return None
    file, node = definition
    if isinstance(node, ast.ClassDef):
        return _of_class(file, node)
    return _of_function(node)


@dataclass(frozen=True)
class _File:
    """A module as written. package: the start of its relative imports."""

    name: str
    package: str
    tree: ast.Module


def _file(name: str) -> _File | None:
    top, *parts = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    origin, folders = spec.origin, list(spec.submodule_search_locations or ())
    for part in parts:
        paths = [Path(folder) / part for folder in folders]
        packages = [path for path in paths if path.is_dir()]
        files = [path.with_suffix(".py") for path in paths]
        origins = [*(path / "__init__.py" for path in packages), *files]
        origin = next((str(file) for file in origins if file.is_file()), None)
        folders = [str(path) for path in packages]
    if origin is None or not origin.endswith(".py"):
        return None
    try:
        tree = _parsed(origin, os.stat(origin).st_mtime_ns)
    except (OSError, SyntaxError, ValueError):
        return None
    is_package = Path(origin).name == "__init__.py"
    return _File(name, name if is_package else name.rpartition(".")[0], tree)


@functools.lru_cache(maxsize=64)
def _parsed(path: str, changed: int) -> ast.Module:
    """Parse a file. changed: the time of the last edit, so that an edited file is parsed again."""
    return ast.parse(Path(path).read_bytes())


def _definition(module: str, name: str, depth: int = 0) -> tuple[_File, Definition] | None:
    """Find the definition of a name of a module, also of a name imported from elsewhere."""
    file = _file(module)
    if file is None or depth > DEEPEST:
        return None
    for statement in reversed(list(_statements(file.tree.body))):
        if isinstance(statement, Definition) and statement.name == name:
            return file, statement
        if not isinstance(statement, ast.ImportFrom):
            continue
        source = _source(file, statement)
        for alias in statement.names:
            if alias.name == "*":
                if definition := _definition(source, name, depth + 1):
                    return definition
            elif (alias.asname or alias.name) == name:
                return _definition(source, alias.name, depth + 1)
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those below its `if` and `try`."""
    for statement in body:
        yield statement
        if not isinstance(statement, Definition):
            for inner in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, inner, []))


def _source(file: _File, statement: ast.ImportFrom) -> str:
    """The module of a `from ... import`."""
    if not statement.level:
        return statement.module or ""
    above = file.package.split(".")[: len(file.package.split(".")) - statement.level + 1]
    return ".".join([*above, *([statement.module] if statement.module else [])])


def _is_plain(node: Definition) -> bool:
    """Whether nothing about a definition could change its parameters."""
    decorators = {
        getattr(decorator, "id", getattr(decorator, "attr", ""))
        for decorator in node.decorator_list
    }
    is_typed_only = not isinstance(node, ast.ClassDef) or not node.keywords
    return decorators <= KEEPS_PARAMETERS and is_typed_only


def _of_class(file: _File, node: ast.ClassDef, depth: int = 0) -> Signature | None:
    """The signature of a class: of its constructor, else of the first base class with a
    constructor.
    """
    methods = {
        statement.name: statement
        for statement in node.body
        if isinstance(statement, ast.FunctionDef)
    }
    if "__new__" in methods or depth > DEEPEST:
        return None
    if "__init__" in methods:
        return (
            _of_function(methods["__init__"], bound=True)
            if _is_plain(methods["__init__"])
            else None
        )
    for base in node.bases:
        parent = _base(file, base)
        if parent is None or not isinstance(parent[1], ast.ClassDef) or not _is_plain(parent[1]):
            return None
        return _of_class(*parent, depth + 1)  # type: ignore[arg-type]
    return Signature()


def _base(file: _File, base: ast.expr) -> tuple[_File, Definition] | None:
    """Find the definition of a base class: `Module`, or `nn.Module` of an imported module."""
    parts = ast.unparse(base).split(".")
    if len(parts) == 1:
        return _definition(file.name, parts[0])
    modules = dict(_imported_modules(file))
    return _definition(".".join([modules.get(parts[0], parts[0]), *parts[1:-1]]), parts[-1])


def _imported_modules(file: _File) -> Iterator[tuple[str, str]]:
    """Yield (name, dotted path) of each imported name of a file; some are modules."""
    for statement in _statements(file.tree.body):
        if isinstance(statement, ast.Import):
            yield from ((alias.asname, alias.name) for alias in statement.names if alias.asname)
        elif isinstance(statement, ast.ImportFrom):
            above = _source(file, statement)
            yield from (
                (alias.asname or alias.name, f"{above}.{alias.name}") for alias in statement.names
            )


def _of_function(node: ast.FunctionDef, *, bound: bool = False) -> Signature:
    """The signature of a function. bound: the first parameter is the object itself."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parameters = dict(
        zip((argument.arg for argument in positional), map(_value, defaults), strict=True)
    )
    for hidden in [*positional[:bound], *arguments.posonlyargs]:
        parameters.pop(hidden.arg, None)
    keyword_only = (argument.arg for argument in arguments.kwonlyargs)
    parameters |= dict(zip(keyword_only, map(_value, arguments.kw_defaults), strict=True))
    names = tuple(argument.arg for argument in positional[bound:])
    return Signature(parameters, anything=arguments.kwarg is not None, places=names)


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return REQUIRED
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return UNREAD
    return value if _is_stored(value) else UNREAD


def _is_stored(value: Any) -> bool:
    """Whether a YAML file could hold a value."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_stored(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_stored, value))
    return value is None or isinstance(value, str | int | float)
