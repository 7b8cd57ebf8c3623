"""Bounds of the source that each change keeps: `python tools/house.py` prints the figures."""

from __future__ import annotations

import ast

import house
import pytest
from import_graph import LEVELS, circles, imports, parsed

FILES = house.read(None)
SOURCE = {name: text for name, text in FILES.items() if name.startswith(("forge/", "launch/"))}
TREES = {name: parsed(text) for name, text in SOURCE.items()}


@pytest.mark.parametrize("level", LEVELS)
def test_no_modules_import_each_other(level: str) -> None:
    assert list(circles(imports(SOURCE, level))) == []


def test_folders_and_files_are_small() -> None:
    folder, number = house.largest_folder(SOURCE)
    assert number <= 30, folder
    long = {name for name, text in FILES.items() if text.count("\n") > 400}
    assert long == set()


def test_functions_are_short() -> None:
    lengths = sorted(house.function_lengths(TREES), reverse=True)
    assert lengths[0][0] <= LONGEST, lengths[0]
    assert sum(lines > house.LONG for lines, _ in lengths) <= LONG


def test_functions_branch_little() -> None:
    counts = [number for tree in TREES.values() for number in house.complexities(tree)]
    assert sum(number > house.COMPLEX for number in counts) <= BRANCHING


def test_names_and_docstrings_speak_of_content() -> None:
    names = [name for tree in TREES.values() for name in house.assigned_names(tree)]
    assert house.filler_share(names) <= 2, "python tools/house.py --words lists them"
    assert house.relatives(TREES.values()) <= 5


def test_a_public_function_has_its_name_alone() -> None:
    assert len(house.shared_names(SOURCE, ast.FunctionDef)) <= SHARED, "house.py --names lists them"


def test_classes_are_asked_not_told_apart() -> None:
    assert sum(text.count(", Decoder)") for text in SOURCE.values()) <= DECODERS
    assert sum(map(house.foreign_tests, TREES.items())) <= COMPONENTS


LONGEST, LONG, SHARED, BRANCHING, DECODERS, COMPONENTS = 60, 25, 60, 10, 15, 8
