"""`python -m forge.scaling`: made-up ladders in real sweep directories, all that is left out, the
page, and every refusal.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from example_sweep import Example, finish

from forge.rundir import files, outcome
from forge.scaling.__main__ import main
from forge.scaling_laws.law import Law

TRUTH = Law(E=1.4, A=20.0, alpha=0.35, B=60.0, beta=0.3)
DIMS = (16, 32, 48, 64)
STEPS = (100, 300, 900)
TOKENS = 2048  # of a step
SMALL = ["model=tiny", "run.device=cpu", "tokenizer.vocab_size=512", "model.n_heads=2"]
Printed = pytest.CaptureFixture[str]


class Runs(Example):
    """A sweep of runs with made-up losses. parameters: by width, all and without embeddings."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, overrides=[*SMALL, "train.batch_size=8", "train.seq_len=256"])

    def add(self, dim: int, steps: int, loss: float | None = None, **end: object) -> Path:
        """A finished run, with the loss of the law when None."""
        overrides = [f"model.dim={dim}", f"train.max_steps={steps}"]
        point = self._made(overrides, 1, None)
        model = self._resolved[(*self.common, *overrides)].config.decoder
        assert model is not None
        value = float(TRUTH.loss(model.num_params_estimate, steps * TOKENS))
        value = value if loss is None else loss
        files.append_row(point.path / "attempts.jsonl", {"event": "start", "step": 0})
        for step in np.linspace(steps / 10, steps, 10).round().astype(int).tolist():
            now = float(TRUTH.loss(model.num_params_estimate, step * TOKENS))
            row = {"step": step, "train/loss": now, "tokens": step * TOKENS, "eval/loss": now}
            files.append_row(point.path / "metrics.jsonl", row)
        finish(point.path, {"eval/loss": value, "tokens": steps * TOKENS}, step=steps)
        if end:
            content = files.read_object(point.path / outcome.RESULT) | end
            files.write_json(point.path / outcome.RESULT, content)
        self.sweep.note("ended", point.number, code=0)
        return point.path


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve good runs, and one of each kind that is left out."""
    runs = Runs(tmp_path_factory.mktemp("sweeps") / "ladder")
    for dim in DIMS:
        for steps in STEPS:
            runs.add(dim, steps)
    runs.failed(["model.dim=24"], seed=1, at=50, why="the loss was not finite in 10 steps in a row")
    runs.add(40, 200, loss=9.1)
    runs.add(56, 200, reason="patience", step=120)
    runs.add(80, 200, loss=float("nan"))
    runs.waiting(["model.dim=96"], seed=1)
    return runs.sweep.path


def refused(words: list[str], capsys: Printed) -> str:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    return " ".join(printed.err.split())


def test_the_law_of_a_sweep_is_recovered(ladder: Path, capsys: Printed) -> None:
    assert main([str(ladder), "budget=1e13,1e15", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("E", "A", "alpha", "B", "beta"):
        assert found["constants"][name]["value"] == pytest.approx(getattr(TRUTH, name), rel=1e-6)
    assert len(found["runs"]) == 12
    largest = max(found["runs"], key=lambda run: run["6nd"])
    assert largest["6nd"] == pytest.approx(6 * largest["parameters"] * 900 * TOKENS)
    assert largest["counted"] > 6 * largest["parameters"] * largest["tokens"]  # with attention
    assert largest["parameters"] - largest["without_embeddings"] == 512 * 64
    held = found["held"][0]["runs"]
    assert [run["run"] for run in held] == [largest["run"]]
    assert held[0]["predicted"]["value"] == pytest.approx(held[0]["loss"], rel=1e-6)
    within, beyond = found["best"]
    assert beyond["extrapolation"]
    assert within["extrapolation"] == (largest["6nd"] < 1e13)
    assert beyond["factor"] == pytest.approx(1e15 / largest["6nd"])
    best = (TRUTH.alpha * TRUTH.A / TRUTH.beta / TRUTH.B) ** (1 / (TRUTH.alpha + TRUTH.beta))
    best *= (1e15 / 6) ** (TRUTH.beta / (TRUTH.alpha + TRUTH.beta))
    assert beyond["size"]["value"] == pytest.approx(best, rel=1e-5)
    assert beyond["size"]["value"] * beyond["tokens"]["value"] == pytest.approx(1e15 / 6)
    first, _, _, third = found["approaches"]
    assert third["a"]["value"] == pytest.approx(first["a"]["value"], rel=1e-5)


def test_runs_that_do_not_count_are_named_with_the_reason(ladder: Path, capsys: Printed) -> None:
    assert main([str(ladder), "--json"]) == 0
    reasons = [entry["why"] for entry in json.loads(capsys.readouterr().out)["left_out"]]
    assert len(reasons) == 5
    assert reasons[0] == "failed: the loss was not finite in 10 steps in a row"
    assert reasons[1].startswith("diverged: its eval/loss 9.1 is above 6.238, that of guessing")
    assert reasons[2] == "stopped early, at step 120 of 200: patience"
    assert reasons[3] == "it has no finite, positive value of eval/loss at its end"
    assert reasons[4] == "waiting"


def test_tables_and_the_page_say_the_same(ladder: Path, capsys: Printed) -> None:
    assert main([str(ladder), "budget=1e15", "--draws", "199"]) == 0
    printed = capsys.readouterr().out
    page = (ladder / "scaling" / "index.html").read_text(encoding="utf-8")
    assert "12 runs of 4 sizes; 5 left out." in printed
    assert "written: " in printed
    for table in ("constants", "best", "held", "approaches", "variants", "runs", "left-out"):
        assert f'<table id="table-{table}">' in page
    assert "extrapolated" in printed
    assert "An extrapolation: " in page
    assert "inside of the interval" in page
    assert main([str(ladder), "budget=1e15", "--draws", "199", "--markdown", "-"]) == 0
    markdown = capsys.readouterr().out
    assert markdown.startswith("# scaling of ladder\n")
    assert "| 1e+15 | extrapolated" in markdown
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert list(data["figures"]) == ["fit", "residuals", "best"] or "isoflop" in data["figures"]
    dots = data["figures"]["residuals"]["series"][0]["points"]
    assert len(dots) == 12
    assert max(abs(y) for _, y in dots) < 1e-6
    assert any(series.get("dashed") for series in data["figures"]["fit"]["series"])


def test_compute_may_be_counted_and_parameters_without_embeddings(
    ladder: Path, capsys: Printed
) -> None:
    words = [str(ladder), "--params", "without_embeddings", "--compute", "counted", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    four = {(row["params"], row["compute"]): row for row in found["variants"]}
    assert len(four) == 4
    chosen = four["without_embeddings", "counted"]
    assert found["constants"]["alpha"]["value"] == pytest.approx(chosen["exponents"][0])
    assert found["constants"]["a"]["value"] == pytest.approx(chosen["a"])
    assert chosen["a"] != pytest.approx(four["all", "6nd"]["a"], rel=0.01)


def test_a_ladder_along_one_line_has_a_law_over_compute(tmp_path: Path, capsys: Printed) -> None:
    runs = Runs(tmp_path / "line")
    random = np.random.default_rng(1)
    for dim in (16, 24, 32, 48, 64):
        size = 26624 * (dim / 32) ** 2 + 512 * dim
        for _ in range(2):
            steps = round(size / 50)
            compute = 6 * size * steps * TOKENS
            runs.add(dim, steps, 1.4 + 150 / compute**0.15 + 0.003 * random.standard_normal())
    assert main([str(runs.sweep.path), "--html", str(tmp_path / "page.html")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "size and tokens grow along one line, so that the law is over compute alone" in printed
    assert "2 of 2 runs are inside of their intervals" in printed
    assert "alpha" not in printed
    assert "gamma" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_ladder_too_short_to_leave_its_largest_run_out_says_so(
    tmp_path: Path, capsys: Printed
) -> None:
    runs = Runs(tmp_path / "short")
    for dim, steps in ((16, 100), (16, 200), (32, 100), (32, 300), (48, 900)):
        runs.add(dim, steps)
    assert main([str(runs.sweep.path), "--law", "compute", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["held"] == []
    assert found["why_not_held"] == "without it 4 runs of 2 sizes are left, too few for the law"


def test_a_ladder_of_one_size_is_refused(tmp_path: Path, capsys: Printed) -> None:
    runs = Runs(tmp_path / "one")
    for steps in STEPS:
        runs.add(32, steps)
    runs.waiting(["model.dim=64"], seed=1)
    text = refused([str(runs.sweep.path)], capsys)
    assert "its 3 finished runs have 1 size (" in text
    assert "a law over size takes 3 or more. 1 are left out." in text
    assert "experiment=isoflop_demo" in text
    assert "left out: #003 dim=64 seed=1: waiting" in text


def test_too_few_runs_and_one_length_are_refused(tmp_path: Path, capsys: Printed) -> None:
    runs = Runs(tmp_path / "few")
    for dim, steps in ((16, 100), (32, 300), (48, 100), (64, 100)):
        runs.add(dim, steps)
    text = refused([str(runs.sweep.path)], capsys)
    assert "it has 4 finished runs, and loss = E + A / N^alpha + B / D^beta takes 6 or more" in text
    assert "--law compute takes 4" in text
    for dim in (80, 96):
        runs.add(dim, 100)
    text = refused([str(runs.sweep.path)], capsys)
    assert "its runs were trained on 2 different numbers of tokens" in text


def test_bad_words_are_refused(ladder: Path, tmp_path: Path, capsys: Printed) -> None:
    sweep = str(ladder)
    assert "no sweep is named" in refused(["budget=1e20"], capsys)
    assert "lots is no number of FLOPs above 0" in refused([sweep, "budget=lots"], capsys)
    assert "-1 is no number of FLOPs above 0" in refused([sweep, "budget=1e9,-1"], capsys)
    text = refused([sweep, "--metric", "eval/los"], capsys)
    assert "no finished run has eval/los" in text
    assert "--metric eval/loss" in text
    assert "neither a sweep nor a run" in refused([str(tmp_path / "nowhere")], capsys)
    runs = Runs(tmp_path / "none")
    runs.waiting(["model.dim=32"], seed=1)
    assert "none of its 1 runs is done" in refused([str(runs.sweep.path)], capsys)
    with pytest.raises(SystemExit, match="2"):
        main([sweep, "--draws", "5"])
    assert "--draws takes 100 or more" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([sweep, "--params", "some"])


def test_a_metric_of_which_more_is_better_is_refused(tmp_path: Path, capsys: Printed) -> None:
    runs = Runs(tmp_path / "accuracy")
    path = runs.add(32, 100, higher_is_better=["token_accuracy"])
    content = files.read_object(path / outcome.RESULT)
    content["metrics"]["eval/token_accuracy"] = 0.3
    files.write_json(path / outcome.RESULT, content)
    text = refused([str(runs.sweep.path), "--metric", "eval/token_accuracy"], capsys)
    assert "more of eval/token_accuracy is better" in text


def test_a_page_that_cannot_be_written_is_one_message(ladder: Path, capsys: Printed) -> None:
    (ladder / "file").write_text("")
    assert main([str(ladder), "--html", str(ladder / "file" / "page.html")]) == 2
    assert "it cannot be written" in capsys.readouterr().err
