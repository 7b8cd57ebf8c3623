"""A wheel holds every module, YAML option and table of the checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_wheel_holds_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("forge/")}
    wanted = {f"forge/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml") if "local" not in path.parts}
    for folder in ("forge", "launch"):
        base = ROOT / folder
        prefix = "forge" if folder == "forge" else "forge/launch"
        wanted |= {f"{prefix}/{p.relative_to(base)}" for p in base.rglob("*") if p.suffix in (".py", ".tsv") and not p.is_symlink()}
    wanted = {name for name in wanted if "__pycache__" not in name}
    assert held == wanted
