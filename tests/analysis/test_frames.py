"""A sweep as data frames of pandas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import forge.report


def test_a_row_a_run(sweep: Path) -> None:
    found = forge.report.frame(sweep)
    assert list(found.columns[:9]) == [
        "number",
        "arm",
        "seed",
        "state",
        "why",
        "step",
        "tokens",
        "seconds",
        "optimizer.lr",
    ]
    assert found.groupby("arm")["seed"].count().to_dict() == {
        "lr=0.001": 3,
        "lr=0.002": 3,
        "lr=0.03": 4,
    }
    assert found["optimizer.lr"].tolist()[:2] == [0.001, 0.002]
    done = found[found["state"] == "done"]
    assert len(done) == 7
    assert done["eval/loss"].notna().all()
    assert found.loc[found["state"] != "done", "eval/loss"].isna().all()


def test_a_row_an_arm(sweep: Path) -> None:
    runs, found = (
        forge.report.frame(str(sweep)),
        forge.report.arms(sweep, baseline="lr=0.002", reach=5.2).set_index("arm"),
    )
    by_arm = runs[runs["state"] == "done"].groupby("arm")["eval/loss"]
    np.testing.assert_allclose(found["mean"], by_arm.mean()[found.index], rtol=1e-12)
    np.testing.assert_allclose(
        found["deviation"].astype(float), by_arm.std()[found.index], rtol=1e-12
    )
    assert found["baseline"].to_dict() == {"lr=0.001": False, "lr=0.002": True, "lr=0.03": False}
    assert found.loc["lr=0.001", "test"] == "paired"
    assert found.loc["lr=0.001", "reached"] == 3


def test_a_row_a_log(sweep: Path) -> None:
    found = forge.report.curves(sweep, "eval/loss")
    assert list(found.columns) == ["arm", "seed", "run", "step", "tokens", "seconds", "eval/loss"]
    assert found.groupby("run")["step"].max().tolist() == [200] * 7 + [50, 100]
    assert len(forge.report.curves(sweep)) == 7 * 20 + 5 + 10


def test_runs_as_a_list(sweep: Path) -> None:
    places = sorted((sweep / "points").iterdir())[:2]
    assert forge.report.frame(places)["arm"].tolist() == [path.name for path in places]


def test_other_names() -> None:
    with pytest.raises(
        AttributeError, match=r"module 'forge\.analysis' has no attribute 'frames_of'"
    ):
        _ = forge.report.frames_of  # type: ignore[attr-defined]
