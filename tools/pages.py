"""The pages of docs/reference that are made from the code; `--write docs/reference` writes them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from models import models_page

from forge.compose.engine import Library
from forge.compose.help import option_summary, options_below, titles, yaml_value
from forge.config import schemas
from forge.config.bounds import describe_bounds
from forge.config.field import default_of
from forge.resolve.derivations import DERIVATIONS
from forge.resolve.rules.all import RULES

MADE = "<!-- made by `make docs`; do not edit -->"
OF_OPTIONS = """\
A default is that of the schema. The options of a group state other values, to be read in \
`conf/<group>/<option>.yaml`;
`python -m forge.check` and `forge.explain KEY` show what a run would use, and where it comes from.
A *free* option may change when a run goes on ([runs.md](../runs.md#the-run-directory)); \
a larger `train.max_steps` may too.
"""
OF_RULES = """\
Every value is first checked against the bounds of its own option (options.md). \
Then open values are worked out, in this order:
"""
ALL_RULES = """
Then every rule is checked, and every broken one is reported at once. A warning lets the run start.
"""


def options_page() -> str:
    """options.md: every group, its options and every key with default, meaning and bounds."""
    library = Library()
    root = [_row(field.name, field) for field in schemas.root_options()]
    lines = [MADE, "", "# Options", "", "At the root:", "", *_keys_table(root), OF_OPTIONS]
    for group in library.groups():
        options = {
            option: option_summary(library, group, option) for option in library.options(group)
        }
        lines += [f"## {group}", "", f"| `{group}=` | |", "| --- | --- |"]
        lines += [f"| `{option}` | {_cell(meaning)} |" for option, meaning in options.items()]
        lines.append("")
        for choice, schema, first_line in titles(group):
            name = f"`{choice}` ({schema.__name__})" if choice else schema.__name__
            rows = [
                _row(f"{group}.{key}", field, all_free=schema.all_free)
                for key, field in options_below(schema)
            ]
            lines += [f"**{name}**: {first_line}", "", *_keys_table(rows)]
    return "\n".join(lines).rstrip() + "\n"


def rules_page() -> str:
    """rules.md: every derivation and every rule."""
    lines = [MADE, "", "# Rules and derivations", "", OF_RULES.rstrip()]
    lines += ["", "| worked out | from | how |", "| --- | --- | --- |"]
    for derivation in DERIVATIONS:
        how = derivation.sentence
        lines.append(f"| {_keys(derivation.writes)} | {_keys(derivation.reads)} | {_cell(how)} |")
    lines += [ALL_RULES, "| rule | | demands | reads |", "| --- | --- | --- | --- |"]
    for rule in RULES:
        kind = "warning" if rule.warning else "error"
        lines.append(f"| `{rule.id}` | {kind} | {_cell(rule.sentence)} | {_keys(rule.reads)} |")
    return "\n".join(lines) + "\n"


PAGES = {"models.md": models_page, "options.md": options_page, "rules.md": rules_page}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages into a folder."""
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/.")
    parser.add_argument("--write", type=Path, required=True, metavar="DIR")
    folder = parser.parse_args(argv).write
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


def _keys_table(rows: Sequence[str]) -> list[str]:
    head = "| key | default | meaning | admits | free |"
    return [head, "| --- | --- | --- | --- | --- |", *rows, ""]


def _row(key: str, field: dataclasses.Field, *, all_free: bool = False) -> str:
    meaning, admitted = _cell(field.metadata["help"]), _cell(describe_bounds(field.metadata))
    free = "free" if all_free or field.metadata["free"] else ""
    return f"| `{key}` | `{yaml_value(default_of(field))}` | {meaning} | {admitted} | {free} |"


def _keys(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
