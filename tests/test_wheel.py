"""A wheel and an sdist hold every module, YAML option and table of the checkout, and train where
there is no checkout.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "docs" / "example_package"
USE = [
    "hydra.searchpath=[pkg://forge_example.conf]",
    "run.trust=[forge_example.]",
    "+recipe=smooth",
]
LEFT_OUT = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")

pytestmark = pytest.mark.nightly
KINDS = (".py", ".tsv", ".css", ".html", ".js", ".typed")


def run(*command: object, cwd: Path, **env: str) -> str:
    """Output of a command that knows nothing of this checkout; it must succeed."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "PYTHONSAFEPATH", "VIRTUAL_ENV")
    }
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wheel and sdist of forge, the wheel built from the sdist, and the wheel of the example; built
    of copies, without a download.
    """
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    source.mkdir()
    for name in ("forge", "launch", "conf"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=LEFT_OUT)
    shutil.rmtree(source / "conf" / "local", ignore_errors=True)  # settings of this machine
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(EXAMPLE, folder / "example", ignore=LEFT_OUT)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "out"]
    run(*build, source, cwd=folder)
    run(*build, "--wheel", folder / "example", cwd=folder)
    return folder / "out"


@pytest.fixture(scope="session")
def wanted() -> set[str]:
    """Every file that a package of forge has."""
    found = {
        f"forge/conf/{path.relative_to(ROOT / 'conf')}"
        for path in (ROOT / "conf").rglob("*.yaml")
        if "local" not in path.parts
    }
    for folder, prefix in (("forge", "forge"), ("launch", "forge/launch")):
        base = ROOT / folder
        found |= {
            f"{prefix}/{p.relative_to(base)}"
            for p in base.rglob("*")
            if (p.suffix in KINDS or "template" in p.parts) and p.is_file() and not p.is_symlink()
        }
    return {name for name in found if "__pycache__" not in name}


def test_the_wheel_holds_everything(dist: Path, wanted: set[str]) -> None:
    (wheel,) = dist.glob("forge_lm-*.whl")
    assert {
        name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("forge/")
    } == wanted


@pytest.fixture(scope="session")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment with both wheels, and the dependencies of this one."""
    place = tmp_path_factory.mktemp("env")
    run(sys.executable, "-m", "venv", "--without-pip", place, cwd=place)
    interpreter = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", *sorted(dist.glob("*.whl")), cwd=place)
    purelib = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(run(interpreter, "-c", purelib, cwd=place).strip())
    # An editable install there is not followed.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def test_it_composes_checks_and_trains_elsewhere(python: Path, tmp_path: Path) -> None:
    where = run(
        python,
        "-c",
        "import forge, forge.launch, forge_example; print(forge.__file__, forge_example.__file__)",
        cwd=tmp_path,
    )
    assert all(Path(file).is_relative_to(python.parents[1]) for file in where.split())
    assert "model=tiny" in run(python, "-m", "forge.check", cwd=tmp_path)
    assert "_target_: forge.models.decoder.Decoder" in run(
        python.with_name("forge"), "train", "--cfg", "job", cwd=tmp_path
    )
    assert "all steps done" in run(
        python, "-m", "forge.train", "debug=fast", "run.dir=fast", cwd=tmp_path
    )
    assert (tmp_path / "fast" / "result.json").is_file()


def test_the_example_trains_elsewhere(python: Path, tmp_path: Path) -> None:
    assert "model=gated_conv" in run(python, "-m", "forge.check", *USE, cwd=tmp_path)
    assert "all steps done" in run(
        python.with_name("forge"), "train", *USE, "debug=fast", "run.dir=run", cwd=tmp_path
    )
    assert (tmp_path / "run" / "ema.safetensors").is_file()
    assert (tmp_path / "run" / "metrics.csv").read_text().startswith("step,name,value\n")
