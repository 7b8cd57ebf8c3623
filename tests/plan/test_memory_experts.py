"""The memory estimate of experts over ranks, against what ranks hold."""

from __future__ import annotations

import time

import pytest
import torch
from helpers.ranks import on_ranks
from helpers.refusing import resolved
from test_memory import Live
from torch.distributed.tensor import DTensor

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.models.router import Router
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.expert import spread_experts
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.parallel.scopes import spread_scopes
from forge.planning.memory import memory_by_part
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
    return memory_by_part(chosen(*overrides))


@pytest.mark.parametrize(("ep", "shards"), [(1, 4), (2, 2), (4, 1)])
def test_what_is_gathered_of_two_blocks_are_the_experts_of_an_ep_rank(ep: int, shards: int):
    degrees = (f"parallel.ep={ep}", f"parallel.dp_shard={shards}")
    block = SPARSE + 8 // ep * EXPERT
    found = parts(*degrees)
    assert found[GATHERED] == found[UNREDUCED] == 4 * (TABLE + 64 + 2 * block)
    added_up = parts(*degrees, "train.grad_accum_steps=2")[UNREDUCED]
    assert added_up == 4 * (2 * TABLE + 64 + 4 * block)
    assert parts(*degrees, SHARED)[GATHERED] - found[GATHERED] == 4 * 2 * 2 * EXPERT


def test_two_blocks_are_the_costliest_two_that_meet():
    """With every second layer one of each kind; behind dense ones two of experts."""
    sparse, dense = SPARSE + 8 * EXPERT, ATTENTION + NORMS + DENSE
    for option, two in (("frequency=2", sparse + dense), ("first_num_dense_layers=1", 2 * sparse)):
        found = parts("parallel.dp_shard=2", f"model.moe.{option}")
        assert found[GATHERED] == 4 * (TABLE + 64 + two)


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
        assert memory_by_part(cfg)["weights (fp32)"] == pytest.approx(held.item(), rel=0.01)

    on_ranks(world, work)


def evenly(router: Router, scores: torch.Tensor) -> torch.Tensor:
    """Experts in turn, whatever their scores: [tokens, top_k]."""
    turns = torch.arange(len(scores) * router.section.top_k).view(len(scores), -1)
    return turns % router.section.num_experts


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize(
    "options",
    [
        ("frequency=1",),
        ("shared_experts=2", "frequency=2"),
        ("capacity_factor=1.0", "router=sigmoid_topk"),
        ("capacity_factor=1.0", "balance_scope=micro_batch", "gradient_scale=true"),
        ("expert_bias=true", "shared_experts=1", "shared_expert_gate=true", "beside_dense=true"),
    ],
    ids=str,
)
def test_activations_are_what_forward_leaves_alive(
    options: tuple[str, ...], mode: str, monkeypatch: pytest.MonkeyPatch
):
    """As on one device, within 1 %, where experts get as many tokens as one another."""
    monkeypatch.setattr(Router, "_choose", evenly)
    moe = (f"model.moe.{option}" for option in options)
    cfg = chosen("parallel.ep=2", f"train.activation_checkpointing={mode}", *moe)

    def work(rank: int) -> None:
        assert isinstance(cfg.model, DecoderConfig)
        model, mesh = Decoder(cfg.model), make_mesh(cfg.parallel, "cpu")
        spread_experts(model, mesh)
        spread_scopes(model, mesh)
        recompute_blocks(model, mode, layers=True)
        tokens = torch.zeros(4, 64, dtype=torch.int64)
        with Live(model) as live:
            kept = model(tokens)
            wanted = pytest.approx(memory_by_part(cfg)["activations"], rel=0.01)
            until = time.monotonic() + 5
            while (held := live.bytes() - kept.nbytes) != wanted and time.monotonic() < until:
                time.sleep(0.01)  # gloo's threads let go of what they have sent a moment later
        assert held == wanted

    on_ranks(2, work)
