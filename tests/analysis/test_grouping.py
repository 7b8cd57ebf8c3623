"""Which runs are seeds of one arm, and what arms are called."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_sweep import Example

from forge.report import flat_config
from forge.report.grouping import arms_of
from forge.report.runs import read


def named(path: Path) -> dict[str, list[int | None]]:
    return {arm.name: [run.seed for run in arm.runs] for arm in arms_of(read([path]).runs, "all")}


@pytest.fixture
def example(tmp_path: Path) -> Example:
    return Example(tmp_path / "sweep", steps=20)


def test_arms_are_called_by_what_varies(sweep: Path) -> None:
    """A point whose run was never made belongs to the arm of the same overrides."""
    assert named(sweep) == {"lr=0.001": [1, 2, 3], "lr=0.002": [1, 2, 3], "lr=0.03": [1, 2, 3, 4]}


def test_several_keys(example: Example) -> None:
    example.done(["optimizer.lr=0.001", "scheduler=wsd"], seed=1)
    example.done(["optimizer.lr=0.001", "scheduler=constant"], seed=1)
    assert list(named(example.sweep.path)) == [
        "lr=0.001 scheduler=wsd",
        "lr=0.001 scheduler=constant",
    ]


def test_nothing_but_the_seed_varies(example: Example) -> None:
    example.done([], seed=1)
    example.done([], seed=2)
    assert named(example.sweep.path) == {"all": [1, 2]}


def test_a_key_that_a_later_command_fixed(example: Example) -> None:
    """`-m optimizer.lr=1e-3,2e-3 seed=1,2`, later `-m seed=3 optimizer.lr=2e-3`, where only the
    seed varies; and 0.002 typed as 2e-3.
    """
    example.done(["optimizer.lr=1e-3"], seed=1)
    example.done(["optimizer.lr=2e-3"], seed=1)
    example.common.append("optimizer.lr=0.002")
    example.done([], seed=3)
    assert named(example.sweep.path) == {"lr=0.001": [1], "lr=0.002": [1, 3]}


def test_arms_of_one_name_are_told_apart_by_their_config(example: Example) -> None:
    """The same command with a fixed option changed: other runs, though what varies is the same."""
    example.done(["optimizer.lr=0.001"], seed=1)
    example.common.append("model.dim=64")
    example.done(["optimizer.lr=0.001"], seed=1)
    assert list(named(example.sweep.path)) == ["lr=0.001", "lr=0.001 dim=64"]


def test_free_options_are_arms_when_they_vary_and_not_otherwise(example: Example) -> None:
    example.done([], seed=1)
    example.common.append("metrics.log_interval=5")
    example.done([], seed=2)
    assert named(example.sweep.path) == {"all": [1, 2]}
    example.done(["parallel.sequence_parallel=false"], seed=1)
    assert named(example.sweep.path) == {
        "sequence_parallel=true": [1, 2],
        "sequence_parallel=false": [1],
    }


def test_names_of_an_ablation(example: Example) -> None:
    """Where somebody changed an arm in between, or what all arms have, there are two of the name."""
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


def test_one_number_has_one_form(example: Example) -> None:
    """Of points that were never prepared too; a text stays as it was typed, and each arm knows how
    its values were spelled.
    """
    for rate in ("1e-3", "1.0E-05"):
        example.done([f"optimizer.lr={rate}", "scheduler=cosine"], seed=1)
    example.waiting(["optimizer.lr=2e-3", "scheduler=constant"], seed=1)
    arms = arms_of(read([example.sweep.path]).runs, "all")
    assert [arm.name for arm in arms] == [
        "lr=0.001 scheduler=cosine",
        "lr=1e-5 scheduler=cosine",
        "lr=0.002 scheduler=constant",
    ]
    assert arms[1].spelled == {"lr=1.0E-05 scheduler=cosine"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.001, "0.001"),
        (1e-05, "1e-5"),
        (1e20, "1e20"),
        (0.0, "0"),
        (4, "4"),
        ("1e-3", "0.001"),
        ("-.5", "-0.5"),
        ("+4", "4"),
        ("2.", "2"),
    ],
)
def test_the_shortest_form_of_a_number(value: object, text: str) -> None:
    assert flat_config.number_text(value) == text


@pytest.mark.parametrize("value", [True, None, "adamw", "nan", "1,2", "1_000", [1], ""])
def test_what_is_no_number(value: object) -> None:
    assert flat_config.number_text(value) is None


def test_short_keys() -> None:
    keys = ["optimizer.lr", "model.dim", "data.dim", "seed"]
    assert list(flat_config.short(keys).values()) == ["lr", "model.dim", "data.dim", "seed"]


def test_a_flat_config() -> None:
    plain = {
        "seed": 1,
        "optimizer": {"_type_": "a.B", "_target_": "forge.optim.adamw.adamw", "betas": [0.9, 0.95]},
        "callbacks": {},
    }
    assert flat_config.flat(plain) == {
        "seed": "1",
        "optimizer": "adamw",
        "optimizer.betas": "[0.9,0.95]",
        "callbacks": "{}",
    }


def test_what_differs_between_variants() -> None:
    """An option that only muon has counts when two muons differ in it; places and the seed never
    do.
    """
    adamw = {
        "seed": "1",
        "optimizer": "adamw",
        "optimizer.lr": "1",
        "optimizer.eps": "2",
        "run.dir": "a",
    }
    muon = {
        "seed": "2",
        "optimizer": "muon",
        "optimizer.lr": "1",
        "optimizer.ns": "5",
        "run.dir": "b",
    }
    assert flat_config.differing([adamw, muon]) == ["optimizer"]
    assert flat_config.differing([adamw, muon, {**muon, "optimizer.ns": "6"}]) == [
        "optimizer",
        "optimizer.ns",
    ]
    assert flat_config.differing([adamw, {**adamw, "data.sources.more": "1"}]) == [
        "data.sources.more"
    ]
    assert flat_config.differing([adamw, muon], seeds=True) == ["seed", "optimizer"]
