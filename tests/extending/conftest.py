"""docs/example_package on the import path, and runs with it by the command line from another
directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from example_helpers import PACKAGE, ROOT, Verb
from hydra.core.config_store import ConfigStore

from forge.config import schemas


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """forge_example can be imported in this process; what it registers is gone afterwards."""
    before = {group: dict(variants) for group, variants in schemas.SCHEMAS.items()}
    monkeypatch.syspath_prepend(PACKAGE)
    yield
    for group, variants in before.items():
        for name in set(schemas.SCHEMAS[group]) - set(variants):
            del schemas.SCHEMAS[group][name]
            ConfigStore.instance().repo["schema"][group].pop(f"{name}.yaml", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "forge_example"]:
        del sys.modules[name]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A directory of the user's own, with a text."""
    (tmp_path / "text.txt").write_text(
        "".join(f"{i} the sea and the ship number {i * i % 97}\n" for i in range(400))
    )
    return tmp_path


@pytest.fixture
def verb(desk: Path) -> Verb:
    """Runs a verb of forge from the desk, with the example on PYTHONPATH."""

    def run(
        name: str, *arguments: str, code: int = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", f"forge.{name}", *arguments]
        path = os.pathsep.join([str(PACKAGE), str(ROOT)])
        done = subprocess.run(
            command,
            cwd=desk,
            env={**os.environ, "PYTHONPATH": path, **env},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run
