"""A folder of HTML: every link leads somewhere, and nothing is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "link": "href",
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
    "use": "href",
}
FROM_CSS = re.compile(r"(?:@import\s+|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)")


class Links(HTMLParser):
    """Reads a page. ids: anchors. links: of <a>. loaded: addresses that a browser fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        address = values.get(LOADED.get(tag, ""), "")
        if address and values.get("rel") != "canonical":
            self.loaded.append(address)
        self.loaded += FROM_CSS.findall(values.get("style", ""))


def check_site(folder: Path) -> list[str]:
    """Faults of the pages in a folder, a line each."""
    pages = {
        page: Links(page.read_text(encoding="utf-8")) for page in sorted(folder.rglob("*.html"))
    }
    faults = []
    for page, links in pages.items():
        name = page.relative_to(folder)
        faults += [f"{name}: loads {each}" for each in links.loaded if _foreign(each)]
        faults += [
            f"{name}: there is no {each}"
            for each in [*links.links, *links.loaded]
            if not _foreign(each) and not _leads(page, each, folder, pages)
        ]
    for sheet in sorted([*folder.rglob("*.css"), *folder.rglob("*.svg")]):
        for address in FROM_CSS.findall(sheet.read_text(encoding="utf-8")):
            faults.append(f"{sheet.relative_to(folder)}: loads {address}")
    return faults


def _foreign(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def _leads(page: Path, address: str, folder: Path, pages: dict[Path, Links]) -> bool:
    """Whether an address is of a file of the folder, with the anchor that it names."""
    parts = urlsplit(address)
    if parts.scheme:
        return True
    if parts.path.startswith("/"):
        target = folder / parts.path[1:]
    else:
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    target = target / "index.html" if target.is_dir() else target
    anchor = unquote(parts.fragment)
    if not target.is_file():
        return False
    return not anchor or target not in pages or anchor in pages[target].ids
