"""One step of one rank of any number, in one process: torch's fake process group, which sends
nothing. `python -m forge.plan --dry-run` starts it with a small model of the same layout.

What comes out of a collective is not what others sent, so no number that is computed means
anything; shapes, what is held and what is started do. A pipeline is laid out and takes no step: its
ranks begin by telling one another shapes.
"""

from __future__ import annotations

import json
import pickle
import sys
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from forge.build import build
from forge.config.model.moe import MoE
from forge.config.root import Config
from forge.data.batches.loader import Step
from forge.models.router import Router
from forge.parallel.counting import TrafficCounter
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.tensors.local import local
from forge.training.models import build_model
from forge.training.step import Update


class SimulatedCollectives(TrafficCounter):
    """Counts collectives, and returns the sent values from an exchange of equal parts.

    Token counts announced by other ranks must be possible numbers.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if str(func.overloadpacket) == "_c10d_functional.all_to_all_single":
            sent = args[0]
            result.copy_(sent) if result.shape == sent.shape else result.zero_()
        return result


def step_of(config: Config, stage: int) -> dict[str, Any]:
    """The held and sent amounts of a pipeline stage's first rank. config: resolved, on a CPU."""
    size = config.run.num_processes or 1
    rank = stage * (size // config.parallel.pp)
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        return _step(config, rank, size)
    finally:
        dist.destroy_process_group()


def _step(config: Config, rank: int, size: int) -> dict[str, Any]:
    device = torch.device("cpu")
    mesh = make_mesh(config.parallel, "cpu", apart=config.diloco.enabled)
    ranks = Ranks(rank=rank, size=size, mesh=mesh)
    model = build_model(config, device, ranks, filled=False)
    for parameter in model.parameters():
        torch.nn.init.constant_(local(parameter), 0.01)
    report = {
        "rank": rank,
        "held": sum(local(parameter).numel() for parameter in model.parameters()),
        "parameters": [_described(name, p) for name, p in model.named_parameters()],
    }
    if config.parallel.pp > 1:
        return report
    for module in model.modules():
        if isinstance(module, Router):
            module._choose = partial(_evenly, module.section)  # as in the closed form
    update = Update(
        model=model,
        objective=build(config.objective, path="objective"),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.0),
        schedule=lambda _: 1.0,
        device=device,
        clip_norm=1.0,
        ranks=ranks,
        reduce_each=config.parallel.reduce_gradients == "micro_batch",
    )
    train = config.train
    tokens = torch.zeros(train.batch_size, train.seq_len, dtype=torch.int64)
    batch = {"tokens": tokens, "targets": tokens}
    if config.draws:
        batch["noise"] = tokens.to(torch.int32)
    batches = [batch] * train.grad_accum_steps
    count = (train.global_batch_size or 1) * train.seq_len
    step = Step(batches=batches, n_tokens=count, n_targets=count, n_places=count)
    with SimulatedCollectives():
        update(step, 0)  # the first step also sets up
    with SimulatedCollectives() as counting:
        update(step, 1)
    return report | {"sent": dict(counting.sent)}


def _evenly(section: MoE, scores: torch.Tensor) -> torch.Tensor:
    """Experts in turn, for any scores: [tokens, top_k]."""
    chosen = torch.arange(len(scores) * section.top_k).view(len(scores), -1)
    return chosen % section.num_experts


def _described(name: str, parameter: torch.Tensor) -> tuple[str, list[int], list[int], str]:
    """Name, global shape, local shape, and the axes with the dimensions they cut."""
    cuts = ""
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        pairs = zip(names, parameter.placements, strict=False)
        cuts = ", ".join(f"{axis} {placement}" for axis, placement in pairs)
    return name, list(parameter.shape), list(local(parameter).shape), cuts


def main() -> None:
    """Read (config, ranks of the pipeline), pickled by the starting process; write JSON."""
    config, stages = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    print(json.dumps([step_of(config, stage) for stage in stages]))


if __name__ == "__main__":
    main()
