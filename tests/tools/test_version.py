"""The version of a build is that of the tag, and there is one without git too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
FIRST = "0.1.0"


def version_of(folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "--version"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip().splitlines()[-1]


def git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def test_the_version_follows_the_tag(tmp_path: Path) -> None:
    shutil.copy(ROOT / "setup.py", tmp_path)
    assert version_of(tmp_path) == FIRST
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "setup.py")
    git(tmp_path, "commit", "-qm", "one")
    assert version_of(tmp_path) == FIRST
    git(tmp_path, "tag", "v1.2.3")
    assert version_of(tmp_path) == "1.2.3"
    git(tmp_path, "commit", "-qm", "two", "--allow-empty")
    ahead = version_of(tmp_path)
    assert ahead.startswith("1.2.4.dev1+g")
    with (tmp_path / "setup.py").open("a", encoding="utf-8") as file:
        file.write("# changed\n")
    changed = version_of(tmp_path)
    assert changed == f"{ahead}.dirty"
    assert Version("1.2.3") < Version(ahead) < Version("1.2.4")
    (tmp_path / "PKG-INFO").write_text(
        "Metadata-Version: 2.4\nName: x\nVersion: 7.0\n\nVersion: 8\n"
    )
    assert version_of(tmp_path) == "7.0"
