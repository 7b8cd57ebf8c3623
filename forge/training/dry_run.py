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
from forge.parallel.counting import Counting
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.tensors.local import local
from forge.training.models import build_model
from forge.training.step import Update


class Imagined(Counting):
    """Counts, and has an exchange of equal parts give back what was sent: counts of tokens that
    others announce must be numbers that there can be.
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
            given = args[0]
            result.copy_(given) if result.shape == given.shape else result.zero_()
        return result


def step_of(config: Config, stage: int) -> dict[str, Any]:
    """What the first rank of a pipeline's rank holds and sends. config: resolved, on a CPU."""
    size = config.run.num_processes or 1
    rank = stage * (size // config.parallel.pp)
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        return _step(config, rank, size)
    finally:
        dist.destroy_process_group()


def _step(config: Config, rank: int, size: int) -> dict[str, Any]:
    device = torch.device("cpu")
    ranks = Ranks(rank=rank, size=size, mesh=make_mesh(config.parallel, "cpu"))
    model = build_model(config, device, ranks, filled=False)
    for parameter in model.parameters():
        torch.nn.init.constant_(local(parameter), 0.01)
    found = {
        "rank": rank,
        "held": sum(local(parameter).numel() for parameter in model.parameters()),
        "parameters": [_described(name, each) for name, each in model.named_parameters()],
    }
    if config.parallel.pp > 1:
        return found
    for module in model.modules():
        if isinstance(module, Router):
            module._choose = partial(_evenly, module.section)  # as the closed form has it
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
    with Imagined():
        update(step, 0)  # the first one also sets up
    with Imagined() as counting:
        update(step, 1)
    return found | {"sent": dict(counting.sent)}


def _evenly(section: MoE, scores: torch.Tensor) -> torch.Tensor:
    """Experts in turn, whatever their scores: [tokens, top_k]."""
    chosen = torch.arange(len(scores) * section.top_k).view(len(scores), -1)
    return chosen % section.num_experts


def _described(name: str, parameter: torch.Tensor) -> tuple[str, list[int], list[int], str]:
    """Name, shape, shape here, and which axes cut which dimension."""
    cuts = ""
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        pairs = zip(names, parameter.placements, strict=False)
        cuts = ", ".join(f"{axis} {place}" for axis, place in pairs)
    return name, list(parameter.shape), list(local(parameter).shape), cuts


def main() -> None:
    """Reads (config, ranks of the pipeline), pickled by whoever started it; writes JSON."""
    config, stages = pickle.load(sys.stdin.buffer)
    torch.set_num_threads(1)
    print(json.dumps([step_of(config, stage) for stage in stages]))


if __name__ == "__main__":
    main()
