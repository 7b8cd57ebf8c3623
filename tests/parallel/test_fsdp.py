"""What forge relies on, or mends, in torch's fully_shard."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from forge.config.parallel import Parallel
from forge.models.reading_mode import evaluating
from forge.parallel.fsdp import shard
from forge.parallel.mesh import make_mesh


class Model(nn.Module):
    """Blocks and a head, as `shard` takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 5)

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[1](self.blocks[0](x)) * self.head.weight.sum()


def sharded() -> Model:
    model = Model()
    shard(model, make_mesh(Parallel(dp_shard=2), "cpu"))
    return model


def test_after_reading_the_parameters_are_those_that_are_trained() -> None:
    """FSDP keeps what the root gathered, such as the output head, which losses read after the
    forward pass.
    """

    def work(_: int) -> None:
        model = sharded()
        trained = {name: id(parameter) for name, parameter in model.named_parameters()}
        with evaluating(model), torch.no_grad():
            model.hidden(torch.ones(2, 6))
            assert {name: id(parameter) for name, parameter in model.named_parameters()} != trained
        assert {name: id(parameter) for name, parameter in model.named_parameters()} == trained

    on_ranks(2, work)


def test_an_overflow_on_one_rank_lowers_the_scale_of_all() -> None:
    """fp16 over ranks: else their scales would part."""

    def work(rank: int) -> None:
        model = sharded()
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler.scale(torch.zeros(()))  # which makes the scale
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if rank == 1:
            last = next(iter(model.parameters())).grad
            assert isinstance(last, DTensor)
            last.to_local().fill_(torch.inf)
        scaler.unscale_(optimizer)
        scaler.update()
        assert scaler.get_scale() == 512.0

    on_ranks(2, work)


def test_a_number_of_ranks_makes_their_groups_once() -> None:
    """torch makes communicators for each module."""

    def work(_: int) -> None:
        made: list[int] = []
        original = dist.new_group

        def counted(*args: Any, **options: Any) -> Any:
            made.append(1)
            return original(*args, **options)

        model, mesh = Model(), make_mesh(Parallel(dp_shard=4), "cpu")
        for module in ("torch.distributed.device_mesh", "torch.distributed.distributed_c10d"):
            if hasattr(sys.modules[module], "new_group"):
                sys.modules[module].new_group = counted
        shard(model, mesh, reshard_after_forward=2)
        modules = [module for module in model.modules() if isinstance(module, FSDPModule)]
        infos = [group_of(module).post_forward_mesh_info for module in modules]
        between = {id(info) for info in infos if info is not None}
        assert len(modules) == 3
        assert len(between) == 1
        # Two axes of two groups each, whatever the number of blocks.
        assert 0 < len(made) <= 4
        model.hidden(torch.ones(2, 6)).sum().backward()

    on_ranks(4, work)


def group_of(module: FSDPModule) -> Any:
    return module._get_fsdp_state()._fsdp_param_group


@pytest.mark.skipif(not hasattr(FSDPModule, "set_symm_mem_for_comm"), reason="torch 2.13 has it")
def test_symmetric_memory_is_asked_for_after_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's reduce-scatter in it only sums. Here without NCCL: what torch is asked for."""

    def work(_: int) -> None:
        asked: list[bool] = []

        def ask(module: FSDPModule) -> None:
            asked.append(group_of(module).force_sum_reduction_for_comms)

        monkeypatch.setattr(FSDPModule, "set_symm_mem_for_comm", ask)
        shard(Model(), make_mesh(Parallel(dp_shard=2, symmetric_memory=True), "cpu"))
        assert asked == [True] * 3

    on_ranks(2, work)
