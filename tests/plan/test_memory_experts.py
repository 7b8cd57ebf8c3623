"""The memory estimate of experts over ranks, against what ranks hold."""

from __future__ import annotations

import pytest
import torch
from helpers.ranks import on_ranks
from helpers.refusing import resolved
from torch.distributed.tensor import DTensor

from forge.config.root import Config
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.planning.memory import memory_of
from forge.training.models import build_model

SHAPE = {"dim": 64, "n_layers": 4, "n_heads": 8, "vocab_size": 512, "ffn_hidden_dim": 96}
BASE = [
    *(f"model.{key}={value}" for key, value in SHAPE.items()),
    *("model.max_seq_len=128", "model.tie_embeddings=false", "model.qk_norm=false"),
    *("model.moe.num_experts=8", "model.moe.ffn_hidden_dim=32"),
    *("tokenizer.vocab_size=512", "train.batch_size=4", "train.seq_len=64"),
    *("run.device=cpu", "train.compile_model=false", "precision=fp32"),
]
TABLE, ATTENTION, NORMS, ROUTER, EXPERT = 512 * 64, 4 * 64 * 64, 2 * 64, 8 * 64, 3 * 64 * 32
SPARSE = ATTENTION + NORMS + ROUTER
SHARED, DENSE = "model.moe.shared_experts=2", 3 * 64 * 96
WEIGHTS, GATHERED, UNREDUCED = "weights (fp32)", "gathered weights", "unreduced gradients (fp32)"


def chosen(*overrides: str) -> Config:
    return resolved([*BASE, *overrides]).config


def parts(*overrides: str) -> dict[str, int]:
    """State in full, and of the other parts the most at any moment."""
    memory = memory_of(chosen(*overrides))
    names = {name for moment in memory.moments.values() for name in moment}
    return {name: memory.most(name) for name in names} | dict(memory.state)


@pytest.mark.parametrize(("ep", "shards"), [(1, 4), (2, 2), (4, 1)])
def test_what_is_gathered_of_two_blocks_are_the_experts_of_an_ep_rank(ep: int, shards: int):
    degrees = (f"parallel.ep={ep}", f"parallel.dp_shard={shards}")
    block = SPARSE + 8 // ep * EXPERT
    found = parts(*degrees)
    # Experts that no rank shares lie there; those of one block are counted, as cast at use.
    experts = 8 // ep * EXPERT * (1 if shards == 1 else 2)
    assert found[GATHERED] == 4 * (2 * SPARSE + experts)
    largest = max(block, TABLE + 64)
    assert found[UNREDUCED] == 4 * largest + block, "a copy to reduce, and a block's first gradient"
    added_up = parts(*degrees, "train.grad_accum_steps=2")[UNREDUCED]
    assert added_up == 4 * (2 * TABLE + 64 + 4 * block) + block
    assert parts(*degrees, SHARED)[GATHERED] - found[GATHERED] == 4 * 2 * 2 * EXPERT


def test_two_blocks_are_the_costliest_two_that_meet():
    """With every second layer one of each kind; after dense ones two of experts."""
    sparse, dense = SPARSE + 8 * EXPERT, ATTENTION + NORMS + DENSE
    for option, two in (("frequency=2", sparse + dense), ("first_num_dense_layers=1", 2 * sparse)):
        found = parts("parallel.dp_shard=2", f"model.moe.{option}")
        assert found[GATHERED] == 4 * two


@pytest.mark.parametrize(
    "degrees",
    [
        ("ep=2",),
        ("ep=2", "dp_shard=2"),
        ("ep=2", "tp=2"),
        ("dp_shard=3",),
        ("ep=2", "dp_replicate=2", "dp_shard=1"),
    ],
    ids=str,
)
def test_weights_are_those_of_the_rank_with_most(degrees: tuple[str, ...]):
    """Within 1 %: the rows of all else do not divide by three either."""
    cfg = chosen(*(f"parallel.{degree}" for degree in degrees), SHARED)
    world = cfg.parallel.product_without_dp_shard * cfg.parallel.dp_shard

    def work(rank: int) -> None:
        ranks = Ranks(rank=rank, size=world, mesh=make_mesh(cfg.parallel, "cpu"))
        model = build_model(cfg, torch.device("cpu"), ranks)
        cut = (p for p in model.parameters() if isinstance(p, DTensor))
        held = torch.tensor(sum(p.to_local().nbytes for p in cut))
        torch.distributed.all_reduce(held, torch.distributed.ReduceOp.MAX)
        assert memory_of(cfg).state["weights (fp32)"] == pytest.approx(held.item(), rel=0.01)

    on_ranks(world, work)
