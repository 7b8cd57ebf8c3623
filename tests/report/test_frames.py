"""A sweep as data frames of pandas."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import forge.report


def test_runs_and_arms(sweep: Path) -> None:
    """The numbers of an arm are those that pandas has of its runs."""
    runs = forge.report.frame(str(sweep))
    columns = ["number", "arm", "seed", "state", "why", "step", "tokens", "seconds", "optimizer.lr"]
    assert list(runs.columns[:9]) == columns
    count = {"lr=0.001": 3, "lr=0.002": 3, "lr=0.03": 4}
    assert runs.groupby("arm")["seed"].count().to_dict() == count
    done = runs[runs["state"] == "done"]
    assert runs["eval/loss"].notna().tolist() == (runs["state"] == "done").tolist()
    arms = forge.report.arms(sweep, baseline="lr=0.002", reach=5.2).set_index("arm")
    values = done.groupby("arm")["eval/loss"]
    np.testing.assert_allclose(arms["mean"], values.mean()[arms.index], rtol=1e-12)
    deviations = arms["deviation"].astype(float)
    np.testing.assert_allclose(deviations, values.std()[arms.index], rtol=1e-12)
    assert arms["baseline"].tolist() == [False, True, False]
    assert (arms["test"].iloc[0], arms["reached"].iloc[0]) == ("paired", 3)


def test_curves_and_single_runs(sweep: Path) -> None:
    found = forge.report.curves(sweep, "eval/loss")
    assert list(found.columns) == ["arm", "seed", "run", "step", "tokens", "seconds", "eval/loss"]
    assert found.groupby("run")["step"].max().tolist() == [200] * 7 + [50, 100]
    assert len(forge.report.curves(sweep)) == 7 * 20 + 5 + 10
    places = sorted((sweep / "points").iterdir())[:2]
    assert forge.report.frame(places)["arm"].tolist() == [path.name for path in places]
