"""`parallel=auto`: what it chooses for a model, a number of ranks and their memory, and why."""

from __future__ import annotations

import copy
import math
import os
from itertools import pairwise
from unittest.mock import patch

import pytest
from helpers.refusing import resolved

from forge.planning.memory import memory_of
from forge.planning.world import Devices, World
from forge.resolve.auto import USABLE, candidate_degrees, choose_degrees, layout_name
from forge.resolve.resolve import Resolution

GIB = 1 << 30
LLAMA = [
    "model=llama7b",
    "tokenizer.vocab_size=32000",
    "train=long",
    "precision=bf16",
    "train.compile_model=false",
    "parallel=auto",
]


def auto(
    overrides: list[str], ranks: int, memory: int | None, *, gpus: int | None = None
) -> Resolution:
    """Under a launcher with so many ranks, on machines with so many GPUs."""
    with patch.dict(os.environ, WORLD_SIZE=str(ranks)):
        return resolved([*LLAMA, *overrides], gpus=gpus or ranks, memory=memory, as_point=True)


def degrees(resolution: Resolution) -> dict[str, int]:
    return {axis: size for axis, size in resolution.config.parallel.degrees().items() if size > 1}


@pytest.mark.parametrize(
    ("ranks", "gib", "overrides", "chosen"),
    [
        (1, 1000, [], {}),
        (8, 1000, [], {"dp_replicate": 8}),
        (8, 80, ["train.activation_checkpointing=full"], {"dp_shard": 8}),
        (16, 80, ["train.activation_checkpointing=full"], {"dp_replicate": 2, "dp_shard": 8}),
        (8, None, [], {"dp_shard": 8}),
        (8, 1000, ["parallel.tp=2"], {"dp_replicate": 4, "tp": 2}),
        (
            8,
            80,
            ["parallel.dp_replicate=2", "train.activation_checkpointing=full"],
            {"dp_replicate": 2, "dp_shard": 4},
        ),
    ],
)
def test_what_is_chosen(ranks: int, gib: int | None, overrides: list[str], chosen: dict[str, int]):
    found = auto(overrides, ranks, gib and gib * GIB, gpus=min(ranks, 8))
    assert degrees(found) == chosen
    assert found.config.parallel.layout == "given"


def needed(overrides: list[str], ranks: int) -> int:
    plain = [text for text in LLAMA if text != "parallel=auto"]
    config = resolved([*plain, *overrides], gpus=ranks, world_size=ranks, as_point=True).config
    return memory_of(config).reserved


def test_the_first_that_fits_is_chosen_and_no_later_one():
    """With just the memory that a layout needs at least it is chosen; with a little less the next
    one is, which needs less.
    """
    order = ["ddp", "fsdp", "tp2_fsdp", "tp4_fsdp", "tp8_fsdp"]
    always = ["parallel.reshard_after_forward=always"]
    presets = {
        "ddp": ["parallel=ddp", "parallel.dp_replicate=8", *always],
        "fsdp": ["parallel=fsdp", *always],
    }
    for tp in (2, 4, 8):
        presets[f"tp{tp}_fsdp"] = ["parallel=fsdp", f"parallel.tp={tp}", *always]
    sizes = {name: needed(presets[name], 8) for name in order}
    assert sorted(sizes.values(), reverse=True) == list(sizes.values())
    for name, size in sizes.items():
        found = auto([], 8, math.ceil(size / USABLE))
        why = next(d.why for d in found.derived if d.key == "parallel.layout")
        assert why.startswith(f"{name.replace('tp8_fsdp', 'tp8')}: ")
    for name, later in pairwise(order):
        found = auto([], 8, math.ceil(sizes[name] / USABLE) - 2)
        assert degrees(found) == degrees(
            resolved([*LLAMA[:-1], *presets[later]], gpus=8, world_size=8, as_point=True)
        )


def test_a_pipeline_comes_last_and_what_fits_nowhere_is_said():
    found = auto(["train.batch_size=8"], 16, 20 * GIB, gpus=8)
    assert found.config.parallel.pp > 1
    lean = auto([], 8, GIB)
    why = next(d.why for d in lean.derived if d.key == "parallel.layout")
    assert why.endswith("none that was tried fits, and this needs least")
    assert "parallel.memory" in [w.rule for w in lean.warnings]


def test_experts_are_spread_before_tp_and_as_far_as_a_node_and_their_number_allow():
    world = World(
        size=32, source="the test", device="cuda", devices=Devices(gpus=8, source="the test")
    )
    parallel = resolved(["parallel=single"]).config.parallel
    found = list(candidate_degrees(parallel, world, experts=12))
    assert [layout_name(c) for c in found[:8]] == [
        "ddp",
        "hsdp",
        "fsdp",
        "ep2_fsdp",
        "ep4_fsdp",
        "ep4_tp2_fsdp",
        "ep2_tp4_fsdp",
        "tp8_fsdp",
    ]
    assert {math.prod(c.values()) for c in found} == {32}
    assert all(12 % c["ep"] == 0 and 8 % (c["ep"] * c["tp"]) == 0 for c in found)
    assert {c["ep"] for c in candidate_degrees(parallel, world)} == {1}


MIXTRAL = [
    "model=mixtral_8x7b",
    "optimizer=adamw",
    "train.batch_size=1",
    "train.seq_len=4096",
    "train.activation_checkpointing=full",
]


@pytest.mark.parametrize(
    ("ranks", "gib", "overrides", "chosen"),
    [
        (8, 141, [], {"dp_shard": 8}),
        (8, 141, ["train.grad_accum_steps=4", "parallel.reduce_gradients=step"], {"ep": 8}),
        (
            32,
            80,
            ["train.grad_accum_steps=4", "parallel.reduce_gradients=step"],
            {"dp_shard": 4, "ep": 8},
        ),
        (
            16,
            80,
            ["train.grad_accum_steps=4", "parallel.reduce_gradients=step"],
            {"dp_shard": 2, "tp": 2, "ep": 4},
        ),
    ],
)
def test_what_is_chosen_for_experts(
    ranks: int, gib: int, overrides: list[str], chosen: dict[str, int]
):
    """Sharded where that fits, and cut by expert where not: unreduced gradients, kept over
    micro-batches, are of all that are gathered.
    """
    assert degrees(auto([*MIXTRAL, *overrides], ranks, gib * GIB, gpus=8)) == chosen


def test_memory_on_a_cpu_is_shared():
    config = copy.deepcopy(resolved(["parallel=single"]).config)
    config.thaw()
    sizes = [4, 8]
    worlds = [
        World(size=n, source="the test", device="cpu", devices=Devices(gpus=0, source="the test"))
        for n in sizes
    ]
    reasons = [choose_degrees(config, world)[1] for world in worlds]
    there = [float(why.split(" of the ")[1].split()[0]) for why in reasons]
    assert there[0] == pytest.approx(2 * there[1], abs=0.15), "to one decimal"
