"""make audit: it fails for what pip-audit finds, and for nothing that only the network does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

AUDIT = Path(__file__).parents[2] / "tools" / "audit.py"

# Writes as pip-audit 2.10 does: the file for any result, and nothing but its log where it fails.
PIP_AUDIT = """
import json, os, sys
from pathlib import Path

ignored = {word.split("=")[1] for word in sys.argv if word.startswith("--ignore-vuln=")}
(output,) = [word.split("=", 1)[1] for word in sys.argv if word.startswith("--output=")]
assert "--format=json" in sys.argv
if said := os.environ.get("SAID"):
    sys.exit(said)
packages = json.loads(os.environ["PACKAGES"])
for package in packages:
    if "vulns" in package:
        package["vulns"] = [one for one in package["vulns"] if one["id"] not in ignored]
Path(output).write_text(json.dumps({"dependencies": packages, "fixes": []}))
sys.exit(any(package.get("vulns") for package in packages))
"""

FAULT = {"id": "PYSEC-1", "fix_versions": ["2.0"], "aliases": ["CVE-1"], "description": "long"}
FAULTY = {"name": "jinja2", "version": "1.0", "vulns": [FAULT]}
SOUND = {"name": "numpy", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found on PyPI"}


def audit(folder: Path, *ignored: str, packages: Any = (), said: str = "") -> tuple[int, str]:
    (folder / "pip_audit.py").write_text(PIP_AUDIT, encoding="utf-8")
    environ = {**os.environ, "PYTHONPATH": str(folder), "SAID": said}
    environ["PACKAGES"] = json.dumps(packages)
    command = [sys.executable, str(AUDIT), *ignored]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def test_a_vulnerability_fails_unless_it_is_ignored(tmp_path: Path) -> None:
    packages = [SOUND, FAULTY, UNKNOWN]
    code, said = audit(tmp_path, packages=packages)
    assert code == 1
    assert "jinja2 1.0: PYSEC-1 CVE-1; mended in 2.0\n" in said
    assert "does not know them: torch\n" in said
    code, said = audit(tmp_path, "PYSEC-1", packages=packages)
    assert code == 0
    assert said.splitlines()[-1] == (
        "audit: 0 known vulnerabilities in 2 packages, PYSEC-1 left out"
    )


@pytest.mark.parametrize(
    ("said", "packages", "code", "line"),
    [
        ("ERROR:pip_audit._cli:Could not connect to PyPI's vulnerability feed", [], 0, "reached"),
        ("requests.exceptions.ReadTimeout: pypi.org", [], 0, "reached"),
        ("", [UNKNOWN], 0, "knows none of 1 packages"),
        ("pip-audit: error: no such option", [], 1, "no such option"),
    ],
)
def test_what_it_cannot_look_at_is_a_line(
    tmp_path: Path, said: str, packages: Any, code: int, line: str
) -> None:
    ended, printed = audit(tmp_path, packages=packages, said=said)
    assert ended == code
    assert line in printed
    assert ("audit: skipped" in printed) == (code == 0)
    assert len(printed.strip().splitlines()) == 1
