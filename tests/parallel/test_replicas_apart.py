"""DiLoCo on forked ranks: the paper's loop in numpy, data parallelism, and the bytes sent."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks
from parity_models import SIZES
from parity_run import Tokens, world_of
from torch import nn

from forge.compose import composition
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.optim.outer import outer_step
from forge.parallel.counting import TrafficCounter
from forge.parallel.gather import gather_on_main
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.planning.traffic import busiest_rank
from forge.training.callbacks.diloco import OuterStep
from forge.training.models import build_model, build_objective
from forge.training.step import Update
from forge.training.step_source import step_source

Arrays = dict[str, np.ndarray]
CPU, LR = torch.device("cpu"), 0.01
BETAS, EPS, DECAY = (0.9, 0.95), 1e-8, 0.1


def config_of(layout: str) -> Config:
    words = [*SIZES.split(), "model.n_layers=4", *layout.split()]
    config = composition.config(words)
    return config.validate(world_size=world_of(config) if "parallel" in layout else 1).config


def update_of(
    config: Config, ranks: Ranks, dtype: torch.dtype, adamw: bool
) -> tuple[nn.Module, Update, Any, OuterStep | None]:
    """A model, its update, its batches, and the outer step of replicas."""
    model = build_model(config, CPU, ranks, dtype)
    objective = build_objective(config, CPU, ranks, tokenizer=None, dtype=dtype)
    if adamw:
        options: Any = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
        optimizer: Any = torch.optim.AdamW(model.parameters(), **options)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = Update(
        model=model,
        objective=objective,
        optimizer=optimizer,
        schedule=lambda _: 1.0,
        device=CPU,
        clip_norm=config.train.grad_clip_norm,
        ranks=ranks,
    )
    data: Any = {"tokenizer": None, "run_dir": None}
    text: Any = Tokens()
    loader = step_source(config, text, model, objective, ranks, CPU, **data)
    session: Any = SimpleNamespace(config=config, ranks=ranks, model=model, optimizer=optimizer)
    outer = OuterStep(session) if config.diloco.enabled else None
    return model, update, loader, outer


def trained(config: Config, ranks: Ranks, steps: int, *, adamw: bool) -> dict[str, torch.Tensor]:
    """The weights after some steps, in float64; of replicas that train apart the common ones."""
    model, update, loader, outer = update_of(config, ranks, torch.float64, adamw)
    state = SimpleNamespace(step=0)
    loop: Any = SimpleNamespace(state=state, config=config, model=model)
    if outer:
        outer.on_start(loop)
    for number, step in zip(range(steps), loader, strict=False):
        output = update(step, number)
        state.step = number + 1
        if outer:
            outer.on_step_end(loop, output)
    named = outer.common.items() if outer else model.named_parameters()
    return {n: t for n, t in gather_on_main(named, ranks).tensors.items() if t is not None}


def ranks_of(config: Config) -> Ranks:
    mesh = make_mesh(config.parallel, "cpu", apart=config.diloco.enabled)
    host: Any = dist.new_group()
    return Ranks(rank=dist.get_rank(), size=dist.get_world_size(), mesh=mesh, host=host)


class Numpy:
    """The loop of the paper: each replica with AdamW and clipping, the outer SGD with Nesterov."""

    def __init__(self, config: Config) -> None:
        self.config, self.section = config, config.diloco
        self.model, self.update, self.loader, _ = update_of(
            config_of("train.batch_size=8"), Ranks(), torch.float64, False
        )
        start = {n: p.detach().numpy().copy() for n, p in self.model.named_parameters()}
        count = config.parallel.dp_replicate
        self.common, self.velocity = start, {n: np.zeros_like(w) for n, w in start.items()}
        self.own = [{n: w.copy() for n, w in start.items()} for _ in range(count)]
        zeros = [{n: np.zeros_like(w) for n, w in start.items()} for _ in range(2 * count)]
        self.first, self.second = zeros[:count], zeros[count:]
        self.sent: list[tuple[int, int, list[Arrays]]] = []

    def gradient(self, weights: Arrays, rows: dict[str, torch.Tensor]) -> Arrays:
        for name, parameter in self.model.named_parameters():
            parameter.data = torch.from_numpy(weights[name].copy())
            parameter.grad = None
        objective: Any = self.update.backward.objective
        (objective(self.model, rows).total / rows["targets"].numel()).backward()
        named = self.model.named_parameters()
        gradient = {n: p.grad.numpy().copy() for n, p in named if p.grad is not None}
        norm = np.sqrt(sum((g**2).sum() for g in gradient.values()))
        factor = min(1.0, self.config.train.grad_clip_norm / (norm + 1e-6))
        return {n: g * factor for n, g in gradient.items()}

    def run(self, steps: int) -> Arrays:
        for number, step in zip(range(1, steps + 1), self.loader, strict=False):
            count = len(self.own)
            for replica in range(count):
                share = len(step.batches[0]["tokens"]) // count
                part = slice(replica * share, (replica + 1) * share)
                rows = {key: values[part] for key, values in step.batches[0].items()}
                self.inner(replica, self.gradient(self.own[replica], rows), number)
            part_now = self.section.part_at(number)
            if part_now is not None:
                copies = [{n: w.copy() for n, w in own.items()} for own in self.own]
                self.sent.append((number + self.section.overlap_steps, part_now, copies))
            for entry in [entry for entry in self.sent if entry[0] == number]:
                self.sent.remove(entry)
                self.outer(*entry[1:])
        return self.common

    def inner(self, replica: int, gradient: Arrays, number: int) -> None:
        weights, m, v = self.own[replica], self.first[replica], self.second[replica]
        for n, g in gradient.items():
            m[n] = BETAS[0] * m[n] + (1 - BETAS[0]) * g
            v[n] = BETAS[1] * v[n] + (1 - BETAS[1]) * g * g
            corrected = m[n] / (1 - BETAS[0] ** number)
            root = np.sqrt(v[n] / (1 - BETAS[1] ** number)) + EPS
            weights[n] = weights[n] * (1 - LR * DECAY) - LR * corrected / root

    def outer(self, part: int, sent: list[Arrays]) -> None:
        section, count = self.section, len(self.own)
        for n in self.common:
            layer = int(n.split(".")[1]) if n.startswith("blocks.") else section.fragments - 1
            if layer % section.fragments != part:
                continue
            change = sum(self.common[n] - weights[n] for weights in sent) / count
            self.velocity[n] = section.outer_momentum * self.velocity[n] + change
            nesterov = change + section.outer_momentum * self.velocity[n]
            self.common[n] = self.common[n] - section.outer_lr * nesterov
            for own in self.own:
                own[n] = section.mixing * own[n] + (1 - section.mixing) * self.common[n]


CASES = [
    "parallel.dp_replicate=2 parallel.dp_shard=1 train.batch_size=4 diloco.sync_period=3",
    "parallel.dp_replicate=2 parallel.dp_shard=2 train.batch_size=2 diloco.sync_period=4 "
    "diloco.fragments=2 diloco.mixing=0.25 diloco.outer_lr=0.7 diloco.outer_momentum=0.8",
    "parallel.dp_replicate=2 parallel.dp_shard=1 train.batch_size=4 diloco.sync_period=3 "
    "diloco.overlap_steps=2 diloco.mixing=0.5",
    "parallel.dp_replicate=2 parallel.tp=2 parallel.dp_shard=1 train.batch_size=4 "
    "diloco.sync_period=3 diloco.outer_momentum=0",
]


@pytest.mark.ci("apart")
@pytest.mark.parametrize("layout", CASES, ids=["apart", "fragments of shards", "overlap", "tp"])
def test_training_is_the_loop_of_the_paper(layout: str) -> None:
    config = config_of(f"{layout} diloco=on train.grad_clip_norm=1.5")
    expected = Numpy(config).run(7)

    def work(rank: int) -> None:
        weights = trained(config, ranks_of(config), 7, adamw=True)
        for name, value in weights.items():
            difference = np.linalg.norm(value.numpy() - expected[name])
            assert difference <= 1e-11 * np.linalg.norm(expected[name]), (name, difference)
        assert rank or weights.keys() == expected.keys()

    on_ranks(world_of(config), work)


MEAN = "diloco=on diloco.sync_period=1 diloco.outer_lr=1 diloco.outer_momentum=0"


@pytest.mark.nightly
def test_joined_after_every_step_to_the_mean_it_is_data_parallelism() -> None:
    """With SGD inside, up to rounding: a mean of rounded weights, or a rounded mean gradient."""
    layout = "parallel.dp_replicate=2 parallel.dp_shard=1 train.batch_size=4"
    apart, together = config_of(f"{layout} {MEAN}"), config_of(layout)

    def work(rank: int) -> None:
        ours = trained(apart, ranks_of(apart), 5, adamw=False)
        theirs = trained(together, ranks_of(together), 5, adamw=False)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():
            assert torch.linalg.norm(ours[name] - value) <= 1e-14 * torch.linalg.norm(value), name

    on_ranks(2, work)


def test_it_is_data_parallelism_to_the_bit_where_nothing_is_rounded() -> None:
    """SGD of a linear model on small integers: all values are multiples of a power of two."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(-3, 4, (6, 8, 5), generator=draw).double()
    y = torch.randint(-3, 4, (6, 8), generator=draw).double()

    def gradient(weights: torch.Tensor, step: int, rows: slice) -> torch.Tensor:
        inputs = x[step, rows]
        return inputs.T @ (inputs @ weights - y[step, rows]) / len(inputs)

    common = together = torch.arange(5).double() / 8
    for step in range(6):
        together = together - 0.125 * gradient(together, step, slice(0, 8))
        replicas = [common - 0.125 * gradient(common, step, slice(r, r + 4)) for r in (0, 4)]
        common = common.clone()
        outer_step([common], [], [sum(replicas) / 2], lr=1.0, momentum=0.0)  # type: ignore[list-item]
        assert torch.equal(common, together), step
    assert (together * 2**20).frac().any(), "the values have many bits by now"


def test_the_outer_step_is_that_of_torch() -> None:
    draw = torch.Generator().manual_seed(1)
    ours = torch.randn(7, generator=draw, dtype=torch.float64)
    theirs, velocity = nn.Parameter(ours.clone()), torch.zeros(7, dtype=torch.float64)
    optimizer = torch.optim.SGD([theirs], lr=0.3, momentum=0.9, nesterov=True)
    for _ in range(4):
        mean = torch.randn(7, generator=draw, dtype=torch.float64)
        theirs.grad = theirs.detach() - mean
        optimizer.step()
        outer_step([ours], [velocity], [mean], lr=0.3, momentum=0.9)
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-14, atol=1e-14)


@pytest.mark.nightly
@pytest.mark.parametrize(("shards", "fragments"), [(1, 1), (2, 2)])
def test_bytes_of_a_period_are_those_of_the_model_of_traffic(shards: int, fragments: int) -> None:
    period = 4
    apart = config_of(
        f"parallel.dp_replicate=2 parallel.dp_shard={shards} train.batch_size={4 // shards} "
        f"diloco=on diloco.sync_period={period} diloco.fragments={fragments}"
    )
    expected: Counter[str] = Counter()
    for sent in busiest_rank(apart):
        expected[sent.kind] += sent.bytes * period
    layout = Parallel(dp_replicate=2, dp_shard=shards)

    def work(rank: int) -> None:
        mesh = make_mesh(layout, "cpu", apart=True)
        ranks = Ranks(rank=rank, size=dist.get_world_size(), mesh=mesh)
        model, update, loader, outer = update_of(apart, ranks, torch.float32, False)
        assert outer is not None
        state = SimpleNamespace(step=0)
        loop: Any = SimpleNamespace(state=state, config=apart, model=model)
        outer.on_start(loop)
        steps = iter(loader)
        update(next(steps), 0)  # the first sets up
        with TrafficCounter() as counting:
            for number in range(period):
                output = update(next(steps), number)
                state.step = number + 1
                outer.on_step_end(loop, output)
        for kind, count in counting.sent.items():
            # Ranks do not divide every parameter: FSDP fills up, and parts differ.
            assert count == pytest.approx(expected[kind], rel=0.02), (kind, count, expected)
        if shards == 1:
            parameters = sum(p.numel() for p in model.parameters())
            reported = 2 * 4 * 2 + 2 * 8 * 3
            total = 2 * 4 * parameters + period * reported
            assert counting.sent["all-reduce"] == total // 2, counting.sent

    on_ranks(2 * shards, work)
