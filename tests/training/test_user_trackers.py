"""Trackers of the user's own: opened with the run's directory, given all metrics, and never the end
of a run.
"""

from __future__ import annotations

import json
import logging
import sys
import types
from pathlib import Path

import pytest
from run_helpers import built, read

from forge.config.problems import ConfigError
from forge.rundir.files import read_rows

RUN = "run.trust=[mypkg.] +trackers.mine._target_=mypkg.Text train.max_steps=2"


class Text:
    """Writes what it is given to a file, and fails where it is told to."""

    def __init__(self, run_dir: Path, fails: str = ""):
        self.file, self.fails = run_dir / "mine.txt", fails
        self._do("open")

    def log(self, step, values):
        self._do("log", json.dumps({"step": step, **values}) + "\n")

    def close(self):
        self._do("close", "closed\n")

    def _do(self, moment, line=""):
        if moment == self.fails:
            raise OSError(f"no {moment}")
        with self.file.open("a") as file:
            file.write(line)


@pytest.fixture(autouse=True)
def mine(monkeypatch):
    package = types.ModuleType("mypkg")
    package.Text = Text
    monkeypatch.setitem(sys.modules, "mypkg", package)


def test_it_is_given_every_metric_and_closed(trained):
    path = trained(RUN)
    *lines, last = (path / "mine.txt").read_text().splitlines()
    assert last == "closed"
    for line, row in zip(lines, read_rows(path / "metrics.jsonl"), strict=True):
        assert json.loads(line).items() >= row.items()


@pytest.mark.parametrize("moment", ["open", "log", "close"])
def test_one_that_fails_is_a_warning_that_names_it(moment, trained, caplog):
    with caplog.at_level(logging.WARNING):
        path = trained(RUN, f"+trackers.mine.fails={moment}")
    said = "trackers.mine failed and is off for the rest of this run, which continues: OSError: no"
    assert caplog.text.count(said) == caplog.text.count(f"{said} {moment}") == 1
    assert (path / "mine.txt").exists() == (moment != "open")
    assert moment != "log" or (path / "mine.txt").read_text() == "closed\n"
    assert read(path / "result.json")["status"] == "finished"


def test_one_that_cannot_be_built_is_refused_at_once(new_run):
    with pytest.raises(ConfigError, match=r"trackers\.mine\.failz") as refused:
        built(new_run(RUN, "+trackers.mine.failz=open"))
    assert refused.value.problems[0].fix == "did you mean trackers.mine.fails?"
