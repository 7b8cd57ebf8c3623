"""The search space of sweeper=optuna: what is read from the command line and from sweeper.params,
and every way to get it wrong.
"""

from __future__ import annotations

import random

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from forge.compose.engine import Library
from forge.config.problems import ConfigError
from forge.launch.optuna.space import Numbers, Space, combination, param_of, read_space
from forge.launch.sweep.expand import without_intervals


def space(*overrides: str, params: dict[str, str] | None = None) -> Space:
    return read_space(overrides, params or {}, lambda: Library([]))


@pytest.mark.parametrize(
    ("typed", "distribution"),
    [
        ("interval(1e-4, 1e-2)", FloatDistribution(1e-4, 1e-2)),
        ("interval(1,9)", FloatDistribution(1.0, 9.0)),
        ("tag(log, interval(1e-4,1e-2))", FloatDistribution(1e-4, 1e-2, log=True)),
        ("int(interval(2,6))", IntDistribution(2, 6)),
        ("tag(log, int(interval(8,512)))", IntDistribution(8, 512, log=True)),
        ("int(tag(log, interval(8,512)))", IntDistribution(8, 512, log=True)),
        ("range(1,9,2)", IntDistribution(1, 7, step=2)),
        ("range(5,0,-1)", IntDistribution(1, 5)),
        ("range(0.1,0.5,0.1)", FloatDistribution(0.1, 0.4, step=0.1)),
        ("choice(a,b,c)", CategoricalDistribution(("a", "b", "c"))),
        ("1e-3,3e-3,1e-3", CategoricalDistribution(("0.001", "0.003"))),
        ("choice([0.9,0.95],[0.9,0.99])", CategoricalDistribution(("[0.9,0.95]", "[0.9,0.99]"))),
    ],
)
def test_what_is_searched(typed: str, distribution: object):
    for found in (space(f"optimizer.x={typed}"), space(params={"optimizer.x": typed})):
        assert found.params["optimizer.x"].distribution == distribution
        assert found.fixed == ()


def test_what_needs_no_search_stays_an_override():
    found = space(
        "model=small",
        "train.max_steps=5",
        "seed=choice(3)",
        "optimizer.betas=[0.9,0.95]",
        "optimizer.lr=interval(1,2)",
    )
    assert found.fixed == (
        "model=small",
        "train.max_steps=5",
        "seed=3",
        "optimizer.betas=[0.9,0.95]",
    )
    assert list(found.params) == ["optimizer.lr"]


def test_what_is_typed_goes_before_the_parameters_of_the_sweeper():
    params = {"optimizer.lr": "interval(1,2)", "seed": "1,2", "train.max_steps": "7"}
    found = space("optimizer.lr=0.1", "train.max_steps=range(1,3)", params=params)
    assert found.fixed == ("optimizer.lr=0.1",)
    assert {key: str(param) for key, param in found.params.items()} == {
        "seed": "choice(1, 2)",
        "train.max_steps": "int(interval(1, 2))",
    }


def test_a_group_is_chosen_by_a_glob_and_an_entry_with_its_sign():
    found = space("scheduler=glob(c*)", "+callbacks.mine.x=1,2")
    assert found.params["scheduler"].some == ["constant", "cosine"]
    assert combination(found, {"scheduler": "cosine", "callbacks.mine.x": "2"}).overrides == (
        "scheduler=cosine",
        "+callbacks.mine.x=2",
    )


def test_a_parameter_that_is_given_to_the_sweeper_is_no_parameter_yet():
    assert space("sweeper.params.optimizer.lr=interval(1,2)").params == {}
    assert space("hydra.sweeper.params.seed=1,2").params == {}


def test_what_is_the_same_for_all_trials_shows_without_the_intervals():
    typed = [
        "sweeper=optuna",
        "seed=1,2",
        "optimizer.lr=tag(log, interval(1,2))",
        "sweeper.params.x=interval(1,2)",
        "a=[",
        "b=range(1,3)",
    ]
    assert without_intervals(typed) == [
        "sweeper=optuna",
        "seed=1,2",
        "sweeper.params.x=interval(1,2)",
        "a=[",
        "b=range(1,3)",
    ]


@pytest.mark.parametrize(
    ("typed", "value", "text"),
    [
        ("tag(log, interval(1e-4,1e-2))", 0.0031622776601683794, "0.00316228"),
        ("interval(0,1)", 1.23456789e-05, "1.23457e-05"),
        ("interval(1000.0001,1000.0002)", 1000.00013183098, "1000.000131831"),
        ("interval(0.33333333,1)", 0.33333334, "0.33333334"),
        ("range(0.1,0.5,0.1)", 0.30000000000000004, "0.3"),
        ("range(1,9,2)", 7, "7"),
        ("int(interval(2,6))", 3, "3"),
        ("a,b", "b", "b"),
    ],
)
def test_a_value_on_a_command_line_is_short_and_within_its_range(
    typed: str, value: object, text: str
):
    assert space(f"x={typed}").texts({"x": value}) == {"x": text}


@pytest.mark.parametrize(
    "typed",
    [
        "interval(0.0001, 0.01)",
        "tag(log, interval(1, 9))",
        "int(interval(2, 6))",
        "tag(log, int(interval(8, 512)))",
        "range(1, 9, 2)",
        "range(0.1, 0.5, 0.1)",
        "choice(a, b)",
    ],
)
def test_a_parameter_is_shown_as_it_is_typed(typed: str):
    param = space(f"x={typed}").params["x"]
    assert str(param) == typed
    assert str(param_of(param.distribution)) == typed


def test_points_that_can_be_counted():
    found = space("a=1,2", "b=int(interval(3,5))")
    assert found.size == 6
    assert [found.nth(place) for place in range(6)] == [
        {"a": a, "b": b} for a in ("1", "2") for b in (3, 4, 5)
    ]
    assert list(found.samples(6)) == [found.nth(place) for place in range(6)]
    assert space("a=1,2", "b=interval(3,5)").size is None
    assert space("a=range(0,1000000000)", "b=range(0,1000000000)").size == 10**18


def test_samples_stand_for_all_and_are_the_same_each_time():
    found = space("a=tag(log, interval(1e-4,1))", "b=int(interval(1,1000))", "c=x,y")
    samples = list(found.samples(40))
    assert samples == list(found.samples(40))
    assert {sample["c"] for sample in samples} == {"x", "y"}
    assert {1, 1000} < {sample["b"] for sample in samples}
    assert all(1e-4 < sample["a"] < 1 for sample in samples)
    assert sum(sample["a"] < 1e-2 for sample in samples) > 10
    assert Numbers(low=0, high=10, step=5).drawn(random.Random(0)) in (0, 5, 10)


@pytest.mark.parametrize(
    ("typed", "what", "fix"),
    [
        (
            "x=tag(foo,interval(1,2))",
            "the tag foo means nothing here.",
            "tag(log, ...) searches by the logarithm; no other has a meaning",
        ),
        (
            "x=tag(log,choice(1,2))",
            "only an interval is searched by its logarithm.",
            "x=tag(log, interval(LOW, HIGH)), or without tag(log, ...)",
        ),
        (
            "x=tag(log,range(1,9))",
            "only an interval is searched by its logarithm.",
            "x=tag(log, interval(LOW, HIGH)), or without tag(log, ...)",
        ),
        (
            "x=interval(2,1)",
            "the interval holds no two values.",
            "x=interval(LOW, HIGH) with LOW below HIGH",
        ),
        (
            "x=interval(2,2)",
            "the interval holds no two values.",
            "x=interval(LOW, HIGH) with LOW below HIGH",
        ),
        (
            "x=interval(0,inf)",
            "an end of the interval is not finite.",
            "x=interval(LOW, HIGH) with two numbers",
        ),
        (
            "x=tag(log,interval(0,1))",
            "there is no logarithm of 0.",
            "an interval above 0, or one without tag(log, ...)",
        ),
        (
            "x=range(1,1)",
            "it stands for no value at all.",
            "range(START, STOP, STEP): from START on, without STOP",
        ),
        (
            "x=range(1,3,0)",
            "range takes numbers, and a step that is not 0.",
            "'x=range(START, STOP[, STEP])' with numbers",
        ),
        (
            "x=range(0,inf)",
            "the range is not finite.",
            "range(START, STOP, STEP) with three numbers",
        ),
        ("launch.jobs=interval(1,2)", "it is the same for all points of a sweep.", "one value"),
        (
            "run.dir=range(1,4)",
            "each point has a directory of its own in that of the sweep.",
            "leave it out",
        ),
    ],
)
def test_a_space_that_cannot_be(typed: str, what: str, fix: str):
    with pytest.raises(ConfigError) as caught:
        space(typed)
    (problem,) = caught.value.problems
    assert (problem.key, problem.what, problem.fix, problem.where) == (
        typed,
        what,
        fix,
        "command line",
    )


def test_all_mistakes_at_once_with_their_place():
    with pytest.raises(ConfigError) as caught:
        space("a=interval(2,1)", "launch=local,slurm", params={"b": "interval(2,1)"})
    assert [(problem.key, problem.where) for problem in caught.value.problems] == [
        ("b=interval(2,1)", "sweeper.params"),
        ("a=interval(2,1)", "command line"),
        ("launch=local,slurm", "command line"),
    ]
