"""The pages of docs/reference that are made from the code; `--write docs/reference` writes them."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from models import models_page

from forge.compose.composition import config as compose_config
from forge.compose.engine import Library
from forge.compose.help import option_summary, options_below, titles, yaml_value
from forge.config import schemas
from forge.config.bounds import describe_bounds
from forge.config.field import default_of
from forge.config.root import Config
from forge.config.rule import get
from forge.resolve.derivations import DERIVATIONS
from forge.resolve.rules.all import RULES

MADE = "<!-- made by `make docs`; do not edit -->"
OF_OPTIONS = """\
Two tables to search for a key or a word: options of every run, and options that one kind of \
model, data, optimizer and so on adds.
*Default run* is the value of `python -m forge.train` before open values (`-1`, `null`) are worked \
out; *default* is that of the schema, in force where no file of `conf/` states another.
`python -m forge.explain KEY` shows what a run would use and where the value comes from. \
*Rules* are explained in [rules.md](rules.md).
A *free* option may change when a run continues ([runs.md](../runs.md#the-run-directory)); \
a larger `train.max_steps` may too.
"""
OF_KINDS = """\
Kinds are chosen by group: [groups](#groups) below has the choices. An empty *default run* means \
that the default run has another kind.
"""
COLUMNS = ["default run", "default", "meaning", "admits", "free", "page", "rules"]
HEAD = [f"| key | {' | '.join(COLUMNS)} |", "| --- |" + " --- |" * len(COLUMNS)]
HEAD_OF_KINDS = [
    f"| key | kind | {' | '.join(COLUMNS)} |",
    "| --- | --- |" + " --- |" * len(COLUMNS),
]
GUIDES = {
    "": "concepts.md",
    "model": "architecture.md",
    "tokenizer": "how_to.md",
    "data": "how_to.md",
    "objective": "fine_tuning.md",
    "rollout": "reinforcement.md",
    "adapter": "fine_tuning.md",
    "optimizer": "optimizers.md",
    "scheduler": "optimizers.md",
    "precision": "low_precision.md",
    "quantization": "low_precision.md",
    "parallel": "layouts.md",
    "train": "concepts.md",
    "scaling": "scaling.md",
    "eval": "how_to.md",
    "checkpoint": "runs.md",
    "metrics": "runs.md",
    "profiling": "how_to.md",
    "diloco": "layouts.md",
    "fault_tolerance": "layouts.md",
    "run": "runs.md",
    "launch": "launching.md",
    "plan": "planning.md",
    "sweep": "sweeps.md",
    "sweeper": "sweeps.md",
}
"""The page of docs/ about each group."""
OF_RULES = """\
Every value is first checked against the bounds of its own option (options.md). \
Then open values are worked out, in this order:
"""
ALL_RULES = """
Then every rule is checked, and every broken one is reported at once. A warning lets the run start.
"""


def options_page() -> str:
    """options.md: a table of options of every run, one of those that a kind adds, the choices."""
    library, run = Library(), compose_config([])
    common, added = _common(), _added()
    lines = [MADE, "", "# Options", "", OF_OPTIONS, "## Options of every run", "", *HEAD]
    lines += [_row(option, run) for option in common]
    lines += ["", "## Options that a kind adds", "", OF_KINDS, *HEAD_OF_KINDS]
    lines += [_row(option, run) for option in added]
    lines += ["", "## Groups", ""]
    for group in library.groups():
        lines += [f"### {group}", "", f"| `{group}=` | |", "| --- | --- |"]
        lines += [
            f"| `{option}` | {_cell(option_summary(library, group, option))} |"
            for option in library.options(group)
        ]
        kinds = [(schema.__name__, choice, line) for choice, schema, line in titles(group)]
        if len(kinds) > 1:
            lines += ["", "| kind | chosen by | what it is |", "| --- | --- | --- |"]
            lines += [
                f"| {kind} | {f'`{choice}`' if choice else ''} | {_cell(line)} |"
                for kind, choice, line in kinds
            ]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


@dataclass(frozen=True)
class Option:
    """A row of a table: an option, its group (empty at the root) and the kinds that have it."""

    key: str
    group: str
    field: dataclasses.Field
    all_free: bool = False
    kinds: tuple[str, ...] = ()


def _of_kinds(group: str) -> dict[str, list[Option]]:
    """The options of each kind of a group, by the name of its class."""
    return {
        schema.__name__: [
            Option(f"{group}.{key}", group, field, schema.all_free)
            for key, field in options_below(schema)
        ]
        for _, schema, _ in titles(group)
    }


def _text(option: Option) -> tuple[str, ...]:
    """Whatever a row says of the option itself; kinds with equal texts share a row."""
    data = option.field.metadata
    default = yaml_value(default_of(option.field))
    return option.key, default, data["help"], describe_bounds(data), _free(option)


def _divided(group: str) -> tuple[list[Option], list[Option]]:
    """The options of a group that all kinds have alike, and the others with their kinds."""
    kinds = _of_kinds(group)
    having: dict[tuple[str, ...], dict[str, None]] = {}
    options: dict[tuple[str, ...], Option] = {}
    for kind, below in kinds.items():
        for option in below:
            options.setdefault(_text(option), option)
            having.setdefault(_text(option), {})[kind] = None
    common = [options[text] for text, names in having.items() if len(names) == len(kinds)]
    added = [
        dataclasses.replace(options[text], kinds=tuple(names))
        for text, names in having.items()
        if len(names) < len(kinds)
    ]
    return common, added


def _common() -> list[Option]:
    root = [Option(field.name, "", field) for field in schemas.root_options()]
    return root + [option for group in schemas.sections() for option in _divided(group)[0]]


def _added() -> list[Option]:
    return [option for group in schemas.sections() for option in _divided(group)[1]]


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


def _row(option: Option, run: Config) -> str:
    key, default, meaning, admitted, free = _text(option)
    cells = [f"`{key}`", *([", ".join(option.kinds)] if option.kinds else [])]
    cells += [_in_run(option, run), f"`{default}`", meaning, admitted, free]
    cells += [_guide(option), _keys([rule.id for rule in RULES if key in rule.reads])]
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def _in_run(option: Option, run: Config) -> str:
    """The value in the default run; empty where its kinds are others."""
    section = getattr(run, option.group) if option.group else run
    if option.kinds and type(section).__name__ not in option.kinds:
        return ""
    try:
        value = get(run, option.key)
    except AttributeError:  # of a part that the default run has none of
        return ""
    if isinstance(value, dict) and value:  # of entries with values of their own
        return ", ".join(f"`{name}`" for name in value)
    return f"`{yaml_value(value)}`"


def _guide(option: Option) -> str:
    """Link to the page about the option's group."""
    page = GUIDES[option.group]
    return f"[{page.partition('.')[0]}](../{page})"


def _free(option: Option) -> str:
    return "free" if option.all_free or option.field.metadata["free"] else ""


def _keys(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
