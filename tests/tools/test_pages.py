"""The generated pages are current."""

from pathlib import Path

import pytest
from pages import GUIDES, PAGES

from forge.config import schemas

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), (
        f"docs/reference/{name} is out of date: run `make docs`"
    )


def test_no_option_is_lost() -> None:
    """Every key of every kind has a row that names the kind, or that is of all kinds."""
    rows = [line.split(" | ") for line in PAGES["options.md"]().splitlines() if "| `" in line]
    every = {row[0].strip("| `") for row in rows if len(row) == 8}
    by_kind = {(row[0].strip("| `"), kind) for row in rows for kind in row[1].split(", ")}
    lost = [
        (key, schema.__name__)
        for group in schemas.sections()
        for schema in schemas.variants(group).values()
        for name, _, _ in schemas.options_of(schema)
        if "._" not in f".{(key := f'{group}.{name}')}"
        and key not in every
        and (key, schema.__name__) not in by_kind
    ]
    assert lost == []
    assert {field.name for field in schemas.root_options()} <= every
    assert len(every) > 200


def test_every_page_of_a_group_exists() -> None:
    assert set(GUIDES) == {"", *schemas.sections()}
    assert all((DOCS.parent / page).is_file() for page in GUIDES.values())
