"""Searches by Optuna that cannot begin: the exact words, and that nothing is written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from optuna_search import CPU, DECAY, RATE, search

from forge.config.problems import ConfigError
from forge.launch.sweep import sweep


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def refused(*overrides: str, name: str = "x") -> str:
    with pytest.raises(ConfigError) as caught:
        search(*overrides, name=name)
    return str(caught.value)


def one_problem(key: str, what: str, fix: str) -> str:
    return f"1 problem; nothing was started or written.\n  1. {key}\n     {what}\n     -> {fix}"


def test_trials_of_another_run_are_not_taken_for_those_of_this():
    search("sweeper.n_trials=1", RATE, "scheduler=cosine,linear")
    before = Path("sweeps/x/optuna.journal").read_bytes()
    said = refused(
        RATE.replace("1e-2", "1e-1"),
        "scheduler=cosine,linear",
        "train.max_steps=7",
        "eval.metric=perplexity",
    )
    steps = "the trials of x had train.max_steps=1600, and what they reached cannot be compared."
    assert said.splitlines()[1:] == [
        "  1. run.objective=eval/perplexity",
        "     the trials of x were judged by eval/loss.",
        "     -> give another sweep.name, or run.objective=eval/loss",
        "  2. train.max_steps=7",
        f"     {steps}",
        "     -> give another sweep.name, or leave it as it was",
    ]
    said = refused(
        "optimizer.lr=interval(1e-4, 1e-2)", "scheduler=cosine,wsd", "sweeper.direction=maximize"
    )
    assert said.splitlines()[1:] == [
        "  1. sweeper.direction=maximize",
        "     the trials of x were to minimize eval/loss.",
        "     -> give another sweep.name, or sweeper.direction=minimize",
        "  2. optimizer.lr=interval(0.0001, 0.01)",
        "     the trials of x were chosen from tag(log, interval(0.0001, 0.01)), and only the ends of a range may change.",
        "     -> give another sweep.name",
        "  3. scheduler=choice(cosine, wsd)",
        "     the trials of x were chosen from choice(cosine, linear), and only the ends of a range may change.",
        "     -> give another sweep.name",
    ]
    said = refused(
        RATE,
        "scheduler=cosine,linear",
        "model=small",
        "train.seq_len=64",
        "optimizer.weight_decay=0",
    )
    assert said.startswith("6 problems; ")
    assert said.splitlines()[-3:] == [
        "  6. sweep.name=x",
        "     2 more options differ.",
        "     -> give another sweep.name",
    ]
    assert Path("sweeps/x/optuna.journal").read_bytes() == before
    assert search(
        RATE.replace("1e-2", "1e-1"), "scheduler=cosine,linear", "sweeper.n_trials=1"
    ) in (0, 1)


def test_a_journal_that_cannot_be_read():
    Path("sweeps/x").mkdir(parents=True)
    Path("sweeps/x/optuna.journal").write_text("no journal\n[]\n")
    path = Path("sweeps/x/optuna.journal").resolve()
    said = refused(RATE)
    assert said == one_problem(
        "sweep.name=x",
        f"{path} cannot be read: Expecting value: line 1 column 1 (char 0).",
        "give another sweep.name",
    )


SEARCH = "'optimizer.lr=tag(log, interval(1e-4, 1e-2))', or the same as sweeper.params in an experiment file"
BY_ONE = "range(START, STOP, STEP), or sweeper.sampler=tpe"
ABLATION = ["sweep.ablation.baseline=a", "sweep.ablation.arms={a: []}"]


@pytest.mark.parametrize(
    ("overrides", "key", "what", "fix"),
    [
        (["seed=3"], "sweeper=optuna", "there is nothing to search.", SEARCH),
        (
            [RATE, *ABLATION],
            "sweeper=optuna",
            "an ablation runs all of its arms and seeds, and leaves nothing to choose.",
            "sweeper=basic, or leave sweep.ablation out",
        ),
        (
            [RATE, "sweeper.n_jobs=4"],
            "sweeper.n_jobs=4",
            "on this machine launch.jobs says how many trials run at a time.",
            "launch.jobs=4",
        ),
        (
            [DECAY, "sweeper.sampler=grid"],
            "sweeper.sampler=grid",
            "optimizer.weight_decay=interval(0, 0.5) has no values to go through one by one.",
            BY_ONE,
        ),
        (
            ["seed=int(interval(0,99999))", "sweeper.sampler=grid"],
            "sweeper.sampler=grid",
            "the grid has 100,000 points, and at most 20,000 can be gone through.",
            "fewer values, or sweeper.sampler=tpe",
        ),
        (
            ["model.n_layers=tag(log,interval(1,9))"],
            "model.n_layers=tag(log, interval(1, 9))   [command line]",
            "model.n_layers is an integer, and an interval has all numbers between its ends.",
            "model.n_layers=tag(log, int(interval(1, 9)))",
        ),
        (
            [RATE, "launch=slurm", "launch.gpus_per_node=0", "launch.wait=false"],
            "launch.wait=false   [command line]",
            "sweeper=optuna needs the objective of a trial to choose the next.",
            "launch.wait=true",
        ),
        (
            [RATE, "model.dimm=3"],
            "model.dimm=3   [command line]",
            "Decoder has no option 'dimm'.",
            "did you mean model.dim=3?",
        ),
    ],
)
def test_what_is_refused_before_anything_is_written(
    overrides: list[str], key: str, what: str, fix: str
):
    assert refused(*overrides) == one_problem(key, what, fix)
    assert not Path("sweeps").exists()


def test_a_space_without_a_point_that_can_run():
    said = refused("model.n_heads=3,5")
    assert said.splitlines()[:4] == [
        "none of the 2 points of the space can run; nothing was started or written.",
        "  1. model.n_heads=3   [command line]",
        "     model.dim (128) is not divisible by model.n_heads (3).",
        "     -> model.n_heads=2",
    ]
    said = refused("model.n_heads=int(interval(65,9999))", DECAY)
    assert said.startswith(
        "none of 256 points of the space that were tried can run; nothing was started or written.\n  1. model.n_heads=65 "
    )
    assert said.splitlines()[-1].startswith("     and ")
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("missing", "sampler", "key", "what", "fix"),
    [
        (
            "optuna",
            "tpe",
            "sweeper=optuna",
            "the package optuna is not installed.",
            "pip install 'forge-lm[sweep]'",
        ),
        (
            "cmaes",
            "cmaes",
            "sweeper.sampler=cmaes",
            "it needs the package cmaes, which is not installed.",
            "pip install cmaes, or sweeper.sampler=tpe",
        ),
    ],
)
def test_a_package_that_is_not_installed(
    missing: str, sampler: str, key: str, what: str, fix: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, missing, None)
    assert refused(RATE, f"sweeper.sampler={sampler}") == one_problem(key, what, fix)


def test_an_interval_is_for_optuna_alone():
    with pytest.raises(
        ConfigError, match="an interval has no first value; only sweeper=optuna takes one"
    ):
        sweep.run([*CPU, RATE])
