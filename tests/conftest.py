"""What every test shares: one thread, so that small tests are fast while others run, a cache of
their own, a user's YAML files, a text, and one run that is trained once a session.
"""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.tiny import TWO_LAYERS

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of commands are started: compiled once


SLOW = frozenset(Path(__file__).with_name("slow.txt").read_text(encoding="utf-8").splitlines())
"""Tests left to the night, by tools/slow_tests.py."""


@pytest.fixture(scope="session", autouse=True)
def forge_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prepared data goes to a temporary place, shared by the tests of one session."""
    path = str(tmp_path_factory.mktemp("forge-cache"))
    os.environ["FORGE_CACHE"] = path
    return path


@pytest.fixture(scope="session", autouse=True)
def no_slurm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test asks a cluster that it has not started; sbatch ends at once at an empty file."""
    empty = tmp_path_factory.mktemp("no-slurm") / "slurm.conf"
    empty.touch()
    os.environ["SLURM_CONF"] = str(empty)


@pytest.fixture(scope="session", autouse=True)
def no_trust(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No project is trusted but those of a test."""
    os.environ["XDG_CONFIG_HOME"] = str(tmp_path_factory.mktemp("config"))


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has started these processes as ranks."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests has no login to W&B that they could see."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nowhere/netrc")
    monkeypatch.setenv("WANDB_CONFIG_DIR", "/nowhere")


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 20 KB of lines of words, all different."""
    draw = random.Random(0)
    words = ["the", "a", "of", "sea", "ship", "whale", "white", "captain"]
    words += ["said", "and", "to", "in", "was", "his", "it", "man"]
    lines = (f"{i} {' '.join(draw.choices(words, k=8))} {draw.random()}\n" for i in range(300))
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="session")
def _trained_once(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    from forge import cli, worker
    from forge.rundir import directory

    place = tmp_path_factory.mktemp("trained") / "run"
    own = ["data=text", f"data.path={text_file}", f"run.dir={place}", "run.inline=true"]
    saving = ["checkpoint.interval=2", "eval.enabled=true", "eval.interval=2", "eval.steps=1"]
    composition, resolution = cli.resolved([*own, *TWO_LAYERS, *saving])
    path, _ = directory.create(resolution, overrides=composition.overrides)
    assert worker.main([str(path)]) == 0
    return path


@pytest.fixture
def tiny_run(_trained_once: Path, tmp_path: Path) -> Path:
    """A finished run of six steps, moved to tmp_path/tiny_run: metrics, a result, checkpoints of
    steps 2, 4 and 6, an
    evaluation at each of them. The session trains it once, in this process.
    """
    path = tmp_path / "tiny_run"
    shutil.copytree(_trained_once, path)
    return path


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], str]:
    """Write a file into a config folder of the user's own and give the folder's path."""

    def write_file(name: str, text: str) -> str:
        file = tmp_path / "conf" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return str(tmp_path / "conf")

    return write_file


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests go first, so that none of them is left for the end, where it would run
    alone.

    Those of Slurm come after them: its jobs have time limits, which other tests of many ranks
    beside them use up.
    """
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.nightly)
    leave_to_nightly(items, whole=not any("::" in arg for arg in config.args))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    slurm = {item.path for item in items if item.get_closest_marker("slurm")}
    items.sort(key=lambda item: 1 if item.path in slurm else 0 if item.path in slow else 2)


def leave_to_nightly(items: list[pytest.Item], *, whole: bool) -> None:
    """Mark as nightly what `ci` leaves out. whole: all parameters of a test are among the items, so
    that a name that none of them has is a mistake.
    """
    missing: dict[str, set[str]] = {}
    for item in items:
        if kept := item.get_closest_marker("ci"):
            test, _, name = item.nodeid.partition("[")
            missing.setdefault(test, set(kept.args)).discard(name[:-1])
            if name[:-1] not in kept.args:
                item.add_marker("nightly")
    wrong = {test: names for test, names in missing.items() if names}
    if whole and wrong:
        raise pytest.UsageError(f"pytest.mark.ci names parameters that are not there: {wrong}")
