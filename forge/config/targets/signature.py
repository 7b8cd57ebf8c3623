"""The parameters of a class or function, read from the file that defines it: nothing is imported,
so nothing of it runs, and torch is not waited for.
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
DEEPEST = 20  # imports and base classes that are followed one after the other


class _Unread:
    """A default that is no plain value, as `torch.float32`."""


UNREAD, REQUIRED = _Unread(), _Unread()


@dataclass(frozen=True)
class Signature:
    """The parameters that may be given by name, in their order, each with its default.

    REQUIRED = it has none; UNREAD = one that no file could hold. anything: it takes any other name
    too. places: the parameters that arguments without a name are for.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    anything: bool = False
    places: tuple[str, ...] = ()


def read(target: str) -> Signature | None:
    """The signature of a dotted path; None where the files do not tell."""
    module, _, name = target.rpartition(".")
    found = _definition(module, name)
    if found is None or not _is_plain(found[1]):
        return None
    file, node = found
    if isinstance(node, ast.ClassDef):
        return _of_class(file, node)
    return _of_function(node)


@dataclass(frozen=True)
class _File:
    """A module as it is written. package: what its relative imports begin from."""

    name: str
    package: str
    tree: ast.Module


def _file(name: str) -> _File | None:
    top, *rest = name.split(".")
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None:
        return None
    origin, folders = spec.origin, list(spec.submodule_search_locations or ())
    for part in rest:
        places = [Path(folder) / part for folder in folders]
        packages = [place for place in places if place.is_dir()]
        files = [place.with_suffix(".py") for place in places]
        origins = [*(place / "__init__.py" for place in packages), *files]
        origin = next((str(file) for file in origins if file.is_file()), None)
        folders = [str(place) for place in packages]
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
    """changed: when the file was, so that it is read again after it was edited."""
    return ast.parse(Path(path).read_bytes())


def _definition(module: str, name: str, depth: int = 0) -> tuple[_File, Definition] | None:
    """Where a name of a module is defined, be it imported there from elsewhere."""
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
                if found := _definition(source, name, depth + 1):
                    return found
            elif (alias.asname or alias.name) == name:
                return _definition(source, alias.name, depth + 1)
    return None


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Those of a module, also below its `if` and `try`."""
    for statement in body:
        yield statement
        if not isinstance(statement, Definition):
            for inner in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, inner, []))


def _source(file: _File, statement: ast.ImportFrom) -> str:
    """The module that a `from ... import` names."""
    if not statement.level:
        return statement.module or ""
    above = file.package.split(".")[: len(file.package.split(".")) - statement.level + 1]
    return ".".join([*above, *([statement.module] if statement.module else [])])


def _is_plain(node: Definition) -> bool:
    """Whether a definition has nothing that could change its parameters."""
    decorators = {getattr(one, "id", getattr(one, "attr", "")) for one in node.decorator_list}
    is_typed_only = not isinstance(node, ast.ClassDef) or not node.keywords
    return decorators <= KEEPS_PARAMETERS and is_typed_only


def _of_class(file: _File, node: ast.ClassDef, depth: int = 0) -> Signature | None:
    """Of its constructor, or that of the first class above that has one."""
    own = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    if "__new__" in own or depth > DEEPEST:
        return None
    if "__init__" in own:
        return _of_function(own["__init__"], bound=True) if _is_plain(own["__init__"]) else None
    for base in node.bases:
        found = _base(file, base)
        if found is None or not isinstance(found[1], ast.ClassDef) or not _is_plain(found[1]):
            return None
        return _of_class(*found, depth + 1)  # type: ignore[arg-type]
    return Signature()


def _base(file: _File, base: ast.expr) -> tuple[_File, Definition] | None:
    """Where a base class is defined: `Module`, or `nn.Module` of a module that is imported."""
    parts = ast.unparse(base).split(".")
    if len(parts) == 1:
        return _definition(file.name, parts[0])
    modules = dict(_imported_modules(file))
    return _definition(".".join([modules.get(parts[0], parts[0]), *parts[1:-1]]), parts[-1])


def _imported_modules(file: _File) -> Iterator[tuple[str, str]]:
    """What names of a file stand for that may be modules."""
    for statement in _statements(file.tree.body):
        if isinstance(statement, ast.Import):
            yield from ((one.asname, one.name) for one in statement.names if one.asname)
        elif isinstance(statement, ast.ImportFrom):
            above = _source(file, statement)
            yield from ((one.asname or one.name, f"{above}.{one.name}") for one in statement.names)


def _of_function(node: ast.FunctionDef, *, bound: bool = False) -> Signature:
    """bound: the first parameter is the object itself."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    found = dict(zip((one.arg for one in positional), map(_value, defaults), strict=True))
    for hidden in [*positional[:bound], *given.posonlyargs]:
        found.pop(hidden.arg, None)
    named = (one.arg for one in given.kwonlyargs)
    found |= dict(zip(named, map(_value, given.kw_defaults), strict=True))
    places = tuple(one.arg for one in positional[bound:])
    return Signature(found, anything=given.kwarg is not None, places=places)


def _value(default: ast.expr | None) -> Any:
    if default is None:
        return REQUIRED
    try:
        value = ast.literal_eval(default)
    except ValueError:
        return UNREAD
    return value if _is_stored(value) else UNREAD


def _is_stored(value: Any) -> bool:
    """Whether a YAML file could hold it."""
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_stored(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_stored, value))
    return value is None or isinstance(value, str | int | float)
