"""Nothing is accepted and ignored: every option is read by some code, and can be typed."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from forge.compose.composition import compose
from forge.config import schemas
from forge.config.field import default_of, freeze_value
from forge.config.objectives import distill
from forge.config.problems import literal
from forge.config.rule import get
from forge.config.schemas import variants, walk_options

ROOT = Path(__file__).parents[2]
FIELDS = [(key, name, field) for key, name, _, field in walk_options() if field.name != "_target_"]
OPTIONS = sorted({key for key, *_ in FIELDS})
INNER = {key.split(".")[-2] for key in OPTIONS if key.count(".") > 1}

HOMES: dict[str, set[str]] = defaultdict(set)
"""The groups that each module has sections of."""
for group in schemas.sections():
    for each in variants(group).values():
        for base in each.mro():
            HOMES[base.__module__].add(group)


def file_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def own_files(group: str) -> set[Path]:
    """The files of the sections of a group and of what they are below."""
    bases = (base for each in variants(group).values() for base in each.mro())
    files = {file_of(base.__module__) for base in bases if base.__module__.startswith("forge.")}
    return files - {file_of("forge.config.field")}


DECLARING = {"forge.config.root", "forge.config.model.decoder"} | {
    schema.__module__ for schema in schemas.sections().values()
}
SCHEMA_FILES = {*map(file_of, DECLARING), *own_files("optimizer")}
"""Files that declare options and read none but by methods."""

TERMS = tuple(f"objective.{term}." for term in (*distill.TERMS, "temperature"))
READ_BY_NAME = ("train.recompute.", "sweep.question", "sweep.hypothesis", *TERMS)
"""Names of tensors, texts that a report takes from sweep.json, and the weights of distillation:
tests/parallel/test_named_tensors.py, tests/report/test_decision.py and
tests/training/test_distilled_runs.py have each.
"""


@cache
def reads() -> dict[tuple[str, str], set[str]]:
    """(owner, name) of every attribute that code loads, with the files; `config.train.seq_len` is
    (train, seq_len).

    A section passed on as `section` or `schedule` counts for the groups whose module the file
    imports, or that it takes out of the config.
    """
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    rules = ROOT / "forge" / "resolve" / "rules"
    for file in [*ROOT.glob("forge/**/*.py"), *ROOT.glob("launch/**/*.py")]:
        if file in SCHEMA_FILES or file.parent == rules:
            continue
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imports = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        known = {*schemas.sections(), *INNER}
        groups = known.intersection(node.attr for node in attributes)
        modules = (module.rpartition(".")[2] for module in imports)
        groups |= known.intersection(name.removesuffix("s") for name in modules)
        groups |= {group for module in imports for group in HOMES[module]}
        groups |= known.intersection(part.removesuffix("s") for part in file.parts)
        for node in nodes:  # an option that a group of parameters has
            if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "group":
                found["optimizer", getattr(node.slice, "value", "")].add(str(file))
        for node in attributes:
            value = node.value
            owner = getattr(value, "attr", getattr(value, "id", ""))
            passed_on = owner in ("section", "schedule", "layer")
            for name in [owner, *(groups if passed_on else ())]:
                if isinstance(node.ctx, ast.Load):
                    found[name, node.attr].add(str(file.relative_to(ROOT)))
    used = {attribute for _, attribute in found}
    groups = (*schemas.sections(), *schemas.INNER)
    for group in groups:  # what a method reads of its own section, if it is called
        trees = ((file, ast.parse(file.read_text())) for file in sorted(own_files(group)))
        for file, method in ((file, node) for file, tree in trees for node in ast.walk(tree)):
            if isinstance(method, ast.FunctionDef) and method.name in used:
                for node in ast.walk(method):
                    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "self":
                        found[group, node.attr].add(str(file.relative_to(ROOT)))
    return found


def test_every_option_has_a_reader():
    found = reads()
    owners = {key: key.rpartition(".")[0].rpartition(".")[2] or "config" for key in OPTIONS}
    unread = [key for key in OPTIONS if not found[owners[key], key.rpartition(".")[2]]]
    assert [key for key in unread if not key.startswith(READ_BY_NAME)] == []


PRESETS = {"ranked_bpe": "nanochat"}
"""Options of groups by their schema, where the names differ."""


@pytest.mark.nightly
def test_the_default_of_every_option_can_be_typed():
    for group in schemas.sections():
        for variant, schema in schemas.variants(group).items():
            chosen = group in schemas.SCHEMAS and (group, variant) != ("model", "decoder")
            choice = [f"{group}={PRESETS.get(variant, variant)}"] if chosen else []
            inner = tuple(f"{name}." for name in schemas.INNER)
            options = [each for each in schemas.options_of(schema) if not each[0].startswith(inner)]
            assert_typed(choice, {f"{group}.{key}": field for key, _, field in options})
    for group in schemas.INNER:
        for variant, schema in schemas.SCHEMAS[group].items():
            fields = {f"model.{group}.{key}": field for key, _, field in schemas.options_of(schema)}
            assert_typed([f"+{group}@model.{group}={variant}"], fields)


def assert_typed(choice: list[str], fields: dict[str, Any]):
    typed = {key: default_of(field) for key, field in fields.items() if "._" not in key}
    composed = compose([*choice, *(f"{key}={literal(v)}" for key, v in typed.items())])
    assert composed.problems == []
    config = composed.typed()
    typed = {key: value for key, value in typed.items() if value != {}}  # merged with a preset's
    assert {key: freeze_value(get(config, key)) for key in typed} == freeze_value(typed)
