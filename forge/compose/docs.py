"""The pages of docs/ that are made from the schema: `python -m forge.compose.docs --write docs`."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from forge.compose.engine import Library
from forge.compose.help import first_line, show, summary
from forge.config import schemas
from forge.config.bounds import describe_bounds
from forge.config.field import default_of
from forge.resolve.derivations import DERIVATIONS
from forge.resolve.rules.all import RULES

MADE = "<!-- made by `make docs`; do not edit -->"


def options_page() -> str:
    """docs/options.md: every group, its options and every key with default, meaning and bounds."""
    library = Library()
    lines = [
        MADE,
        "",
        "# Options",
        "",
        "At the root:",
        "",
        "| key | default | meaning | admits | free |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [*(_row(field.name, field, all_free=False) for field in schemas.root_options()), ""]
    lines += [
        "A default is that of the schema. The options of a group state other values, to be read in `conf/<group>/<option>.yaml`;",
        "",
    ]
    lines[-1:] = [
        "`python -m forge.check` and `forge.explain KEY` show what a run would use, and where it comes from."
    ]
    lines += [
        "A *free* option may change when a run goes on ([run_directory.md](run_directory.md)); a larger `train.max_steps` may too.",
        "",
    ]
    for group in library.groups():
        lines += [f"## {group}", "", f"| `{group}=` | |", "| --- | --- |"]
        lines += [
            f"| `{option}` | {_cell(summary(library, group, option))} |"
            for option in library.options(group)
        ]
        lines.append("")
        if group not in schemas.sections():
            continue
        for name, schema in schemas.variants(group).items():
            title = (
                f"`{group}={name}` ({schema.__name__})"
                if group in schemas.SCHEMAS
                else schema.__name__
            )
            lines += [
                f"**{title}**: {first_line(schema)}",
                "",
                "| key | default | meaning | admits | free |",
                "| --- | --- | --- | --- | --- |",
            ]
            options = [
                (name, field)
                for name, _, field in schemas.options_of(schema)
                if not name.startswith("_")
            ]
            lines += [
                _row(f"{group}.{name}", field, all_free=schema.all_free) for name, field in options
            ]
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def rules_page() -> str:
    """docs/rules.md: every cross-section rule and every derivation."""
    lines = [MADE, "", "# Rules and derivations", ""]
    lines += [
        "Every value is first checked against the bounds of its own option (options.md). Then open values are",
        "",
    ]
    lines[-2] += " worked out, in this order:"
    lines += ["| worked out | from | how |", "| --- | --- | --- |"]
    for derivation in DERIVATIONS:
        lines.append(
            f"| {_keys(derivation.writes)} | {_keys(derivation.reads)} | {_cell(derivation.sentence)} |"
        )
    lines += [
        "",
        "Then every rule is checked, and every broken one is reported at once. A warning lets the run start.",
        "",
    ]
    lines += ["| rule | | demands | reads |", "| --- | --- | --- | --- |"]
    for rule in RULES:
        kind = "warning" if rule.warning else "error"
        lines.append(f"| `{rule.id}` | {kind} | {_cell(rule.sentence)} | {_keys(rule.reads)} |")
    return "\n".join(lines) + "\n"


PAGES = {"options.md": options_page, "rules.md": rules_page}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, and the map of the seeds, into a folder."""
    from forge.compose.seeds import render_markdown

    parser = argparse.ArgumentParser(
        prog="python -m forge.compose.docs", description="Write the generated pages of docs/."
    )
    parser.add_argument("--write", type=Path, required=True, metavar="DIR")
    folder = parser.parse_args(argv).write
    for name, page in {**PAGES, "seeds.md": render_markdown}.items():
        (folder / name).write_text(page(), encoding="utf-8")
    return 0


def _row(key: str, field: dataclasses.Field, *, all_free: bool) -> str:
    admitted, free = (
        _cell(describe_bounds(field.metadata)),
        "free" if all_free or field.metadata["free"] else "",
    )
    return f"| `{key}` | `{show(default_of(field))}` | {_cell(field.metadata['help'])} | {admitted} | {free} |"


def _keys(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
