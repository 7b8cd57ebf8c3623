"""sweeper=optuna on an objective that costs nothing: what is asked for, told and kept, and what is
said of it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cheap import BAD, Here, valley
from optuna_search import CPU, DECAY, RATE, flight, search, study

from forge.compose.engine import Library
from forge.launch.optuna import search as optuna_search
from forge.launch.optuna.search import first_that_runs
from forge.launch.optuna.space import read_space
from forge.launch.sweep import sweep
from forge.launch.sweep.directory import SweepDirectory


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def states(name: str = "x") -> list[str]:
    return [trial.state.name for trial in study(name).trials]


def test_trials_are_points_and_their_objectives_what_optuna_learns_from(
    capsys: pytest.CaptureFixture[str],
):
    assert search("sweeper.n_trials=3", RATE, DECAY) == 0
    points = SweepDirectory(Path("sweeps/x")).points()
    assert (
        [trial.number for trial in study().trials]
        == [point.number for point in points]
        == [0, 1, 2]
    )
    for trial, point in zip(study().trials, points, strict=True):
        typed = dict(text.split("=") for text in point.overrides[-2:])
        assert point.varied == typed
        assert trial.user_attrs["overrides"] == list(point.overrides[-2:])
        assert {key: float(text) for key, text in typed.items()} == pytest.approx(
            trial.params, rel=1e-5
        )
        assert trial.value == valley(
            {
                "lr": float(typed["optimizer.lr"]),
                "weight_decay": float(typed["optimizer.weight_decay"]),
            }
        )
    best = study().best_trial
    out = capsys.readouterr().out.splitlines()
    assert out[:3] == [
        "sweep: sweeps/x   (3 trials: 3 to run)",
        f"  searched is {RATE.replace('1e-4', '0.0001').replace('1e-2', '0.01')} {DECAY}",
        "  watch it with: python -m forge.status sweeps/x --watch",
    ]
    added = " ".join(best.user_attrs["overrides"])
    path = points[best.user_attrs["point"]].path
    assert out[-3:] == [
        "sweep: sweeps/x   (3 trials: 3 done)",
        f"best: eval/loss {best.value:.6g}   ({added}; sweeps/x/points/{path.name})",
        f"  python -m forge.train run.device=cpu eval.enabled=true {added}",
    ]


def test_the_same_seed_gives_the_same_trials_and_another_others():
    runs = {name: Here() for name in ("a", "b", "c", "d")}
    search("sweeper.n_trials=12", RATE, run=runs["a"], name="a")
    search("sweeper.n_trials=12", RATE, "seed=42", run=runs["b"], name="b")
    search("sweeper.n_trials=12", RATE, "sweeper.seed=7", run=runs["c"], name="c")
    search(
        "sweeper.n_trials=12",
        RATE,
        "launch.jobs=4",
        "sweeper.sampler=random",
        run=runs["d"],
        name="d",
    )
    assert runs["a"].rates == runs["b"].rates
    assert set(runs["a"].rates).isdisjoint(runs["c"].rates)
    assert (
        runs["a"].rates[:10] == runs["d"].rates[:10]
    )  # until Optuna has seen ten, it draws at random
    assert runs["a"].rates[10:] != runs["d"].rates[10:]
    assert [runs["a"].batches, runs["d"].batches] == [[1] * 12, [4] * 3]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been(
    jobs: int, capsys: pytest.CaptureFixture[str]
):
    options = ["sweeper.n_trials=14", f"launch.jobs={jobs}", RATE, DECAY]
    whole, first, second = Here(), Here(stop_at=11), Here()
    assert search(*options, run=whole, name="whole") in (0, 1)
    capsys.readouterr()
    assert search(*options, run=first) == 128 + 15
    assert "\nsweep: sweeps/x   (14 trials: " in capsys.readouterr().out
    assert search(*options, run=second) in (0, 1)
    assert sorted({*first.rates, *second.rates}) == sorted(whole.rates)
    replaced = {trial.user_attrs.get("instead_of") for trial in study().trials}
    kept = [trial for trial in study().trials if trial.number not in replaced]
    assert [trial.params for trial in kept] == [trial.params for trial in study("whole").trials]
    assert [trial.value for trial in kept] == [trial.value for trial in study("whole").trials]
    assert len(study().trials) == 14 + len(replaced - {None})


def test_more_trials_go_on_and_no_more_do_nothing():
    run = Here()
    search("sweeper.n_trials=2", RATE, run=run)
    search("sweeper.n_trials=4", RATE, run=run)
    search("sweeper.n_trials=3", RATE, run=run)
    assert len(run.rates) == 4
    assert len(SweepDirectory(Path("sweeps/x")).commands()) == 3


def test_a_trial_that_fails_is_listed_and_the_search_goes_on(capsys: pytest.CaptureFixture[str]):
    def reached(options: dict[str, float]) -> float | None:
        if options["lr"] == 0.004:
            raise RuntimeError(BAD)
        return None if options["lr"] == 0.003 else options["lr"]

    run = Here(reached)
    options = ["sweeper.n_trials=4", "optimizer.lr=-1,0.001,0.003,0.004", "sweeper.sampler=grid"]
    assert search(*options, run=run) == 1
    assert sorted(run.rates) == [0.001, 0.003, 0.004]
    reasons = {
        trial.params["optimizer.lr"]: trial.user_attrs.get("reason") for trial in study().trials
    }
    assert reasons == {
        "-1": "optimizer.lr=-1.0: optimizer.lr must be greater than 0.",
        "0.001": None,
        "0.003": "eval/loss is not finite",
        "0.004": BAD,
    }
    assert sorted(states()) == ["COMPLETE", "FAIL", "FAIL", "FAIL"]
    paths = {
        point.varied["optimizer.lr"]: point for point in SweepDirectory(Path("sweeps/x")).points()
    }
    out = capsys.readouterr().out
    end = out[out.rindex("\nsweep:") :]
    assert (
        f"#{paths['0.003'].number:03d} FAILED    optimizer.lr=0.003   eval/loss is not finite\n"
        in out[: out.rindex("\nsweep:")]
    )
    assert "sweep: sweeps/x   (4 trials: 1 done, 3 failed)\n" in end
    assert (
        "  #--- refused   optimizer.lr=-1\n       optimizer.lr=-1.0: optimizer.lr must be greater than 0.\n"
        in end
    )
    number = paths["0.004"].number
    assert (
        f"  #{number:03d} failed    optimizer.lr=0.004\n       {BAD}\n       sweeps/x/points/{paths['0.004'].path.name}\n"
        in end
    )
    assert (
        "  the same command with sweep.retry=true runs them again\nbest: eval/loss 0.001   (optimizer.lr=0.001; "
        in end
    )
    again = Here(lambda options: options["lr"])
    assert search(*options, run=again) == 1
    assert again.rates == []
    assert search(*options, "sweep.retry=true", run=again) == 1
    assert again.rates == [
        0.004
    ]  # the one without an objective has finished, and would do the same again
    assert sorted(states()) == ["COMPLETE"] * 2 + ["FAIL"] * 5


def test_a_point_that_has_run_is_not_run_again(capsys: pytest.CaptureFixture[str]):
    run = Here()
    assert search("sweeper.n_trials=6", "optimizer.lr=0.001,0.002", run=run) == 0
    assert sorted(run.rates) == [0.001, 0.002]
    assert states() == ["COMPLETE"] * 6
    assert capsys.readouterr().out.count(" known     optimizer.lr=") == 4


def test_a_trial_that_keeps_being_stopped_fails_in_the_end():
    class Stopped(Here):
        def __call__(self, sweep):  # as when a cluster ends each job before its time
            with sweep.open():
                self.batches.append(len(sweep.due))
                for entry in sweep.due:
                    entry.point.path.mkdir(parents=True, exist_ok=True)
                    sweep.directory.note("ended", entry.point.number, code=143)
                return sweep.finish([])

    run = Stopped()
    assert search("sweeper.n_trials=1", RATE, run=run) == 1
    assert run.batches == [1, 1, 1]
    assert (
        study().trials[0].user_attrs["reason"]
        == "its processes ended with exit code 143, and said nothing"
    )


def test_the_direction_of_the_search():
    metrics = {"eval/loss": "minimize", "eval/token_accuracy": "maximize", "train/loss": "minimize"}
    assert {name: optuna_search.direction_of(name) for name in metrics} == metrics
    search("sweeper.n_trials=1", RATE, "run.objective=eval/loss")
    assert study().direction.name == "MINIMIZE"
    search("sweeper.n_trials=1", RATE, "sweeper.direction=maximize", name="y")
    assert study("y").direction.name == "MAXIMIZE"


def test_a_grid_is_gone_through_once_in_an_order_of_its_own():
    run = Here(lambda options: options["lr"])
    assert (
        search(
            "sweeper.n_trials=99",
            "optimizer.lr=range(0.001,0.007,0.001)",
            "sweeper.sampler=grid",
            "launch.jobs=4",
            run=run,
        )
        == 0
    )
    assert sorted(run.rates) == [0.001, 0.002, 0.003, 0.004, 0.005, 0.006]
    assert run.rates != sorted(run.rates)
    assert run.batches == [4, 2]


def test_the_space_of_an_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "tune.yaml").write_text(
        "# @package _global_\n"
        "defaults:\n  - override /sweeper: optuna\n"
        "sweeper:\n  n_trials: 2\n  params:\n"
        "    optimizer.lr: tag(log, interval(1e-4, 1e-2))\n    model.n_layers: int(interval(1, 4))\n    train.seq_len: 64\n"
    )
    typed = ["experiment=tune", *CPU]
    assert optuna_search.run(typed, flight(typed, ["conf"]), Here()) == 0
    points = SweepDirectory(Path("sweeps/tune")).points()
    assert [set(point.varied) for point in points] == [{"optimizer.lr", "model.n_layers"}] * 2
    assert all("train.seq_len=64" in point.overrides for point in points)
    assert (
        "python -m forge.train --config-dir conf train.seq_len=64 experiment=tune run.device=cpu"
        in capsys.readouterr().out
    )


def test_a_line_that_a_kill_left_unfinished_is_taken_back():
    search("sweeper.n_trials=1", RATE)
    journal = Path("sweeps/x/optuna.journal")
    journal.write_text(journal.read_text() + '{"op_code":4,"wor')
    Path("sweeps/x/optuna.journal.lock").symlink_to("optuna.journal")
    run = Here()
    assert search("sweeper.n_trials=2", RATE, run=run) == 0
    assert len(run.rates) == 1
    assert all(json.loads(line) for line in journal.read_text().splitlines())


def test_a_script_is_printed_for_trials_that_run_together(capsys: pytest.CaptureFixture[str]):
    slurm = [
        "launch=slurm",
        "launch.wait=true",
        "launch.dry_run=true",
        "launch.gpus_per_node=0",
        "sweeper.n_jobs=3",
    ]
    assert sweep.run(["sweeper=optuna", *CPU, *slurm, RATE]) == 0
    assert "#SBATCH --array=0-2" in capsys.readouterr().out
    assert not Path("sweeps").exists()


def test_without_optuna_other_sweeps_import_none(tmp_path: Path):
    code = "import sys; from forge.launch import sweep, optuna_sweeper; assert not {'optuna', 'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_the_commands_and_the_experiment_of_the_page(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "optuna.md").read_text(encoding="utf-8")
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "tune.yaml").write_text(
        page.split("```yaml\n")[1].split("```")[0]
    )
    typed = [
        shlex.split(text)
        for text in re.findall(r"python -m forge\.train -m ([^#\n]*)", page.replace("\\\n", " "))
    ]
    assert len(typed) == 4
    for words in typed:
        ahead = flight(words, ["conf"])
        space = read_space(words, ahead.sweeper.params, lambda: Library([]))
        assert space.params
        assert first_that_runs(ahead, space)
    for cell in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE):
        for span in re.findall(r"`'?([\w.]+=[^`]*?)'?`", cell):
            assert read_space([span], {}, lambda: Library([])).params
