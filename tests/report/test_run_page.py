"""`python -m forge.report RUN`: the page of one run has all that its files hold, and no more."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from example_sweep import Example

from forge.report import __main__ as report
from forge.report import run_page
from forge.report.inventory import find_runs
from forge.report.logs import Log
from forge.rundir import files
from forge.rundir.annotations import annotate
from forge.rundir.saved_config import read_plain

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run as training leaves it, a thousand logs long."""
    monkeypatch.chdir(tmp_path)
    example = Example(tmp_path / "sweep", steps=10_000)
    path = example.done(["optimizer.lr=0.002"], seed=1).path
    files.append_row(path / "samples.jsonl", {"step": 5, "prompt": "def", "text": "<b>old</b>"})
    files.append_row(path / "samples.jsonl", {"step": 9, "prompt": "def", "text": " new(x):"})
    files.write_json(path / "overrides.json", ["optimizer.lr=0.002", "eval.sample_prompts=[a b]"])
    why = {"key": "train.max_steps", "value": 10_000, "why": "as typed"}
    files.write_json(path / "derived.json", [why])
    facts = {"run_id": "abc", "host": "node <1>", "versions": {"torch": "2.13", "x": None}}
    files.write_json(path / "provenance.json", facts | {"argv": ["train.py", "a b"]})
    files.write_json(path / "warnings.json", [{"what": "it may be slow"}])
    annotate(path, tags=("paper",), note="as in <the> paper")
    return path


def test_the_page_is_written_beside_the_run(run: Path, capsys: Printed) -> None:
    assert report.main([str(run)]) == 0
    said = capsys.readouterr().out.splitlines()
    best = Log(run).curve("eval/loss")
    assert said[0] == str(run.relative_to(Path.cwd()))
    assert said[1].startswith("done: step 10,000 of 10,000, 20,480,000 tokens, ")
    step = int(best.steps[np.argmin(best.values)])
    assert said[2].startswith(f"Best eval/loss: {best.values.min():.5g} at step {step:,}, ")
    assert said[3:5] == ["Tags: paper", "as in <the> paper"]
    assert said[-1] == f"written: {run.relative_to(Path.cwd())}/report/index.html"
    text = (run / "report" / "index.html").read_text()
    assert "as in &lt;the&gt; paper" in text
    assert len(text) < 200_000
    assert report.main([str(run), "--html", "-"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_what_it_holds(run: Path) -> None:
    """Every metric, thinned out; samples with the newest first; every option; nothing as markup."""
    (entry,), _ = find_runs([run])
    text = run_page.page_of_run(entry)
    (found,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    data = json.loads(found)
    log = Log(run)
    assert {one["metric"] for one in data["curves"]} == set(log.metrics)
    for one in data["curves"]:
        curve, steps = log.curve(one["metric"]), data["grids"][one["grid"]]
        assert len(one["mean"]) == len(steps) == min(len(curve.steps), run_page.POINTS)
        assert np.mean(one["mean"]) == pytest.approx(curve.values.mean(), rel=5e-3)
    shown = [data["curves"][i]["metric"] for figure in data["figures"] for i in figure["curves"]]
    assert shown == ["train/loss", "eval/loss", "lr", "tokens_per_second"]
    track = data["tracks"][0]
    assert track["tokens"] == pytest.approx([2048 * step for step in track["step"]], rel=1e-5)
    assert text.index("<b>def</b> new(x):") < text.index("<b>def</b>&lt;b&gt;old")
    assert "python -m forge.train optimizer.lr=0.002 &#x27;eval.sample_prompts=[a b]&#x27;" in text
    assert "node &lt;1&gt;" in text
    assert "train.py &#x27;a b&#x27;" in text
    assert ">torch 2.13<" in text
    assert "it may be slow" in text
    cells = dict(re.findall(r'<th scope="row">([\w.]+)</th><td [^>]*>([^<]*)</td></tr>', text))
    config = read_plain(run)
    assert cells["optimizer.lr"] == "0.002"
    assert cells["model.dim"] == str(config["model"]["dim"])


def test_a_run_that_has_yet_to_log(tmp_path: Path) -> None:
    path = Example(tmp_path / "sweep", steps=20).partial([], seed=1, at=0).path
    (entry,), _ = find_runs([path])
    text = run_page.page_of_run(entry)
    assert "Nothing has been logged yet." in text
    assert "<figure" not in text


def test_a_run_that_failed(tmp_path: Path, capsys: Printed) -> None:
    path = (
        Example(tmp_path / "sweep", steps=20).failed([], seed=1, at=10, why="out of <memory>").path
    )
    assert report.main([str(path)]) == 0
    assert "Why it failed: out of <memory>" in capsys.readouterr().out
    assert "Why it failed: out of &lt;memory&gt;" in (path / "report" / "index.html").read_text()


@pytest.mark.parametrize("words", ["--metric eval/loss", "--csv -", "--top 3", "--runs-csv a"])
def test_what_is_of_several_runs_is_refused(run: Path, words: str, capsys: Printed) -> None:
    assert report.main([str(run), *words.split()]) == 2
    said = capsys.readouterr().err
    assert f"{words.split()[0]}   [command line]\n     it is of a sweep, or of several runs" in said
    assert not (run / "report").exists()


def test_nothing_is_written_through_a_link(run: Path, tmp_path: Path, capsys: Printed) -> None:
    (run / "report").symlink_to(tmp_path)
    assert report.main([str(run)]) == 2
    assert "nothing is written through one" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()
