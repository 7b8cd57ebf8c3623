"""The identity of a run: equal where only free options differ, another for any other option."""

from __future__ import annotations

import pytest
from helpers.refusing import SMALL, resolved

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
        ["seed=42", "optimizer.lr=0.01"],
    ],
)
def test_what_is_free_makes_no_other_run(more: list[str]) -> None:
    assert hash_of(resolved([*SMALL, *more]).config) == FIRST


OTHERS = (
    "seed=1 optimizer.lr=0.003 scheduler=cosine model.n_layers=3 train.max_steps=101 "
    "train.global_batch_size=4 precision=bf16 data.val_fraction=0.3"
)


@pytest.mark.parametrize("other", OTHERS.split())
def test_anything_else_does(other: str) -> None:
    assert hash_of(resolved([*SMALL, other]).config) != FIRST


def test_a_hash_is_stable_and_says_nothing_of_the_order() -> None:
    again = resolved([*reversed(SMALL)]).config
    assert hash_of(again) == FIRST
    assert len(FIRST) == 32
    assert hash_of(again, {"parallel": "ddp"}) != FIRST


def test_what_it_is_made_of() -> None:
    found = identity(resolved(SMALL).config)
    assert found.keys() > {"seed", "scheduler.decay_steps", "model._type_"}
    free = ("run.", "launch", "sweep", "parallel", "eval.", "metrics.", "callbacks")
    assert not [key for key in found if key.startswith(free)]


def test_which_keys_are_free() -> None:
    free = "train.batch_size parallel parallel.tp +callbacks.mine.x launch.jobs launch.sbatch.x"
    assert all(is_free(key) for key in free.split())
    identity = "seed optimizer optimizer.lr model.moe.top_k nothing"
    assert not any(is_free(key) for key in identity.split())
