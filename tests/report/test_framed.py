"""forge.report, called: the frames of a report as one object, and its page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest

import forge


@pytest.fixture
def own(sweep: Path, tmp_path: Path) -> Path:
    """The sweep where files may be written beside those of other tests."""
    return shutil.copytree(sweep, tmp_path / sweep.name)


def test_a_report_has_all_frames_and_the_page(own: Path) -> None:
    report = forge.report(str(own), baseline="lr=0.002", reach=5.2)
    same = {"baseline": "lr=0.002", "reach": 5.2}
    pd.testing.assert_frame_equal(report.runs, forge.report.frame(own))
    pd.testing.assert_frame_equal(report.arms, forge.report.arms(own, **same))
    curves = forge.report.curves(own, "eval/loss")
    pd.testing.assert_frame_equal(report.curves("eval/loss"), curves)
    assert report.differences["arm"].tolist() == ["lr=0.001", "lr=0.03"]
    of_arms = report.arms.set_index("arm").loc["lr=0.001"]
    differences = report.differences.iloc[0]
    values = report.runs.pivot(index="seed", columns="arm", values="eval/loss").loc[[1, 2, 3]]
    by_hand = (values["lr=0.001"] - values["lr=0.002"]).astype(float).mean()
    assert differences["difference"] == of_arms["difference"] == pytest.approx(by_hand, abs=1e-12)
    assert report.page == own / "report" / "index.html"
    assert "lr=0.002" in report.page.read_text()
    assert repr(report).startswith("10 runs in 3 arms: 7 done")
    assert repr(report).endswith(f"page: {report.page}")  # relative, where it is below this folder
    assert "| arm |" in report._repr_markdown_()


def test_single_runs(own: Path) -> None:
    """One has the page of a run, and several are compared with the first."""
    places = sorted((own / "points").iterdir())[:2]
    one = forge.report(places[0])
    assert one.page == places[0] / "report" / "index.html"
    assert places[0].name in one.page.read_text()
    assert len(one.runs) == len(one.arms) == 1
    assert one.differences.empty
    report = forge.report(places)
    assert report.page is None
    assert report.runs["arm"].tolist() == [path.name for path in places]
    assert len(report.differences) == 1


def test_what_has_no_report(own: Path, tmp_path: Path) -> None:
    with pytest.raises(forge.ConfigError, match="neither a sweep nor a run"):
        forge.report(tmp_path / "nowhere")
    (own / "report").write_text("in the way")
    with pytest.raises(forge.ConfigError, match=r"index.html\n     it cannot be written: "):
        forge.report(own)
