"""The documentation site: every page is in it, every link leads somewhere, nothing is foreign."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

import pytest
import site_pages
from site_check import check_site

ROOT = Path(__file__).parents[2]
PAGES = site_pages.site_pages()
HTML = """<html><head><link rel="stylesheet" href="a.css"></head>
<body id="top"><a href="#top">up</a><a href="b.html#there">b</a><img src="{}"></body></html>"""


def text_of(path: str) -> str:
    """The Markdown of a page; of a notebook that of its cells."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if not path.endswith(".ipynb"):
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    prose = "".join(stretch for stretch, is_prose in site_pages.prose(text) if is_prose)
    headings = [re.sub(r"\]\([^)]*\)", "", line) for line in re.findall(r"^#+ (.+)$", prose, re.M)]
    return {re.sub(r"[^\w\- ]", "", line.lower()).strip().replace(" ", "-") for line in headings}


def test_every_page_is_in_the_site() -> None:
    paths = [page.path for page in PAGES]
    documents = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    documents = {path for path in documents if "/example_package/" not in path}
    documents |= {str(path.relative_to(ROOT)) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert documents - {site_pages.FIRST} <= set(paths)
    assert len(set(paths)) == len(paths)
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    assert len({site_pages.staged(path) for path in paths}) == len(paths)


def test_llms_txt_is_current() -> None:
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == site_pages.llms(), "run `make docs`"


@pytest.mark.parametrize("path", ["README.md", site_pages.FIRST, *(page.path for page in PAGES)])
def test_every_link_leads_somewhere(path: str, tmp_path: Path) -> None:
    text, stage = text_of(path), site_pages.Stage(tmp_path)
    stage.linked(path, text)
    assert stage.faults == []
    lost = []
    for stretch in (stretch for stretch, is_prose in site_pages.prose(text) if is_prose):
        for link in site_pages.LINK.findall(site_pages.SPAN.sub("", stretch)):
            name, _, anchor = link[1].partition("#")
            file = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            file = file if name else path
            if anchor and ":" not in name and file.endswith(".md"):
                lost += [link[1]] if anchor not in anchors(text_of(file)) else []
    assert lost == []


def test_links_and_names_of_files_lead_to_pages_of_the_site(tmp_path: Path) -> None:
    stage = site_pages.Stage(tmp_path)
    text = "[a](../README.md) `forge/train.py` [`b`](../forge/train.py)\n\n    `forge/train.py`\n"
    assert stage.linked("docs/x.md", text) == (
        "[a](index.md) [`forge/train.py`](source/forge/train.py.md) "
        "[`b`](source/forge/train.py.md)\n\n    `forge/train.py`\n"
    )
    assert stage.sources == {"forge/train.py"}
    stage.linked("docs/x.md", "[a](nowhere.md)")
    assert stage.faults == ["docs/x.md: there is no nowhere.md"]


def test_what_is_built_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("p { background: url(x.png) }")
    (tmp_path / "b.html").write_text('<p id="there">')
    (tmp_path / "a.html").write_text(HTML.format("data:,"))
    assert check_site(tmp_path) == []
    (tmp_path / "a.html").write_text(HTML.format("https://example.org/x.png"))
    (tmp_path / "c.svg").write_text("<style>@font-face { src: url(https://example.org/f) }</style>")
    (tmp_path / "a.css").write_text("@import 'https://example.org/font.css';")
    (tmp_path / "b.html").write_text('<p id="elsewhere"><script src="//example.org/x.js"></script>')
    assert check_site(tmp_path) == [
        "a.html: loads https://example.org/x.png",
        "a.html: there is no b.html#there",
        "b.html: loads //example.org/x.js",
        "a.css: loads https://example.org/font.css",
        "c.svg: loads https://example.org/f",
    ]


def test_the_readme_is_read_in_two_screens() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("\n") <= 120
