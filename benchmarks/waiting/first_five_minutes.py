"""The first five minutes, timed: from the wheel of forge in an empty folder, through a new project,
to the page of a sweep. Nothing is downloaded: the packages that forge needs are those installed.

python benchmarks/waiting/first_five_minutes.py > benchmarks/results/first_five_minutes.md
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns("__pycache__")
NOTE = """
Left out: downloading and installing torch and the other packages that forge needs, which are those
of the environment that this was run in, by a .pth file. Nothing of forge is cached: the default
text is read and tokenised in these seconds. The load is the average number of processes that
wanted the cores at the end, those of this measurement among them."""


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        rows = list(timed(Path(place)))
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(
        f"`python {' '.join(sys.argv)}`, torch {torch.__version__}, {cores} cores, load {load:.0f}."
    )
    print("\n| what | seconds |\n| --- | --- |")
    for name, seconds in [
        *rows,
        ("all but the building of the wheel", sum(s for _, s in rows[1:])),
    ]:
        print(f"| {name} | {seconds:.1f} |")
    print(NOTE)


def timed(place: Path):
    """(what, seconds) of each step, in order."""
    desk, python = place / "desk", place / "env" / "bin" / "python"
    desk.mkdir()
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    own = {"FORGE_CACHE": str(place / "cache"), "XDG_CONFIG_HOME": str(place / "config")}

    def step(*command: object, cwd: Path) -> float:
        begin = time.perf_counter()
        words = [str(word) for word in command]
        done = subprocess.run(words, cwd=cwd, env=clean | own, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{words} failed:\n{done.stdout}\n{done.stderr}")
        return time.perf_counter() - begin

    source = place / "source"
    source.mkdir()
    for name in ("forge", "launch", "conf"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=LEFT_OUT)
    shutil.rmtree(source / "conf" / "local", ignore_errors=True)  # settings of this machine
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", place / "dist"]
    yield "building the wheel (a user has it)", step(*build, source, cwd=place)
    step(sys.executable, "-m", "venv", "--without-pip", place / "env", cwd=place)
    (wheel,) = (place / "dist").glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index"]
    yield "`pip install` of the wheel alone", step(*pip, wheel, cwd=desk)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = place / "env" / "lib" / version / "site-packages"
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    forge, demo = (python, "-m"), desk / "demo"
    yield "`python -m forge.new demo`", step(*forge, "forge.new", "demo", cwd=desk)
    yield "its test, `pytest`", step(*forge, "pytest", "-q", cwd=demo)
    train = (*forge, "forge.train", "run.device=cpu")
    yield "`python -m forge.train`, 120 steps", step(*train, cwd=demo)
    sweep = step(*train, "-m", "experiment=width", cwd=demo)
    yield "`python -m forge.train -m experiment=width`, 4 points of 40 steps", sweep
    yield (
        "`python -m forge.report sweeps/width`",
        step(*forge, "forge.report", "sweeps/width", cwd=demo),
    )
    assert (demo / "sweeps" / "width" / "report" / "index.html").is_file()


if __name__ == "__main__":
    main()
