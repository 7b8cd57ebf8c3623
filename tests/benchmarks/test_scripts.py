"""benchmarks/README.md lists every script, and whatever names a script names its place."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPTS = {path.relative_to(ROOT).as_posix() for path in (ROOT / "benchmarks").rglob("*.py")}


def test_the_list_has_every_script_and_every_table() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    listed = {f"benchmarks/{link}" for link in links if link.endswith(".py")}
    assert listed == SCRIPTS
    tables = {path.name for path in (ROOT / "benchmarks" / "results").glob("*.md")}
    assert {Path(link).name for link in links if link.endswith(".md")} == tables


def test_named_scripts_exist() -> None:
    """In docs, results, code and comments, except of what the changelog tells of the past and of
    other projects' scripts."""
    places = ("README.md", "CONTRIBUTING.md", "Makefile", "benchmarks", "conf", "docs", "forge")
    files = [ROOT / place for place in (*places, "launch", "tests", "tools")]
    texts = [p for f in files for p in ([f] if f.is_file() else f.rglob("*")) if p.is_file()]
    named = {
        name
        for path in texts
        if path.suffix in (".md", ".py", ".yaml", "")
        for name in re.findall(r"\bbenchmarks/(?:\w+/)?\w+\.py\b", path.read_text(errors="ignore"))
    }
    assert len(named) > 30
    assert named - SCRIPTS == set()
