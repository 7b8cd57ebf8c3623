"""The coordinate check: recorded sizes, their powers of the width, and muP beside no rule."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import forge
from forge.coords import __main__ as coords
from forge.coords.page import PLACES, Measured, growths, markdown, page, power


def test_the_power_of_the_width_is_that_of_the_sizes() -> None:
    assert power({64: 3 * 64**0.7, 100: 3 * 100**0.7, 512: 3 * 512**0.7}) == pytest.approx(0.7)
    assert power({64: 2.0, 128: 4.0, 256: 2.0}) == pytest.approx(0)


def made_up(label: str, exponent: float) -> list[Measured]:
    rows = {width: {f"{place} change": width**exponent for place in PLACES} for width in (64, 256)}
    return [Measured(label, width, [{}, row]) for width, row in rows.items()]


def test_the_page_has_every_scaling() -> None:
    measured = [*made_up("standard", 1.0), *made_up("mup", 0.1)]
    found = {(growth.label, growth.is_flat) for growth in growths(measured)}
    assert found == {("standard", False), ("mup", True)}
    text = markdown(measured, 5, "model.dim")
    assert "| standard | logits | 64 | 256 | +1.00 | no |" in text
    html = page(measured, 5, "model.dim", "scaling=mup <b>")
    assert html.count("<svg") == 2
    assert html.count("<polyline") == 2 * len(PLACES)
    assert "scaling=mup &lt;b&gt;" in html


def test_the_recorded_sizes_are_those_of_the_activations(tmp_path: Path) -> None:
    """Of step 0 they follow from the law of the initial weights alone."""
    shape = ["model.dim=64", "model.n_heads=4", "model.ffn_hidden_dim=256"]
    words = [*coords.SETUP, coords.RECORDER, *shape, "optimizer=adamw", "train.max_steps=3"]
    forge.train(forge.compose([*words, f"run.dir={tmp_path / 'run'}"]))
    rows = json.loads((tmp_path / "run" / "activations.json").read_text())
    assert [row["step"] for row in rows] == [0, 1, 2]
    first, *later = rows
    assert first["embedding"] == pytest.approx(0.02, rel=0.1)
    assert first["logits"] == pytest.approx(0.02 * math.sqrt(64), rel=0.1)  # of a normed vector
    for place in PLACES:
        assert first[f"{place} change"] == 0
        assert 0 < later[0][f"{place} change"] < later[1][f"{place} change"]


def powers(printed: str) -> dict[tuple[str, str], float]:
    """The power of the size by scaling and activation, of the printed table."""
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line[:1] == "|"]
    return {(row[0], row[1]): float(row[-2]) for row in rows[2:]}


@pytest.mark.nightly
def test_mup_is_flat_where_the_standard_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["scaling=mup", "optimizer=adamw", "--widths", "64,256", "--steps", "6"]
    assert coords.main([*words, "--out", str(tmp_path)]) == 0
    found = powers(capsys.readouterr().out)
    assert (tmp_path / "coords.html").is_file()
    for place in ("attention", "feed-forward", "stream"):
        assert abs(found["mup", place]) < 0.3
        assert found["standard", place] > 0.7


@pytest.mark.nightly
def test_completep_is_flat_over_depths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["scaling=completep", "optimizer=adamw", "--widths", "64", "--depths", "2,16"]
    assert coords.main([*words, "--steps", "6", "--out", str(tmp_path)]) == 0
    assert abs(powers(capsys.readouterr().out)["completep", "stream"]) < 0.3


ONE_SIZE = "changes by size need two widths or depths, or more."


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer=adamw"], "a coordinate check is of a scaling."),
        (["scaling=mup", "--widths", "64"], ONE_SIZE),
        (
            ["scaling=mup", "--widths", "64,x"],
            ONE_SIZE,
        ),
        (["scaling=mup", "--depths", "2"], ONE_SIZE),
        (["scaling=mup", "--widths", "64,100"], "heads 16 wide do not divide a width of 100."),
        (["scaling=mup", "--steps", "1"], "activations change from the second step on."),
    ],
)
def test_a_wrong_word_is_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert coords.main(words) == 2
    assert message in capsys.readouterr().err
