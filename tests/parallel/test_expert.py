"""Expert parallelism where some ranks have nothing to do, and how few experts are sharded."""

from __future__ import annotations

import pytest
import torch
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import config_of, this_rank
from torch.distributed.tensor import DTensor, Shard

from forge.models.moe import MoE
from forge.parallel.fsdp import placement
from forge.parallel.ranks import Ranks
from forge.training.models import build_model

CPU, EXPERTS = torch.device("cpu"), 6


TEXT = torch.randint(301, (2, 12), generator=torch.Generator().manual_seed(0))
ONE_CHOICE = " model.moe.top_k=1 model.moe.norm_topk_prob=false"


@pytest.mark.parametrize(
    ("favourite", "layout"), [(0, "ep=2"), (EXPERTS - 1, "ep=2"), (EXPERTS - 1, "ep=2 gathered")]
)
def test_a_rank_whose_experts_nobody_chooses(favourite, layout) -> None:
    """All tokens go to experts of one rank; those of the other have a gradient of 0."""
    config, text = config_of("moe", layout_of(layout) + ONE_CHOICE), TEXT

    def trained(ranks: Ranks, rows: torch.Tensor):
        model = build_model(config, CPU, ranks)
        for module in model.modules():
            if isinstance(module, MoE):
                module.router.selection_bias[favourite] = 100.0
        model(rows).square().sum().backward()
        return dict(model.named_parameters())

    alone = trained(Ranks(), text)

    def work(rank: int) -> None:
        for name, ours in trained(this_rank(config), text[rank : rank + 1]).items():
            theirs = alone[name].grad
            assert isinstance(ours.grad, DTensor), name
            assert theirs is not None, name
            found, atol = ours.grad.full_tensor(), 1e-5 * float(theirs.abs().max())
            torch.testing.assert_close(found, theirs, rtol=1e-4, atol=atol, msg=name)
            if "experts" in name and "shared" not in name:
                assert not found[torch.arange(EXPERTS) != favourite].any()

    on_ranks(2, work)


def test_more_rows_than_a_rank_holds_are_no_number() -> None:
    """All tokens choose one expert: with the rows of an even load every output is NaN."""
    config = config_of("moe", layout_of("ep=2 gathered ep_rows_factor=1") + ONE_CHOICE)

    def work(rank: int) -> None:
        model = build_model(config, CPU, this_rank(config))
        with torch.no_grad():
            assert model(TEXT[rank : rank + 1]).isfinite().all()  # exchanged, as in an evaluation
        for module in model.modules():
            if isinstance(module, MoE):
                module.router.selection_bias[0] = 100.0
        assert model(TEXT[rank : rank + 1]).isnan().all()

    on_ranks(2, work)


@pytest.mark.parametrize(
    ("layout", "experts", "expected"),
    [
        ("dp_shard=4 batch=2", 4, (Shard(0), (1, 20, 40))),
        ("dp_shard=4 batch=2", 2, (Shard(1), (2, 5, 40))),
        ("dp_shard=2 tp=2", 1, (Shard(2), (1, 10, 20))),
        ("dp_shard=2 ep=2 batch=2", 2, (Shard(1), (1, 10, 40))),
    ],
)
def test_fewer_experts_than_shards_are_sharded_across(layout, experts, expected) -> None:
    options = f" model.moe.num_experts={experts} model.moe.top_k=1 model.moe.norm_topk_prob=false"
    config = config_of("moe", layout_of(layout) + options)

    def work(_: int) -> None:
        up = build_model(config, CPU, this_rank(config)).blocks["0"].feed_forward.experts.w_up
        assert isinstance(up, DTensor)
        assert (up.placements[0], tuple(up.to_local().shape)) == expected

    on_ranks(4, work)


def test_nothing_is_sharded_across_that_does_not_divide() -> None:
    assert placement(torch.nn.Parameter(torch.empty(2, 5, 7)), 4) is None
    assert placement(torch.nn.Parameter(torch.empty(2, 8, 7)), 4) == Shard(1)
    assert placement(torch.nn.Parameter(torch.empty(5, 8)), 16) is None
