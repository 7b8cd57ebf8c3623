"""Internals of Hydra, OmegaConf and torchao are imported in one file each, and never patched."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import house
import pytest
from import_graph import parsed

from forge.tensors import torchao_adapter

HYDRA = "forge/compose/hydra_adapter.py"
TORCHAO = "forge/tensors/torchao_adapter.py"
PUBLIC = "hydra.core.config_store"  # documented by Hydra; a user's package registers by it
TREES = {
    name: parsed(text)
    for name, text in house.read(None).items()
    if name.startswith(("forge/", "launch/"))
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Every imported module, and every module with an imported name behind it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_internal(module: str) -> bool:
    if module == PUBLIC or module.startswith(f"{PUBLIC}."):
        return False
    root, *parts = module.split(".")
    if root == "torchao":
        return True
    private = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return (root in ("hydra", "omegaconf") and private) or (
        parts[:1] == ["core"] and root == "hydra"
    )


def importers(of: Callable[[str], bool]) -> set[str]:
    return {name for name, tree in TREES.items() if any(map(of, imported(tree)))}


def test_one_file_imports_the_internals_of_hydra_and_omegaconf() -> None:
    assert importers(lambda m: is_internal(m) and not m.startswith("torchao")) == {HYDRA}


def test_one_file_imports_torchao() -> None:
    assert importers(lambda m: m.split(".")[0] == "torchao") == {TORCHAO}


@pytest.mark.parametrize("library", ["hydra", "omegaconf", "torchao"])
def test_no_attribute_of_a_library_is_set(library: str) -> None:
    """Neither `module.name = ...` nor `setattr(module, ...)` on what was imported of it."""
    patches = [(name, *p) for name, tree in TREES.items() for p in patched(tree, library)]
    assert patches == []


def patched(tree: ast.AST, library: str) -> Iterator[tuple[int, str]]:
    names = {
        alias.asname or alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] == library
    }
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            targets = node.args[:1]
        for target in targets:
            if ast.unparse(target).split(".")[0] in names:
                yield node.lineno, ast.unparse(node)


def test_a_patch_would_be_seen() -> None:
    code = "import hydra.core as c\nfrom hydra import version\nc.x = 1\nsetattr(version, 'y', 2)\n"
    assert [line for line, _ in patched(ast.parse(code), "hydra")] == [3, 4]


@pytest.mark.parametrize(
    "load",
    [
        torchao_adapter.low_bit_state,
        lambda: torchao_adapter.float8("rowwise", emulate=True),
        torchao_adapter.float8_weight,
        lambda: [torchao_adapter.float8_grouped()],
        lambda: torchao_adapter.mxfp8_products(wgrad_with_hp=False),
        lambda: [torchao_adapter.int8_product()],
    ],
    ids=["low_bit_state", "float8", "float8_weight", "float8_grouped", "mxfp8", "int8"],
)
def test_every_name_of_torchao_exists(load: Callable[[], tuple]) -> None:
    """With an upgrade of torchao the failing test names the part that moved."""
    assert all(part is not None for part in load())
