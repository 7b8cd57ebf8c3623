"""forge.api: the names for components of users."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forge import api

ROOT = Path(__file__).parent.parent
PAGES = [
    *ROOT.glob("docs/**/*.py"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("forge/new/template/**/*.py"),
    *ROOT.glob("notebooks/*.ipynb"),
    ROOT / "README.md",
]
INTERNAL = re.compile(r"(?:from|import) (forge\.(?!api\b)[a-z_.]+)")


@pytest.mark.parametrize("name", api.__all__)
def test_each_name_is_there_and_says_what_it_is(name: str) -> None:
    value = getattr(api, name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert (inspect.getdoc(value) or "").strip()


def test_the_table_has_the_imports_of_type_checkers() -> None:
    block = next(node for node in ast.parse(inspect.getsource(api)).body if type(node) is ast.If)
    rows = set()
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        module = (node.module or "").removeprefix("forge.")
        for alias in node.names:
            rows.add((alias.asname, module, alias.name) if alias.asname else (alias.name, module))
    assert rows == {tuple(line.split()) for line in api.PLACES.strip().splitlines()}
    assert {name for name, *_ in rows} == set(api.__all__)


def test_sections_and_options_need_no_torch() -> None:
    code = "from forge.api import DecoderSection, TensorSpec, opt, register, rule; import sys; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_documents_import_from_forge_and_its_api_alone() -> None:
    imports = {(page.name, name) for page in PAGES for name in INTERNAL.findall(page.read_text())}
    assert imports == {("reports.md", "forge.report")}
