"""Which runs are seeds of one arm, and what arms are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_sweep import Example

from forge.config.problems import short_keys
from forge.report.grouping import arms_of, differing
from forge.report.runs import flat, read_source, shortest_text


def named(path: Path) -> dict[str, list[int | None]]:
    return {
        arm.name: [run.seed for run in arm.runs] for arm in arms_of(read_source([path]).runs, "all")
    }


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path / "sweep", steps=20)


def test_arms_are_called_by_what_varies(sweep: Path, example: Example) -> None:
    """A point that was never prepared belongs to the arm of the same overrides."""
    assert named(sweep) == {"lr=0.001": [1, 2, 3], "lr=0.002": [1, 2, 3], "lr=0.03": [1, 2, 3, 4]}
    example.done(["optimizer.lr=1e-3", "scheduler=wsd"], seed=1)
    example.done(["optimizer.lr=1.0E-05", "scheduler=constant"], seed=1)
    example.waiting(["optimizer.lr=2e-3", "scheduler=constant"], seed=1)
    names = ["lr=0.001 scheduler=wsd", "lr=1e-5 scheduler=constant", "lr=0.002 scheduler=constant"]
    assert list(named(example.sweep.path)) == names


def test_nothing_but_the_seed_varies(example: Example) -> None:
    """Free options that the sweep does not vary make no other arm; when they vary, they do."""
    example.done([], seed=1)
    example.common.append("metrics.log_interval=5")
    example.done([], seed=2)
    assert named(example.sweep.path) == {"all": [1, 2]}
    example.done(["parallel.sequence_parallel=false"], seed=1)
    arms = {"sequence_parallel=true": [1, 2], "sequence_parallel=false": [1]}
    assert named(example.sweep.path) == arms


def test_a_key_that_a_later_command_fixed(example: Example) -> None:
    """`-m optimizer.lr=1e-3,2e-3`, later `-m seed=3 optimizer.lr=0.002`; then the same with another
    model, which is another arm though what varies is the same.
    """
    example.done(["optimizer.lr=1e-3"], seed=1)
    example.done(["optimizer.lr=2e-3"], seed=1)
    example.common.append("optimizer.lr=0.002")
    example.done([], seed=3)
    assert named(example.sweep.path) == {"lr=0.001": [1], "lr=0.002": [1, 3]}
    example.common.append("model.dim=64")
    example.done([], seed=1)
    found = {"lr=0.001": [1], "lr=0.002": [1, 3], "lr=0.002 dim=64": [1]}
    assert named(example.sweep.path) == found


def test_names_of_an_ablation(example: Example) -> None:
    """Where an arm, or what all arms have, was changed in between, there are two of the name."""
    example.done([], seed=1, arm="base")
    example.done(["optimizer.lr=0.01"], seed=1, arm="fast")
    example.done(["optimizer.lr=0.02"], seed=2, arm="fast")
    example.common.append("optimizer=adamw_large")
    example.done([], seed=1, arm="base")
    found = {
        "base": [1],
        "fast lr=0.01": [1],
        "fast lr=0.02": [2],
        "base optimizer=adamw_large": [1],
    }
    assert named(example.sweep.path) == found


def test_a_value_as_a_text() -> None:
    values = [0.001, 1e-05, 1e20, 0.0, 4, "1e-3", "-.5", "+4", "2."]
    texts = ["0.001", "1e-5", "1e20", "0", "4", "0.001", "-0.5", "4", "2"]
    assert list(map(shortest_text, values)) == texts
    others = [True, None, "adamw", "nan", "1,2", [1], "", "stage01"]
    assert list(map(shortest_text, others)) == ["true", "null", *others[2:5], "[1]", "", "stage01"]


def test_keys() -> None:
    keys = ["optimizer.lr", "model.dim", "data.dim", "seed"]
    assert list(short_keys(keys).values()) == ["lr", "model.dim", "data.dim", "seed"]
    optimizer = {"_type_": "a.B", "_target_": "forge.optim.adam.adamw", "betas": [0.9, 0.95]}
    expected = {"seed": 1, "optimizer": "adamw", "optimizer.betas": [0.9, 0.95], "callbacks": {}}
    assert flat({"seed": 1, "optimizer": optimizer, "callbacks": {}}) == expected


def test_what_differs_between_variants() -> None:
    """An option that only muon has counts when two muons differ in it; places and seeds never."""
    adamw = {"seed": "1", "optimizer": "adamw", "optimizer.lr": "1", "optimizer.eps": "2"}
    muon = {"seed": "2", "optimizer": "muon", "optimizer.lr": "1", "optimizer.ns": "5"}
    muon["run.dir"] = "b"
    assert differing([adamw, muon]) == ["optimizer"]
    assert differing([adamw, muon, {**muon, "optimizer.ns": "6"}]) == ["optimizer", "optimizer.ns"]
    assert differing([adamw, {**adamw, "data.sources.more": "1"}]) == ["data.sources.more"]
    assert differing([adamw, muon], seeds=True) == ["seed", "optimizer"]
