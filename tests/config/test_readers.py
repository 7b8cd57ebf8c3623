"""Nothing is accepted and ignored: every option is read by some code, and can be typed."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from forge.compose.composition import compose
from forge.config import schemas
from forge.config.field import default_of, freeze_value
from forge.config.problems import literal
from forge.config.schemas import walk_options
from forge.resolve.rule import get

ROOT = Path(__file__).parents[2]
FIELDS = [(key, name, field) for key, name, _, field in walk_options() if field.name != "_target_"]
OPTIONS = sorted({key for key, *_ in FIELDS})
INNER = {key.split(".")[-2] for key in OPTIONS if key.count(".") > 1}
SCHEMA_FILES = {f"{group}.py" for group in schemas.sections()} | {"root.py"}


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
        is_schema = file.parent.name == "config" and file.name in SCHEMA_FILES
        if is_schema or file.parent == rules:
            continue
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imports = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
        known = {*schemas.sections(), *INNER}
        groups = known.intersection(node.attr for node in attributes)
        groups |= known.intersection(module.rpartition(".")[2] for module in imports)
        for node in attributes:
            value = node.value
            owner = getattr(value, "attr", getattr(value, "id", ""))
            for name in [owner, *(groups if owner in ("section", "schedule") else ())]:
                if isinstance(node.ctx, ast.Load):
                    found[name, node.attr].add(str(file.relative_to(ROOT)))
    return found


def test_every_option_has_a_reader():
    found = reads()
    owners = {key: key.rpartition(".")[0].rpartition(".")[2] or "config" for key in OPTIONS}
    unread = [key for key in OPTIONS if not found[owners[key], key.rpartition(".")[2]]]
    assert unread == []


def test_the_default_of_every_option_can_be_typed():
    for group in schemas.sections():
        for variant, schema in schemas.variants(group).items():
            fields = {f"{group}.{key}": field for key, _, field in schemas.options_of(schema)}
            typed = {key: default_of(field) for key, field in fields.items() if "._" not in key}
            choice = [f"{group}={variant}"] if group in schemas.SCHEMAS and group != "model" else []
            composed = compose([*choice, *(f"{key}={literal(v)}" for key, v in typed.items())])
            assert composed.problems == []
            config = composed.typed()
            assert {key: freeze_value(get(config, key)) for key in typed} == freeze_value(typed)
