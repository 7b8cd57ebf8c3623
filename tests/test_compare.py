"""`python -m forge.compare`: the differences are those of the logs, at equal steps and tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from example_sweep import Example

from forge import compare
from forge.report.plot import HEIGHT, plot

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three runs the second has stopped, and the third has steps of twice as many tokens."""
    desk = tmp_path_factory.mktemp("desk")
    example = Example(desk / "sweep", steps=400)
    (desk / "runs").mkdir()
    example.done(["optimizer.lr=0.001"], seed=1).path.rename(desk / "runs" / "one")
    example.partial(["optimizer.lr=0.002"], seed=1, at=200, gain=0.4).path.rename(desk / "runs/two")
    three = example.done(["optimizer.lr=0.001"], seed=2).path
    rows = logged(three, "metrics.jsonl")
    rows = [row | ({"tokens": 2 * row["tokens"]} if "tokens" in row else {}) for row in rows]
    (three / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    three.rename(desk / "runs" / "three")
    return desk


@pytest.fixture
def desk(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def logged(run: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def curve(run: str, metric: str, column: str = "step") -> tuple[np.ndarray, np.ndarray]:
    rows = [row for row in logged(Path(run), "metrics.jsonl") if {metric, column} <= set(row)]
    return np.array([row[column] for row in rows]), np.array([row[metric] for row in rows])


def found(capsys: Printed, *words: str) -> dict:
    assert compare.main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def of(content: dict, metric: str) -> dict:
    (one,) = (row for row in content["differences"] if row["metric"] == metric)
    return one


@pytest.mark.parametrize("metric", ["train/loss", "eval/loss"])
def test_at_equal_steps(desk: Path, metric: str, capsys: Printed) -> None:
    content = found(capsys, "runs/one", "runs/two")
    assert content["config"] == {"optimizer.lr": ["0.001", "0.002"]}
    one = of(content, metric)
    (steps, a), (others, b) = curve("runs/one", metric), curve("runs/two", metric)
    differences = b - a[np.isin(steps, others)]
    assert (one["n"], one["at"]) == (len(others), 200)
    assert one["second"] == pytest.approx(b[-1])
    assert one["difference"] == pytest.approx(differences[-1])
    ends = [differences.mean(), differences.min(), differences.max(), (differences < 0).mean()]
    assert [one[name] for name in ("mean", "low", "high", "lower")] == pytest.approx(ends)


def test_at_equal_tokens(desk: Path, capsys: Printed) -> None:
    """The third has come twice as far after as many steps."""
    one = of(found(capsys, "runs/one", "runs/three", "--over", "tokens"), "train/loss")
    (tokens, a), (others, b) = (
        curve(run, "train/loss", "tokens") for run in ("runs/one", "runs/three")
    )
    kept = tokens >= others[0]
    differences = np.interp(tokens[kept], others, b) - a[kept]
    assert (one["n"], one["at"]) == (len(differences), 2048 * 400)
    assert one["mean"] == pytest.approx(differences.mean())
    by_steps = of(found(capsys, "runs/one", "runs/three"), "train/loss")
    assert by_steps["difference"] != pytest.approx(one["difference"])


def test_what_is_printed(desk: Path, capsys: Printed) -> None:
    assert compare.main(["runs/one", "runs/two", "runs/three", "--metric", "eval/loss"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:7] == [
        "A = runs/one    done, step 400",
        "B = runs/two    partial, step 200",
        "C = runs/three  done, step 400",
        "",
        "config        A      B      C",
        "seed          1      1      2",
        "optimizer.lr  0.001  0.002  0.001",
    ]
    assert lines[8] == "eval/loss over steps   (*: several)"
    highest = max(curve(f"runs/{run}", "eval/loss")[1].max() for run in ("one", "two", "three"))
    assert lines[9].startswith(f"{highest:.5g} |")
    heads = [line.split()[2:6] for line in lines if line.startswith("metric")]
    assert heads == [["step", "A", "B", "B"], ["step", "A", "C", "C"]]
    assert max(map(len, lines)) <= 120
    assert "there is no p-value." in " ".join(lines)


def test_equal_configs_and_nothing_in_common(desk: Path, tmp_path: Path, capsys: Printed) -> None:
    same = Example(tmp_path / "same", steps=400).partial(["optimizer.lr=0.001"], seed=1, at=0).path
    assert compare.main(["runs/one", str(same)]) == 0
    out = capsys.readouterr().out
    assert "Their configs are the same." in out
    assert "A and B have no steps in common." in out


def test_a_curve_is_where_it_was_logged() -> None:
    """A line through the corners, its middle in the middle; a constant one on one row."""
    x = np.array([0.0, 50.0, 100.0])
    rows = plot([("A", x, 2 * x), ("B", x[1:], np.array([0.0, 0.0]))], width=60)
    wide = rows[HEIGHT].count("-")
    sheet = [row.partition("|")[2].ljust(wide) for row in rows[:HEIGHT]]
    assert (sheet[0][-1], sheet[-1][0]) == ("A", "A")
    assert "A" in sheet[HEIGHT // 2][wide // 2 - 3 : wide // 2 + 3]
    assert sheet[-1][wide // 2 :] == "B" * (wide - wide // 2)
    assert rows[0].lstrip().startswith("200 |")
    assert rows[-1].split() == ["0", "100"]
    assert plot([("A", x, x)], width=60, start=101) == []
    over = plot([("A", x, x), ("B", x, x)], width=60)
    assert {sign for row in over[:HEIGHT] for sign in row.partition("|")[2]} == {"*", " "}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "runs/one nope",
            "nope is no run: there is no such directory.\n     -> python -m forge.runs",
        ),
        ("runs/one runs", "runs is no run: it has no config.yaml."),
        ("runs/one", "it takes two to 26 different runs, and was given 1."),
        ("runs/one runs/../runs/one", "different runs, and was given 1."),
        (
            "runs/one runs/two --metric eval/los",
            "not all of these runs have logged eval/los.\n     -> did you mean --metric eval/loss",
        ),
    ],
)
def test_what_is_refused(desk: Path, words: str, said: str, capsys: Printed) -> None:
    assert compare.main(words.split()) == 2
    assert said in capsys.readouterr().err
