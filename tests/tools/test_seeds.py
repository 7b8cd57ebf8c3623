"""The table of the seeds' options: complete, and true of the schema."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
import seeds

from forge.compose import seed_keys
from forge.compose.hydra_adapter import CONF
from forge.config import schemas
from forge.config.field import default_of
from forge.resolve.rules.all import RULES

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
TAKEN = [row for row in seeds.rows() if row.status == seeds.TAKEN]
OPTIONS = list(schemas.walk_options())
FIELDS = {key: [field for other, _, _, field in OPTIONS if other == key] for key, *_ in OPTIONS}
RULE_IDS = {rule.id for rule in RULES}
GROUPS = set(schemas.sections())
SUBJECTS = set(
    """
    mixture of experts; data mixtures and sources; other optimizers; model families; run directory;
    checkpoint conversion; supervised fine-tuning; LoRA; preference objectives;
    reinforcement learning; distillation; quantisation; planner;
    sliding and chunked attention; attention sinks;
    gated delta nets; multi-token prediction; two-tier checkpoints; DiLoCo;
    straggler alarm; DSA indexer;
    multimodal towers;
    lm-eval and CORE benchmarks
    """.strip()
    .replace("\n    ", " ")
    .split("; ")
)
"""What is planned; a subject that has been built leaves this list, and its rows become `taken`."""


def test_every_option_of_every_seed_has_one_row():
    keys = {(row.seed, row.key) for row in seeds.rows()}
    assert len(keys) == len(seeds.rows())
    assert Counter(seed for seed, _ in keys) == {
        "kempnerforge": 129,
        "kempnerforge rule": 64,
        "xaytune": 76,
        "nanochat": 36,
        "maxtext": 725,
    }


def test_the_table_is_well_formed():
    raw = seeds.TABLE.read_text(encoding="utf-8").splitlines()
    assert {line.count("\t") for line in raw} == {6}
    for row in seeds.rows():
        assert row.status in seeds.STATUSES, row
        assert row.seed in seeds.TITLES, row
        assert bool(row.ours) == (row.status == seeds.TAKEN), row
        assert row.note or row.status == seeds.TAKEN, row
        assert "|" not in row.note + row.ours + row.key, row


def test_what_comes_later_is_planned():
    assert {
        row.note.partition(":")[0] for row in seeds.rows() if row.status == seeds.LATER
    } <= SUBJECTS


def test_a_taken_option_exists():
    assert [row for row in TAKEN if row.seed != seeds.RULES and not exists(row.ours)] == []


@pytest.mark.parametrize(
    "row", [row for row in TAKEN if row.seed == seeds.RULES], ids=lambda row: row.key
)
def test_a_taken_rule_is_checked(row):
    key, *demand = row.ours.split()
    if demand == ["choices"]:
        assert all(field.metadata["choices"] for field in FIELDS[key])
    elif demand:
        wanted = {name: float(limit) for name, limit in zip(demand[::2], demand[1::2], strict=True)}
        assert all(field.metadata["bounds"] == wanted for field in FIELDS[key])
    else:
        assert key in RULE_IDS or exists(key)


def test_notes_name_what_exists():
    groups = "|".join(GROUPS)
    for row in seeds.rows():
        for mentioned in re.findall(rf"(?<![\w.])(?:{groups})(?:(?:\.\w+)+|=\w+)", row.note):
            assert mentioned in {
                "model=NAME",
                "tokenizer.json",
                "metrics.jsonl",
                *RULE_IDS,
            } or exists(mentioned), (row, mentioned)


@pytest.mark.parametrize(
    "row", [row for row in TAKEN if row.default and row.ours in FIELDS], ids=lambda row: row.key
)
def test_a_default_that_differs_is_explained(row):
    theirs = ast.literal_eval(row.default)
    for ours in (default_of(field) for field in FIELDS[row.ours]):
        assert theirs == ours or ("default" in row.note and str(ours) in row.note), (
            f"{row.key}: theirs {theirs!r}, ours {ours!r}"
        )


def test_the_pages_are_current():
    folder = REPOSITORY / "docs" / "reference" / "coming_from"
    pages = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert pages == seeds.render_pages(), "run make docs"


def test_every_row_is_on_one_page():
    lines = Counter(
        line for page in seeds.render_pages().values() for line in page.splitlines() if "|" in line
    )
    for row in seeds.rows():
        shown = row.key.removeprefix(f"{row.section}: ")
        assert any(line.startswith(f"| `{shown}` |") for line in lines), row
    tables = [len(page.splitlines()) for page in seeds.render_pages().values()]
    assert sum(tables) > len(seeds.rows())


def test_links_of_the_pages_lead_somewhere():
    folder = REPOSITORY / "docs" / "reference" / "coming_from"
    for name, page in seeds.render_pages().items():
        for link in re.findall(r"\]\(([^)#:]+)", page):
            assert (folder / link).exists(), (name, link)


def test_the_keys_that_are_answered_are_current():
    assert Path(seed_keys.__file__).read_text(encoding="utf-8") == seeds.render_keys(), (
        "run python tools/seeds.py --keys forge/compose/seed_keys.py"
    )


def exists(ours: str) -> bool:
    """Whether a key, a group or a group choice is one of forge's."""
    group, _, option = ours.partition("=")
    return (
        (CONF / group / f"{option}.yaml").is_file()
        or ours in GROUPS
        or ours in FIELDS
        or is_property(ours)
    )


def is_property(key: str) -> bool:
    """Whether a key names a computed property of a section."""
    group, _, name = key.partition(".")
    return (
        group in GROUPS
        and bool(name)
        and any(
            isinstance(getattr(s, name, None), property) for s in schemas.variants(group).values()
        )
    )
