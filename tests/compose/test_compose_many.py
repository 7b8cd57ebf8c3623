"""Many compositions at a time give what one at a time gives, with the same problems."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from forge.compose.composition import compose
from forge.compose.many import Composer
from forge.rundir.saved_config import to_plain

GROUPS = [
    ["model=tiny"],
    ["model=small"],
    ["model=moe_tiny", "scheduler=cosine"],
    ["optimizer=adamw_large"],
    ["experiment=wsd"],
    [],
]
VALUES = [
    "optimizer.lr={}",
    "seed={}",
    "model.dim={}",
    "train.max_steps={}",
    "optimizer.betas=[0.5,0.{}]",
    "run.name=n{}",
    "run.name=null",
    "model.n_kv_heads=null",
    "eval.enabled=false",
    "model.moe.top_k={}",
    "launch.sbatch.nice={}",
    "+callbacks.a={{_target_: mypkg.EMA, x: {}}}",
    "sweeper.params.seed={},2",
    "train.max_steps=abc",
    "optimizer.lrr={}",
    "optimizer.lr={},3",
    "optimizer.betas=[{}",
    "optimizer.lr=${{optimizer.weight_decay}}",
    "optimizer.eps=${{nokey}}",
    "run.root=???",
    "model.dim",
    "~seed",
    "metrics.log_interval=1.0",
]


def same(composer: Composer, overrides: list[str], config_dirs: tuple[str, ...] = ()) -> None:
    composition, config = composer(overrides)
    wanted = compose(overrides, config_dirs=config_dirs)
    full = wanted.typed()
    assert to_plain(config) == to_plain(full)
    assert config == full
    assert sorted(map(str, composition.problems)) == sorted(map(str, wanted.problems))
    assert (config.preset, config.overrides) == (full.preset, full.overrides)
    assert [composition.written_at(key) for key in ("optimizer.lr", "model.dim", "seed")] == [
        wanted.written_at(key) for key in ("optimizer.lr", "model.dim", "seed")
    ]


def points(count: int) -> list[list[str]]:
    draw = random.Random(0)
    return [
        [
            *draw.choice(GROUPS),
            *(text.format(draw.randint(1, 9)) for text in draw.sample(VALUES, draw.randint(0, 6))),
        ]
        for _ in range(count)
    ]


def test_five_random_points() -> None:
    composer = Composer()
    for overrides in points(5):
        same(composer, overrides)


@pytest.mark.nightly
def test_fifty_random_points() -> None:
    composer = Composer()
    for overrides in points(55)[5:]:
        same(composer, overrides)


def test_one_point_leaves_nothing_behind_for_the_next() -> None:
    composer = Composer()
    first = composer(
        ["optimizer=adamw", "optimizer.betas=[0.5,0.6]", "model.n_kv_heads=2", "train.max_steps=x"]
    )[1]
    second = composer([])[1]
    assert to_plain(second) == to_plain(compose([]).typed())
    assert list(first.optimizer.betas) == [0.5, 0.6]  # type: ignore[attr-defined]


def test_a_value_that_another_refers_to(write: Callable[[str, str], str]) -> None:
    """Such files are composed again for each point."""
    folder = write(
        "experiment/mine.yaml",
        "# @package _global_\n# mine\ntrain:\n  max_steps: ${eval.interval}\n",
    )
    composer = Composer([folder])
    for interval in (7, 9):
        overrides = ["experiment=mine", f"eval.interval={interval}"]
        same(composer, overrides, (folder,))
        assert composer(overrides)[1].train.max_steps == interval


def test_a_value_that_only_a_point_gives(write: Callable[[str, str], str]) -> None:
    folder = write(
        "experiment/mine.yaml", "# @package _global_\n# mine\ntrain:\n  max_steps: ???\n"
    )
    composer = Composer([folder])
    same(composer, ["experiment=mine", "train.max_steps=5"], (folder,))
    same(composer, ["experiment=mine"], (folder,))
