"""The identity of a run: equal where only free options differ, another for any other option."""

from __future__ import annotations

import pytest
from going_on_helpers import SMALL, resolved

from forge.rundir.identity import hash_of, identity, is_free

FIRST = hash_of(resolved(SMALL).config)


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["eval.interval=7"],
        ["train.batch_size=1", "train.global_batch_size=2"],
        ["launch.jobs=3"],
        ["launch=slurm"],
        ["sweep.name=other", "sweeper.params.seed=3"],
        ["run.dir=somewhere", "run.name=x"],
        ["parallel=ddp", "run.num_processes=2", "train.batch_size=1", "train.global_batch_size=2"],
        ["+callbacks.a={_target_:mypkg.EMA}", "run.trust=[mypkg.]"],
        ["seed=42", "optimizer.lr=0.003"],
    ],
)
def test_what_is_free_makes_no_other_run(more: list[str]) -> None:
    assert hash_of(resolved([*SMALL, *more]).config) == FIRST


@pytest.mark.parametrize(
    "more",
    [
        ["seed=1"],
        ["optimizer.lr=0.01"],
        ["scheduler=cosine"],
        ["model.n_layers=3"],
        ["train.max_steps=101"],
        ["train.global_batch_size=4"],
        ["precision=bf16"],
        ["data.val_fraction=0.3"],
    ],
)
def test_anything_else_does(more: list[str]) -> None:
    assert hash_of(resolved([*SMALL, *more]).config) != FIRST


def test_a_hash_is_stable_and_says_nothing_of_the_order() -> None:
    again = resolved([*reversed(SMALL)]).config
    assert hash_of(again) == FIRST
    assert len(FIRST) == 32
    assert hash_of(again, {"parallel": "ddp"}) != FIRST


def test_what_it_is_made_of() -> None:
    found = identity(resolved(SMALL).config)
    assert {
        "seed",
        "optimizer.lr",
        "scheduler.decay_steps",
        "model._type_",
        "train.global_batch_size",
    } <= found.keys()
    assert not [
        key
        for key in found
        if key.startswith(("run.", "launch", "sweep", "parallel", "eval.", "metrics.", "callbacks"))
    ]


@pytest.mark.parametrize(
    ("key", "free"),
    [
        ("seed", False),
        ("optimizer", False),
        ("optimizer.lr", False),
        ("model.moe.top_k", False),
        ("train.batch_size", True),
        ("parallel", True),
        ("parallel.tp", True),
        ("+callbacks.mine.x", True),
        ("launch.jobs", True),
        ("nothing", False),
    ],
)
def test_which_keys_are_free(key: str, free: bool) -> None:
    assert is_free(resolved(SMALL).config, key) is free
