"""Trackers of the user's own: opened with the run's directory, given all metrics, and never the end
of a run.
"""

from __future__ import annotations

import json
import logging
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from forge.config.problems import ConfigError
from forge.training.assemble import assemble

RUN = ["run.trust=[mypkg.]", "+trackers.mine._target_=mypkg.Text", "train.max_steps=2"]


class Text:
    """Writes what it is given to a file, and fails where it is told to."""

    def __init__(self, run_dir: Path, fails: str = "") -> None:
        self.file, self.fails = run_dir / "mine.txt", fails
        self._at("open")

    def log(self, step: int, values: dict[str, float]) -> None:
        self._at("log")
        self._write(f"{step} {json.dumps(values)}")

    def close(self) -> None:
        self._at("close")
        self._write("closed")

    def _at(self, moment: str) -> None:
        if moment == self.fails:
            raise OSError(f"no {moment}")

    def _write(self, line: str) -> None:
        with self.file.open("a") as file:
            file.write(f"{line}\n")


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("mypkg")
    package.Text = Text  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mypkg", package)


def test_it_is_given_every_metric_and_closed(trained: Callable[..., Path]) -> None:
    path = trained(*RUN)
    *lines, last = (path / "mine.txt").read_text().splitlines()
    assert last == "closed"
    ours = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line, row in zip(lines, ours, strict=True):
        step, _, values = line.partition(" ")
        assert int(step) == row["step"]
        assert {"step": int(step), **json.loads(values)}.items() >= row.items()


@pytest.mark.parametrize("moment", ["open", "log", "close"])
def test_one_that_fails_is_a_warning_that_names_it(
    moment: str, trained: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        path = trained(*RUN, f"+trackers.mine.fails={moment}")
    assert (
        f"trackers.mine failed and is off for the rest of this run, "
        f"which goes on: OSError: no {moment}"
    ) in caplog.text
    assert json.loads((path / "result.json").read_text())["status"] == "finished"


def test_one_that_cannot_be_built_is_refused_at_once(new_run: Callable[..., Path]) -> None:
    path = new_run(*RUN, "+trackers.mine.failz=open")
    with pytest.raises(ConfigError, match=r"trackers\.mine\.failz") as refused:
        assemble(path)
    assert refused.value.problems[0].fix == "did you mean trackers.mine.fails?"
