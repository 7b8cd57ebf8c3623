"""A pipeline steps, reads and evaluates batches of any shape as one device does."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks
from parity_cases import layout_of
from parity_run import config_of, this_rank, world_of
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge.build import build
from forge.config.model.layer import Model
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.parallel.pipeline import cut_stages
from forge.parallel.ranks import Ranks
from forge.training.callbacks.evaluation import evaluate
from forge.training.models import build_model

CPU, ROWS, SEQ = torch.device("cpu"), 8, 16
SCHEDULES = {
    "1f1b": "pp2",
    "looped": "pp2 schedule=interleaved_zero_bubble",
    "zbv": "pp2 schedule=zbv_zero_bubble",
}


def batch(seq: int = SEQ) -> Batch:
    """Some targets are masked, and not as many in each row."""
    tokens = torch.randint(0, 301, (ROWS, seq + 1), generator=torch.Generator().manual_seed(0))
    targets = tokens[:, 1:].clone()
    targets[3:5, 2:6] = IGNORE_INDEX
    return {"tokens": tokens[:, :-1].clone(), "targets": targets}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grad = parameter.grad
        found[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
        assert found[name].norm() > 0, name
    model.zero_grad()
    return found


@pytest.mark.ci("looped")
@pytest.mark.parametrize("layout", SCHEDULES.values(), ids=SCHEDULES)
def test_steps_and_readings_of_any_shape(layout) -> None:
    """A stage runs on what it is sent and on nothing else: left to itself, torch finds shapes by
    running stages on uninitialised memory, and remembers the first.
    """
    config = config_of("llama, 5 blocks", layout_of(layout))
    plain = build_model(config_of("llama, 5 blocks"), CPU, Ranks(), torch.float64)
    objective = build(config.objective, path="objective")
    tokens = torch.randint(0, 301, (3, 23), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        hidden, logits = plain.hidden(tokens), plain(tokens)  # type: ignore[operator]
    wanted = {}
    for seq in (SEQ // 2, SEQ):
        (objective(plain, batch(seq)).total / 100).backward()
        wanted[seq] = gradients(plain)

    def work(_: int) -> None:
        model: Any = build_model(config, CPU, this_rank(config), torch.float64)
        calls = []
        for part in model.parts:
            part.register_forward_pre_hook(lambda *_: calls.append(1))
        for seq in (SEQ // 2, SEQ, SEQ // 2):
            states = model.hidden(tokens)
            assert states.shape == hidden.shape
            assert model.last == (model.own_head() is not None)
            if model.last:
                assert (states - hidden).norm() <= 1e-12 * hidden.norm()
            assert (model(tokens) - logits).norm() <= 1e-6 * logits.norm()
            calls.clear()
            both = {name: values.chunk(2) for name, values in batch(seq).items()}
            halves = [{name: values[i] for name, values in both.items()} for i in range(2)]
            model.step(halves, objective, 1 / 100)
            assert len(calls) == len(model.parts) * config.parallel.pp_microbatches
            for name, gradient in gradients(model).items():
                reference = wanted[seq][name]
                assert (gradient - reference).norm() <= 1e-10 * reference.norm(), name

    on_ranks(2, work)


@pytest.mark.parametrize(
    "layout", [SCHEDULES["zbv"], "pp2 dp_shard=2 batch=4", "pp2 tp=2"], ids=["zbv", "fsdp2", "tp2"]
)
def test_evaluation_counts_each_target_once(layout) -> None:
    """Also with fewer rows than micro-batches."""
    config = config_of("llama, 5 blocks", layout_of(layout))
    tokens, targets = batch().values()
    tokenizer: Any = SimpleNamespace(token_bytes=lambda: np.arange(301) % 4)
    objective = build(config.objective, path="objective", tokenizer=tokenizer)

    def metrics(model: nn.Module, parts: list[slice], ranks: Ranks | None) -> dict[str, float]:
        batches = [{"tokens": tokens[rows], "targets": targets[rows]} for rows in parts]
        return evaluate(model, objective, batches, device=CPU, ranks=ranks)

    plain = build_model(config_of("llama, 5 blocks"), CPU, Ranks())
    wanted = metrics(plain, [slice(6)], None)

    def work(_: int) -> None:
        ranks = this_rank(config)
        share = 6 // ranks.batch[1]
        firsts = range(ranks.batch[0] * share, (ranks.batch[0] + 1) * share)
        model = build_model(config, CPU, ranks)
        found = metrics(model, [slice(first, first + 1) for first in firsts], ranks)
        assert found == pytest.approx(wanted, rel=1e-6)

    on_ranks(world_of(config), work)


def test_a_rank_holds_its_stages_only() -> None:
    config = config_of("llama, 5 blocks", layout_of("pp2 pp=4 pp_layers=[1,1,1,2]"))
    plain = build_model(config_of("llama, 5 blocks"), CPU, Ranks())
    names = [name for name, _ in plain.named_parameters()]

    def work(rank: int) -> None:
        model = build_model(config, CPU, this_rank(config))
        own = {name.split(".")[1] for name in model.state_dict() if name.startswith("blocks.")}
        assert own == ({"3", "4"} if rank == 3 else {str(rank)})
        assert ("embedding.weight" in model.state_dict()) == (rank == 0)
        everyones: list[Any] = [None] * 4
        dist.all_gather_object(everyones, [name for name, _ in model.named_parameters()])
        assert sorted(name for own in everyones for name in own) == sorted(names)

    on_ranks(4, work)


def test_a_model_that_cannot_be_cut_is_refused() -> None:
    config = config_of("llama", layout_of("pp2"))
    other = dataclasses.replace(config, model=Model(_target_="mine.Net"))
    what = r"^parallel.pp=2: mine.Net cannot be cut into stages, only decoders can; "
    with pytest.raises(ValueError, match=what + r"set parallel.pp=1$"):
        cut_stages(lambda: nn.Linear(1, 1), other, mesh=None)  # type: ignore[arg-type]
