"""What every test shares: one thread, so that small tests are fast while others run, a cache of
their own, and a user's YAML files.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def forge_cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prepared data goes to a temporary place, shared by the tests of one session."""
    path = str(tmp_path_factory.mktemp("forge-cache"))
    os.environ["FORGE_CACHE"] = path
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests go first, so that none of them is left for the end, where it would run
    alone.

    Those of Slurm come after them: its jobs have time limits, which other tests of many ranks
    beside them use up.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    slurm = {item.path for item in items if item.get_closest_marker("slurm")}
    items.sort(key=lambda item: 1 if item.path in slurm else 0 if item.path in slow else 2)
