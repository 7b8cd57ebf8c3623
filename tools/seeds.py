"""docs/coming_from.md, made from tools/coming_from.md and tools/seeds.tsv: what the options of
other frameworks are called here, and where those of forge's five seeds went.

The seeds are KempnerForge's config sections and its validation rules, xaytune, MaxText and
nanochat. `python tools/seeds.py --write docs/coming_from.md` writes the page.
"""

from __future__ import annotations

import argparse
import csv
import functools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

TAKEN, LATER, NOT_TAKEN = STATUSES = ("taken", "later", "not taken")
RULES = "kempnerforge rule"
TITLES = {
    "kempnerforge": "KempnerForge",
    RULES: "KempnerForge, validation rules",
    "xaytune": "xaytune",
    "nanochat": "nanochat",
    "maxtext": "MaxText",
}
TABLE = Path(__file__).with_name("seeds.tsv")

INTRO = Path(__file__).with_name("coming_from.md")


@dataclass(frozen=True, kw_only=True)
class SeedRow:
    """One option of a seed: its default (KempnerForge only), what became of it, our key, and the
    difference or the reason.
    """

    seed: str
    section: str
    key: str
    default: str
    status: str
    ours: str
    note: str


@functools.cache
def rows() -> tuple[SeedRow, ...]:
    """The whole table, in the order of the seeds."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    table = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
    return tuple(SeedRow(**row) for row in table)


def render_markdown() -> str:
    """The page: counts by seed and status, the plan by subject, then a table for each section
    of each seed.
    """
    parts = [INTRO.read_text(encoding="utf-8").rstrip("\n") + "\n", _counts(), _plan()]
    for seed, options in groupby(rows(), key=lambda row: row.seed):
        parts.append(f"## {TITLES[seed]}\n")
        for section, members in groupby(options, key=lambda row: row.section):
            parts.append(f"### {section}\n\n{_section_table(section, list(members))}")
    return "\n".join(parts)


def _counts() -> str:
    count = Counter((row.seed, row.status) for row in rows())
    by_seed = {
        title: [count[seed, status] for status in STATUSES] for seed, title in TITLES.items()
    }
    lines = [[title, *map(str, numbers), str(sum(numbers))] for title, numbers in by_seed.items()]
    total = [str(sum(numbers)) for numbers in zip(*by_seed.values(), strict=True)]
    return _table(["seed", *STATUSES, "all"], [*lines, ["all", *total, str(len(rows()))]])


def _plan() -> str:
    subjects = Counter(row.note.partition(":")[0] for row in rows() if row.status == LATER)
    return "What comes later, by subject:\n\n" + _table(
        ["subject", "options"], [[s, str(n)] for s, n in subjects.most_common()]
    )


def _section_table(section: str, members: list[SeedRow]) -> str:
    with_default = any(row.default for row in members)
    lines = [
        [
            f"`{row.key.removeprefix(f'{section}: ')}`",
            *([f"`{row.default}`"] if with_default else []),
            f"`{_in_signs(row.ours)}`" if row.ours else f"*{row.status}*",
            row.note,
        ]
        for row in members
    ]
    return _table(["theirs", *(["default"] if with_default else []), "here", "note"], lines)


def _in_signs(bound: str) -> str:
    for name, sign in {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}.items():
        bound = bound.replace(f" {name} ", f" {sign} ")
    return bound


def _table(head: list[str], lines: Iterable[list[str]]) -> str:
    cells = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def main() -> None:
    """Print docs/coming_from.md, or write it."""
    parser = argparse.ArgumentParser(prog="python tools/seeds.py", description=main.__doc__)
    parser.add_argument(
        "--write", type=Path, metavar="FILE", help="write the page here instead of printing it"
    )
    target: Path | None = parser.parse_args().write
    if target is None:
        print(render_markdown(), end="")
    else:
        target.write_text(render_markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
