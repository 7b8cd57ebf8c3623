"""Overrides with several values to points, in Hydra's order."""

from __future__ import annotations

import pytest

from forge.compose.engine import Library
from forge.config.problems import Problem
from forge.config.sweep import Ablation
from forge.launch.sweep.expand import AS_RANGE, Combination, contradictions, expand, grid


def points(
    overrides: list[str], params: dict[str, str] | None = None, ablation: Ablation | None = None
) -> list[Combination]:
    found = grid(overrides, params or {}, Library)
    assert found.problems == []
    return expand(found, ablation)


def texts(*arguments, **keywords) -> list[str]:
    return [" ".join(point.overrides) for point in points(*arguments, **keywords)]


@pytest.mark.parametrize(
    ("overrides", "requested"),
    [
        ([], [""]),
        (["seed=1"], ["seed=1"]),
        (
            ["optimizer.lr=1e-3,3e-3", "seed=1,2"],
            [f"optimizer.lr={lr} seed={seed}" for lr in ("0.001", "0.003") for seed in (1, 2)],
        ),
        (["seed=1,2", "model=tiny"], ["seed=1 model=tiny", "seed=2 model=tiny"]),
        (["seed=range(3)"], ["seed=0", "seed=1", "seed=2"]),
        (["seed=choice(4,5)"], ["seed=4", "seed=5"]),
        (["seed=choice(4)"], ["seed=4"]),
        (
            ["optimizer.betas=[0.9,0.95],[0.8,0.9]"],
            ["optimizer.betas=[0.9,0.95]", "optimizer.betas=[0.8,0.9]"],
        ),
        (["model=glob(llama7*)"], ["model=llama70b", "model=llama7b"]),
        (["seed=1", "seed=3"], ["seed=3"]),
        (["run.name='a,b'"], ["run.name='a,b'"]),
        (["sweeper.params.seed=1,2"], ["sweeper.params.seed=1,2"]),
        (
            ["optimizer.betas=[1", "seed=1,2"],
            ["optimizer.betas=[1 seed=1", "optimizer.betas=[1 seed=2"],
        ),
    ],
)
def test_the_points_of_overrides(overrides: list[str], wanted: list[str]) -> None:
    assert texts(overrides) == wanted


def test_what_varies_is_known_by_key() -> None:
    found = points(["optimizer.lr=1e-3,3e-3", "model=tiny", "+callbacks.a=1,2"])
    assert [point.varied for point in found][1] == {"optimizer.lr": "0.001", "callbacks.a": "2"}
    assert [point.label for point in found][1] == "optimizer.lr=0.001 callbacks.a=2"
    assert points(["seed=1"])[0].label == "seed=1"


def test_what_is_typed_wins_over_the_sweepers_parameters() -> None:
    assert texts(["seed=5", "train.max_steps=1,2"], {"seed": "1,2", "optimizer.lr": "3"}) == [
        "seed=5 optimizer.lr=3 train.max_steps=1",
        "seed=5 optimizer.lr=3 train.max_steps=2",
    ]


ABLATION = Ablation(
    baseline="b", arms={"a": ["model.qk_norm=false", "model.dim=8"], "b": []}, seeds=[1, 2]
)


def test_an_ablation_goes_arm_by_arm_the_baseline_first() -> None:
    found = points(["train.max_steps=3,4"], {}, ABLATION)
    assert [(point.arm, point.varied) for point in found] == [
        (arm, {"train.max_steps": steps, "seed": seed})
        for arm in ("b", "a")
        for steps in ("3", "4")
        for seed in ("1", "2")
    ]
    assert found[4].overrides == (
        "train.max_steps=3",
        "model.qk_norm=false",
        "model.dim=8",
        "seed=1",
    )
    assert found[4].changes == {
        "train.max_steps": "3",
        "seed": "1",
        "model.qk_norm": "false",
        "model.dim": "8",
    }
    assert found[4].label == "arm=a train.max_steps=3 seed=1"


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        ("launch.jobs=1,2", "it is the same for all points of a sweep.", "one value"),
        (
            "hydra/launcher=basic,submitit_slurm",
            "it is the same for all points of a sweep.",
            "one value",
        ),
        ("sweep.name=a,b", "it is the same for all points of a sweep.", "one value"),
        (
            "launch.setup=a,b",
            "it is the same for all points of a sweep.",
            "launch.setup=[...] for a list",
        ),
        (
            "seed=2,3",
            "seed is there twice, so that seed=1 would count for nothing.",
            "leave one of the two out",
        ),
        (
            "optimizer.lr=range(1e-4,1e-2)",
            "it goes in steps of 1, as a third number does not say otherwise.",
            "optimizer.lr=range(START, STOP, STEP), or values with commas between",
        ),
        (
            "run.dir=a,b",
            "each point has a directory of its own in that of the sweep.",
            "leave it out",
        ),
        (
            "optimizer.lr=interval(1,2)",
            "an interval has no first value; only sweeper=optuna takes one.",
            "sweeper=optuna, or values with commas between",
        ),
        (
            "optimizer=glob(nothing*)",
            "no optimizer has such a name.",
            "options: adamw, adamw_large",
        ),
        (
            "train.max_steps=glob(*)",
            "glob chooses among the options of a group, and train.max_steps is none.",
            "train.max_steps=A,B",
        ),
        (
            "train.max_steps=range(5,3)",
            "no number is in it: it goes from 5 to below 3 in steps of 1.",
            "train.max_steps=range(START, STOP[, STEP]), with STOP beyond START",
        ),
    ],
)
def test_what_cannot_vary(override: str, what: str, fix: str) -> None:
    (found,) = grid(["seed=1", override], {}, Library).problems
    assert (found.what, found.fix, found.where) == (what, fix, "command line")


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["optimizer.lr=1"], []),
        (
            ["model.dim=8,16"],
            [
                (
                    "model.dim=8,16",
                    "the arm a of the ablation sets model.dim, so it cannot be the same in all arms.",
                    "leave it out, or change the arm",
                )
            ],
        ),
        (
            ["seed=1,2"],
            [("seed=1,2", "the ablation has seeds of its own.", "sweep.ablation.seeds=[1,2]")],
        ),
    ],
)
def test_what_is_typed_contradicts_no_arm(
    overrides: list[str], found: list[tuple[str, str, str]]
) -> None:
    problems: list[Problem] = contradictions(overrides, {}, ABLATION)
    assert [(problem.key, problem.what, problem.fix) for problem in problems] == found
    assert contradictions(overrides, {}, Ablation()) == []


@pytest.mark.parametrize(
    ("override", "what", "fix"),
    [
        (
            "seed=7",
            "seeds are what the runs of an arm differ in.",
            "sweep.ablation.seeds=[7], for all arms",
        ),
        ("run.dir=x", "it is the same for all points of a sweep.", "leave it out of the arm"),
        ("launch=slurm", "it is the same for all points of a sweep.", "leave it out of the arm"),
        (
            "hydra/launcher=basic",
            "it is the same for all points of a sweep.",
            "leave it out of the arm",
        ),
        ("sweep.name=x", "it is the same for all points of a sweep.", "leave it out of the arm"),
        (
            "model.dim=9",
            "model.dim is there twice in the arm, so that this would count for nothing.",
            "leave one of the two out",
        ),
        (
            "train.max_steps=1,2",
            "an arm has one value of train.max_steps.",
            "an arm for each of them, or sweeper.params.train.max_steps=1,2 for all arms",
        ),
        (
            "optimizer.betas=0.9,0.95",
            "an arm has one value of optimizer.betas.",
            "an arm for each of them, or sweeper.params.optimizer.betas=0.9,0.95 for all arms; optimizer.betas=[0.9,0.95] for a list",
        ),
    ],
)
def test_what_no_arm_can_set(override: str, what: str, fix: str) -> None:
    (found,) = contradictions(
        [], {}, Ablation(baseline="a", arms={"a": [], "b": [override, "model.dim=8"]})
    )
    assert (found.key, found.what, found.fix, found.where) == (
        override,
        what,
        fix,
        "command line, the arm b",
    )


FROM_FILE = {
    "launch.jobs": ("1,2", "it is the same for all points of a sweep.", "one value"),
    "run.dir": (
        "a,b",
        "each point has a directory of its own in that of the sweep.",
        "leave it out",
    ),
    "seed": (
        "range(1,1)",
        "no number is in it: it goes from 1 to below 1 in steps of 1.",
        AS_RANGE.format(key="seed"),
    ),
}


@pytest.mark.parametrize("key", FROM_FILE)
def test_what_cannot_vary_has_the_place_of_the_parameter(key: str) -> None:
    values, what, fix = FROM_FILE[key]
    (found,) = grid([], {key: values}, Library, lambda name: f"FILE:4 of {name}").problems
    assert (found.key, found.what, found.fix) == (f"{key}={values}", what, fix)
    assert found.where == f"FILE:4 of sweeper.params.{key}, sweeper.params"


def test_a_contradiction_has_the_place_of_what_varies() -> None:
    found = contradictions(
        [], {"model.dim": "8,16", "seed": "1,2"}, ABLATION, lambda name: f"FILE:4 of {name}"
    )
    assert [problem.where for problem in found] == [
        f"FILE:4 of sweeper.params.{key}, sweeper.params" for key in ("model.dim", "seed")
    ]
