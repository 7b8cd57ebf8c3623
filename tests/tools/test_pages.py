"""The generated pages are current."""

from pathlib import Path

import pytest
from pages import PAGES

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), (
        f"docs/reference/{name} is out of date: run `make docs`"
    )
