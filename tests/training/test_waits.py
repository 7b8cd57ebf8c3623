"""Between logs a step never waits for its device, and compiled blocks are compiled once.

On a CPU what would wait for a GPU is counted; on a GPU torch itself raises where something does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.ranks import on_ranks
from torch import Tensor
from torch._dynamo.utils import counters
from waits import Waits

from forge.compose import composition
from forge.parallel.mesh import make_mesh
from forge.parallel.ranks import Ranks
from forge.training.callbacks.every_step import BadSteps
from forge.training.loop import Loop
from forge.training.models import build_model

STEPS = 4
EACH = f"train.max_steps={STEPS} metrics.log_interval=100 eval=off checkpoint=off"
FUSED = "optimizer=adamw optimizer.fused=true"  # skips an update by itself
EXPERTS = "model.moe.num_experts=4 model.moe.top_k=2 model.moe.aux_loss_weight=0.01"
RUNS = {
    "dense": "",
    "clipped": "train.grad_clip_norm=0.1 train.grad_clip_value=0.01 train.skip_step_on_spikes=true",
    "accumulated": "train.grad_accum_steps=2 objective.z_loss_weight=1e-4",
    "chunked": "objective.loss_fn=chunked_cross_entropy objective.ce_chunk_size=16",
    "recomputed": "train.activation_checkpointing=selective",
    "packed": "data.pack_sequences=true",
    "experts": f"{EXPERTS} model.moe.kernel=grouped model.moe.bias_update_rate=0.01",
    "capacity": f"{EXPERTS} model.moe.capacity_factor=1.0 model.moe.gradient_scale=true",
    "sixteen": "precision=bf16",
    "rounded": "precision=bf16 precision.param_dtype=bf16 precision.stochastic_rounding=true "
    "optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16",
    "masters": "precision.param_dtype=bf16 train.grad_clip_norm=0.1",
    "in backward": "train.optimizer_in_backward=true train.grad_clip_norm=0",
}


def waiting(loop: Loop) -> Waits:
    """What waits in all steps of a run but the first and the last, as if its device were a GPU."""
    waits, step = Waits(), loop._step
    loop.update.skips_on_device = True
    if loop.update.in_backward is not None:
        loop.update.in_backward.on_device = True
    for one in loop.callbacks:
        if isinstance(one, BadSteps):
            one.at_logs = True

    def counted(data):
        if 0 < loop.state.step < STEPS - 1:
            with waits:
                step(data)
        else:
            step(data)

    loop._step = counted
    loop.run()
    assert loop.state.step == STEPS
    return waits


@pytest.mark.parametrize("options", RUNS.values(), ids=RUNS)
def test_a_step_between_logs_waits_for_nothing(assembled, options):
    assert waiting(assembled(EACH, FUSED, options)).found == {}


def test_experts_in_a_loop_wait_in_each_layer_and_pass(assembled):
    found = waiting(assembled(EACH, FUSED, EXPERTS, "model.moe.kernel=loop")).found
    assert found["forge.looped_mm.default"] >= 2 * (STEPS - 2)


@pytest.mark.parametrize(("method", "waits"), [("all_gather", False), ("all_to_all", True)])
def test_gathered_tokens_reach_experts_without_a_wait(method, waits) -> None:
    words = f"parallel.ep=2 parallel.ep_method={method} model.moe.kernel=grouped precision=fp32"
    overrides = [*EXPERTS.split(), *words.split(), "run.num_processes=2", "run.device=cpu"]
    config = composition.config(overrides).validate(world_size=2).config

    def work(rank: int) -> None:
        ranks = Ranks(rank=rank, size=2, mesh=make_mesh(config.parallel, "cpu"))
        model = build_model(config, torch.device("cpu"), ranks)
        text = torch.full((2, 16), rank)
        for _ in range(2):  # the first pass also sets FSDP up
            with Waits() as found:
                model(text).square().mean().backward()
        assert bool(found.found) is waits, found.found

    on_ranks(2, work)


PLANTED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.item(),
    "float": lambda x: float(x.sum()),
    "if": lambda x: 1 if x.sum() > 0 else 0,
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "cpu": lambda x: x.cpu(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "put": lambda x: x.__setitem__(x > 0, x[:0]),
    "select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "repeat": lambda x: torch.arange(len(x)).repeat_interleave(x.long()),
    "equal": lambda x: torch.equal(x, x),
    "tensor": lambda x: torch.tensor([1.0, 2.0]),
}


@pytest.mark.parametrize("wait", PLANTED.values(), ids=PLANTED)
def test_a_wait_is_found(wait):
    with Waits() as waits:
        wait(torch.zeros(1))
    assert waits.found.total() >= 1


def test_a_wait_of_a_callback_is_found(assembled):
    loop = assembled(EACH, FUSED)
    loop.model.norm.register_forward_hook(lambda module, x, y: y.sum().item() and None)
    assert waiting(loop).found == {"aten._local_scalar_dense.default": STEPS - 2}


@pytest.mark.parametrize("options", ["", EXPERTS, "train.activation_checkpointing=full"])
def test_blocks_compile_once_and_whole(assembled, options):
    """Training reads one shape; what is compiled after the first step is compiled again."""
    torch._dynamo.reset()
    counters.clear()
    loop = assembled(EACH, options, "train.compile_model=true train.compile_backend=aot_eager")
    step, graphs = loop._step, []

    def counted(data):
        step(data)
        graphs.append(counters["stats"]["unique_graphs"])

    loop._step = counted
    loop.run()
    assert graphs == [graphs[0]] * STEPS
    assert graphs[0] >= 1
    assert not counters["graph_break"]


def test_a_graph_that_breaks_is_found(assembled):
    torch._dynamo.reset()
    loop = assembled(EACH, "train.compile_model=true train.compile_backend=aot_eager")
    attention = loop.model.blocks["0"].attention
    attention.register_forward_hook(lambda module, x, y: y.sum().item() and None)
    with pytest.raises(RuntimeError, match="data-dependent"):
        loop.run()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", ["false", "true"])
@pytest.mark.parametrize(
    "options", ["", EXPERTS, RUNS["rounded"]], ids=["dense", "experts", "rounded"]
)
def test_a_gpu_waits_for_nothing_between_logs(assembled, options, compiled):
    more = f"run.device=cuda precision=bf16 {FUSED} train.compile_model={compiled}"
    loop = assembled(EACH, more, options)
    step = loop._step

    def strict(data):
        torch.cuda.set_sync_debug_mode("error" if 0 < loop.state.step < STEPS - 1 else "default")
        try:
            step(data)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    loop._step = strict
    loop.run()
