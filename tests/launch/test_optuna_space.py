"""What sweeper=optuna searches: distributions from Hydra's grammar, and what is wrong with them."""

from __future__ import annotations

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from forge.compose.engine import Library
from forge.config.problems import ConfigError
from forge.launch.optuna.space import Space, read_space, space_in_words, value_as_typed
from forge.launch.sweep.expand import without_intervals

LR = "optimizer.lr"


def space(*overrides: str, params: dict[str, str] | None = None) -> Space:
    return read_space(overrides, params or {}, lambda: Library([]))


@pytest.mark.parametrize(
    ("typed", "distribution", "value", "on_line"),
    [
        ("interval(0.0001, 0.01)", FloatDistribution(1e-4, 1e-2), 0.00123456789, "0.00123457"),
        ("interval(0.33333333, 1)", FloatDistribution(0.33333333, 1), 0.33333334, "0.33333334"),
        ("tag(log, interval(1, 9))", FloatDistribution(1, 9, log=True), 2.0, "2"),
        ("int(interval(2, 6))", IntDistribution(2, 6), 3, "3"),
        ("tag(log, int(interval(8, 512)))", IntDistribution(8, 512, log=True), 9, "9"),
        ("range(1, 9, 2)", IntDistribution(1, 7, step=2), 7, "7"),
        ("range(0.1, 0.5, 0.1)", FloatDistribution(0.1, 0.4, step=0.1), 0.1 + 0.2, "0.3"),
        ("choice(a, b, c)", CategoricalDistribution(("a", "b", "c")), "b", "b"),
    ],
)
def test_what_is_searched(typed: str, distribution, value, on_line: str) -> None:
    for found in (space(f"x={typed}"), space(params={"x": typed})):
        assert found.params == {"x": distribution}
        assert space_in_words(distribution) == typed
        assert value_as_typed(distribution, value) == on_line
    assert space("x=range(5,0,-1)").params == {"x": IntDistribution(1, 5)}
    lists = space("x=choice([0.9,0.95],[0.9,0.99])").params
    assert lists == {"x": CategoricalDistribution(("[0.9,0.95]", "[0.9,0.99]"))}


def test_what_is_typed_replaces_parameters_and_one_value_stays_an_override() -> None:
    params = {LR: "interval(1,2)", "seed": "1,2", "train.max_steps": "7"}
    typed = [f"{LR}=0.1", "train.max_steps=range(1,3)", "scheduler=glob(c*)", "+callbacks.x=1,2"]
    found = space(*typed, "model=small", "a=choice(3)", params=params)
    assert found.fixed == (f"{LR}=0.1", "model=small", "a=3")
    assert str(found) == (
        "seed=choice(1, 2) train.max_steps=int(interval(1, 2)) "
        "scheduler=choice(constant, cosine) callbacks.x=choice(1, 2)"
    )
    values = {"seed": "1", "train.max_steps": 2, "scheduler": "cosine", "callbacks.x": "2"}
    added = ("seed=1", "train.max_steps=2", "scheduler=cosine", "+callbacks.x=2")
    assert found.point(values).overrides == (*found.fixed, *added)
    assert space("sweeper.params.optimizer.lr=interval(1,2)").params == {}
    rate = f"{LR}=tag(log, interval(1e-4, 1e-2))"
    plain = ["seed=1,2", "sweeper.params.x=interval(1,2)", "a=[", "b=range(1,3)"]
    assert without_intervals([*plain, rate]) == plain


def test_points_of_a_space_are_counted_or_drawn() -> None:
    found = space("a=1,2", "b=int(interval(3,5))")
    every = [{"a": a, "b": b} for a in ("1", "2") for b in (3, 4, 5)]
    assert (found.size, found.all, list(found.samples(6))) == (6, every, every)
    assert space("a=range(0,1000000000)", "b=range(0,1000000000)").size == 10**18
    large = space("a=tag(log, interval(1e-4,1))", "c=x,y")
    samples = list(large.samples(40))
    assert large.size is None
    assert samples == list(large.samples(40))
    assert {sample["c"] for sample in samples} == {"x", "y"}
    assert 10 < sum(sample["a"] < 1e-2 for sample in samples) < 30


WRONG = {
    "a=tag(foo,interval(1,2))": "of all tags only log has a meaning",
    "b=tag(log,range(1,9))": "only an interval is searched by its logarithm",
    "c=interval(2,1)": "`low <= high` must hold, but got (low=2.0, high=1.0).",
    "d=interval(0,inf)": "an end of the interval is not finite",
    "e=tag(log,interval(0,1))": "`low > 0` must hold for `log=True`, but got (low=0.0, high=1.0).",
    "f=range(1,1)": "the range has no value, or no end",
    "h=range(1,5,0)": "it cannot be searched: ",
    "launch.jobs=interval(1,2)": "it is the same for all points of a sweep.",
    "run.dir=range(1,4)": "each point has a directory of its own in that of the sweep.",
}


def test_all_that_is_wrong_with_a_space() -> None:
    with pytest.raises(ConfigError) as caught:
        space(*WRONG, params={"g": "interval(2,1)"})
    first, *others = caught.value.problems
    assert (first.key, first.where) == ("g=interval(2,1)", "command line, sweeper.params")
    for (typed, what), problem in zip(WRONG.items(), others, strict=True):
        assert (problem.key, problem.where) == (typed, "command line")
        assert what in problem.what
