"""The documentation site: pages of the repository, staged for mkdocs, built, and checked.

python tools/site_pages.py          stage into site/pages, build site/html, check it
python tools/site_pages.py --llms   write llms.txt

tools/site.tsv has the pages, in their order. A file of the repository that a page names, as a link
or as a code span, becomes a page under source/, so that every name leads somewhere.
"""

from __future__ import annotations

import base64
import csv
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "site"
FIRST = "docs/index.md"
RESULTS = "benchmarks/results"
TOP = {"README.md": "index.md", "benchmarks/README.md": "benchmarks/index.md"}
TOP |= {"llms.txt": "llms.txt"}
LINK = re.compile(r"(?<!\\)(\]\()([^()\s]+)(\))")
SPAN = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
NAMED = re.compile(r"(?:forge|launch|conf|tests|benchmarks|tools|docs)/[\w./-]+\.(?:py|ya?ml|md)")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".md": "markdown"}
OF_A_RUN = re.compile(rb'<a [^>]*href="\.\./[^"]*"[^>]*>(.*?)</a>')  # a report's link to a run
ELSEWHERE = re.compile(r"^(?:[a-z]+:|//|#)")


@dataclass(frozen=True)
class Page:
    """A page of the site. path: in the repository. about: a sentence."""

    section: str
    path: str
    about: str

    @property
    def title(self) -> str:
        return heading(self.path)


def site_pages() -> list[Page]:
    """The rows of tools/site.tsv, and a page for every other table of results."""
    with (ROOT / "tools" / "site.tsv").open(encoding="utf-8") as file:
        pages = [
            Page(row["section"], row["page"], row["about"])
            for row in csv.DictReader(file, delimiter="\t")
        ]
    listed = {page.path for page in pages}
    tables = sorted(str(path.relative_to(ROOT)) for path in (ROOT / RESULTS).glob("*.md"))
    return pages + [Page("Measured", path, "") for path in tables if path not in listed]


def heading(path: str) -> str:
    """The title of a page: its first heading, else its name in words."""
    text = (ROOT / path).read_text(encoding="utf-8")
    pattern = r'"# ([^"\\]+)' if path.endswith(".ipynb") else r"^# (.+)$"
    first = re.search(pattern, text, re.MULTILINE)
    return first[1].strip() if first else Path(path).stem.replace("_", " ").capitalize()


def staged(path: str) -> str:
    """The place in site/pages of a file or folder of the repository."""
    if path in TOP:
        return TOP[path]
    if (ROOT / path).is_dir():
        return TOP["benchmarks/README.md"] if path == RESULTS else f"source/{path}/index.md"
    if path.startswith(f"{RESULTS}/") and path.endswith(".html"):
        return path.replace(RESULTS, "benchmarks/reports")  # beside them a page has the name
    if path.endswith(".ipynb"):
        return path.removesuffix("ipynb") + "md"
    if "/" not in path and path.endswith(".md"):
        return path.lower()
    docs = path.startswith("docs/") and not path.startswith(
        ("docs/tutorial/", "docs/example_package/")
    )
    if docs or (path.startswith(f"{RESULTS}/") and not path.endswith(".py")):
        return path.removeprefix("docs/")
    return f"source/{path}.md"


def prose(text: str) -> Iterator[tuple[str, bool]]:
    """Stretches of a page, each with whether it is prose: no block of code."""
    lines, fence, block = [], "", False
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        inside = (
            bool(fence)
            or bool(mark)
            or (line.startswith("    ") and not line.strip().startswith(("*", "-")))
        )
        if mark and not fence:
            fence = mark[2]
        elif mark and line.strip().startswith(fence):
            fence = ""
        if inside != block:
            yield "".join(lines), not block
            lines, block = [], inside
        lines.append(line)
    yield "".join(lines), not block


class Stage:
    """Writes pages, and finds the files of the repository that they name."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.sources: set[str] = set()
        self.faults: list[str] = []

    def write(self, path: str, text: str) -> None:
        """Write the page of a file of the repository, its links led to pages of the site."""
        target = self.place / staged(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.linked(path, text), encoding="utf-8")

    def linked(self, path: str, text: str) -> str:
        """The text of a page with the links of the site."""
        parts = []
        for stretch, is_prose in prose(text):
            parts.append(self._prose(path, stretch) if is_prose else stretch)
        return "".join(parts)

    def _prose(self, path: str, text: str) -> str:
        parts, place = [], 0
        for span in SPAN.finditer(text):
            parts.append(self._links(path, text[place : span.start()]))
            inside_link = text[: span.start()].endswith("[") or text[span.end() :].startswith("](")
            parts.append(span[0] if inside_link else self._span(path, span[0], span[2]))
            place = span.end()
        return "".join([*parts, self._links(path, text[place:])])

    def _links(self, path: str, text: str) -> str:
        return LINK.sub(lambda link: f"]({self.target(path, link[2])})", text)

    def _span(self, path: str, span: str, name: str) -> str:
        """A code span; a link, where it is the name of a file."""
        known = NAMED.fullmatch(name) and (ROOT / name).is_file()
        return f"[{span}]({self.relative(path, name)})" if known else span

    def target(self, path: str, link: str) -> str:
        """Where a link of a page leads in the site."""
        if ELSEWHERE.match(link):
            return link
        name, mark, anchor = link.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
        if not (ROOT / file).exists():
            self.faults.append(f"{path}: there is no {link}")
            return link
        return self.relative(path, file) + mark + anchor

    def relative(self, path: str, file: str) -> str:
        place = staged(file)
        if place.startswith("source/"):
            self.sources.add(file)
        return posixpath.relpath(place, posixpath.dirname(staged(path)) or ".")

    def write_sources(self) -> None:
        """Write the pages of files and folders that were named, and of what is in the folders."""
        for name in sorted(self.sources):
            path = ROOT / name
            if path.is_dir():
                inside = [
                    each
                    for each in sorted(path.rglob("*"))
                    if each.is_file() and "__pycache__" not in each.parts
                ]
                names = [str(each.relative_to(ROOT)) for each in inside]
                self.sources.update(names)
                rows = [f"* [`{each}`]({self.relative(name + '/x.py', each)})" for each in names]
                self._source(name, "\n".join(rows))
        for name in sorted(each for each in self.sources if (ROOT / each).is_file()):
            text = (ROOT / name).read_text(encoding="utf-8")
            language = LANGUAGES.get(Path(name).suffix, "text")
            self._source(name, f"`````{language}\n{text.rstrip()}\n`````")

    def _source(self, name: str, text: str) -> None:
        target = self.place / staged(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        head = f"---\nsearch:\n  exclude: true\n---\n# {name}\n\n"
        target.write_text(f"{head}{text}\n", encoding="utf-8")


def page_text(path: str) -> str:
    """The Markdown of a page, which begins with a heading."""
    if path.endswith(".ipynb"):
        return notebook(path)
    text = (ROOT / path).read_text(encoding="utf-8")
    if path == FIRST:
        return f"---\nhide: [navigation]\n---\n{text}"
    return text if re.search(r"^# ", text, re.MULTILINE) else f"# {heading(path)}\n\n{text}"


def notebook(path: str) -> str:
    """A notebook as Markdown, with the outputs and pictures that are stored in it."""
    from nbconvert import MarkdownExporter

    text, resources = MarkdownExporter().from_filename(str(ROOT / path))
    for name, data in resources["outputs"].items():
        picture = f"data:image/png;base64,{base64.b64encode(data).decode()}"
        text = text.replace(f"]({name})", f"]({picture})")
    return text


def nav(pages: list[Page]) -> str:
    """The order of the pages, as mkdocs reads it."""
    lines = [
        "INHERIT: ../mkdocs.yml",
        "docs_dir: pages",
        "site_dir: html",
        "nav:",
        "  - forge: index.md",
    ]
    for section in dict.fromkeys(page.section for page in pages):
        lines.append(f"  - {section}:")
        for page in (page for page in pages if page.section == section):
            title = page.title.replace("`", "").replace('"', "'")
            lines.append(f'      - "{title}": {staged(page.path)}')
    return "\n".join(lines) + "\n"


def stage() -> list[str]:
    """Write site/pages and site/mkdocs.yml. Returns the links that lead nowhere."""
    shutil.rmtree(SITE, ignore_errors=True)
    pages, here = site_pages(), Stage(SITE / "pages")
    for path in [FIRST, *(page.path for page in pages)]:
        here.write(path, page_text(path))
    here.write_sources()
    for folder in ("docs", RESULTS):
        for file in sorted((ROOT / folder).iterdir()):
            if file.suffix in (".svg", ".png", ".html", ".css"):
                target = here.place / staged(str(file.relative_to(ROOT)))
                target.parent.mkdir(exist_ok=True)
                target.write_bytes(OF_A_RUN.sub(rb"\1", file.read_bytes()))
    (SITE / "mkdocs.yml").write_text(nav(pages), encoding="utf-8")
    of_html = re.sub(r"\.md\)", ".html)", here.linked("llms.txt", llms()))
    (here.place / "llms.txt").write_text(of_html, encoding="utf-8")
    return here.faults


def llms() -> str:
    """The text of llms.txt: what forge is, and a line for each page."""
    lines = [ABOUT.strip()]
    pages = [page for page in site_pages() if page.about]
    for section in dict.fromkeys(page.section for page in pages):
        lines.append(f"\n## {section}\n")
        for page in (page for page in pages if page.section == section):
            lines.append(f"- [{page.title}]({page.path}): {page.about}")
    return "\n".join(lines) + "\n"


ABOUT = """
# forge

> Composable experiments for training language models in PyTorch: config groups on one command line,
> checked in a fraction of a second without torch, laid on any devices.

Every command answers `--help`; `python -m forge.train --help GROUP` has the options of a group.
[AGENTS.md](AGENTS.md) has what an assistant needs to work in this repository. Options, rules and
models are made from the schema: where a page and the schema differ, a test fails.
"""


def main() -> int:
    """Write llms.txt, or stage, build and check the site; 1 where a link leads nowhere."""
    if sys.argv[1:] == ["--llms"]:
        (ROOT / "llms.txt").write_text(llms(), encoding="utf-8")
        return 0
    from site_check import check_site

    if faults := stage():
        print("\n".join(faults), file=sys.stderr)
        return 1
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    if subprocess.run([*build, "--config-file", SITE / "mkdocs.yml"], env=quiet).returncode:
        return 1
    faults = check_site(SITE / "html")
    print(
        "\n".join(faults) or f"{SITE / 'html' / 'index.html'}",
        file=sys.stderr if faults else sys.stdout,
    )
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
