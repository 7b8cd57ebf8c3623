"""What forge.check -m says a sweep can show: by the spread of what has run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from example_sweep import SMALL, Example
from scipy import stats

from forge import check
from forge.report.detectable import spread
from forge.rundir.files import read_json

Printed = pytest.CaptureFixture[str]
TWO = ["-m", "optimizer.lr=1e-3,2e-3", *SMALL, "train.max_steps=20", "scheduler.warmup_steps=4"]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    example = Example(tmp_path / "sweeps" / "first", steps=20)
    for rate in ("0.001", "0.002", "0.003"):
        for seed in (1, 2, 3, 4):
            run = example.done([f"optimizer.lr={rate}"], seed=seed, gain=float(rate) * 50).path
            (run / "eval" / "arc").mkdir(parents=True)
            rows = [{"id": str(i), "metrics": {"accuracy": float(i % 2)}} for i in range(400)]
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (run / "eval" / "arc" / "20.jsonl").write_text(text)
    return example.sweep.path


def losses(sweep: Path) -> np.ndarray:
    paths = sorted(sweep.glob("points/*/result.json"))
    values = [read_json(path)["metrics"]["eval/loss"] for path in paths]
    return np.array(values).reshape(3, 4)


def test_by_the_spread_of_what_has_run(desk: Path, capsys: Printed) -> None:
    """The deviation is the root mean square, over pairs of arms, of that of their differences."""
    table = losses(desk)
    pairs = [table[i] - table[j] for i, j in ((0, 1), (0, 2), (1, 2))]
    deviation = math.sqrt(np.mean([pair.var(ddof=1) for pair in pairs]))
    found = spread([desk], "eval/loss")
    assert found is not None
    assert (found.deviation, found.freedom) == (pytest.approx(deviation, rel=1e-9), 6)
    assert check.main([*TWO, "seed=1,2,3,4,5"]) == 0
    *_, of_seeds, of_items = capsys.readouterr().out.splitlines()
    size = float(of_seeds.partition("a difference of ")[2].split()[0])
    shift = size / deviation * math.sqrt(5)
    assert stats.nct.sf(stats.t.ppf(0.975, 4), 4, shift) == pytest.approx(0.8, abs=0.02)
    assert "from sweeps/first, 6 degrees of freedom" in of_seeds
    assert "with the 400 items of arc, 7 points of accuracy" in of_items


def test_without_a_spread_and_without_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    assert check.main([*TWO, "seed=1,2,3"]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "with 3 seeds, a difference of 3.3 standard deviations of a pair" in line
    assert check.main(TWO) == 0
    assert "can show: no difference" in capsys.readouterr().out
    assert check.main(["-m", "seed=1,2", *SMALL]) == 0
    assert "can show" not in capsys.readouterr().out


def test_it_needs_no_torch(desk: Path) -> None:
    code = f"import sys\nfrom forge import check\ncheck.main({[*TWO, 'seed=1,2']!r})\n"
    code += "assert 'torch' not in sys.modules and 'pandas' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=desk.parents[1])
