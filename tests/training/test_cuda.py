"""What only a GPU can show; skipped without one."""

from __future__ import annotations

import os
import pickle

import pytest
import torch
from run_helpers import assert_bit_equal, built, logged, step_of, stored, weights
from test_guard import Poisoned, state_of

from forge.parallel.ranks import Ranks
from forge.training.callbacks.every_step import Agreement

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
# torch looks at this once, at the first matrix product of the process; a run of its own sets it in
# time.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
GPU = "run.device=cuda precision=fp32 precision.matmul_precision=highest run.deterministic=true"


def test_bf16_products_of_fp32_weights(assembled):
    loop = assembled("run.device=cuda", "precision=auto")
    seen: set[torch.dtype] = set()
    loop.model.blocks["0"].feed_forward.w_down.register_forward_hook(
        lambda module, x, y: seen.add(y.dtype)
    )
    loop.run()
    assert seen == {torch.bfloat16}
    assert {p.dtype for p in loop.optimizer.param_groups[0]["params"]} == {torch.float32}
    assert all(p.is_cuda for p in loop.model.parameters())


def test_fp32_trains_as_on_the_cpu(new_run):
    paths = [new_run("train.max_steps=3"), new_run("train.max_steps=3", GPU)]
    for path in paths:
        built(path).run()
    for name, bound in (("train/loss", 1e-5), ("train/grad_norm", 1e-4)):
        cpu, gpu = (logged(path, name) for path in paths)
        assert gpu == pytest.approx(cpu, rel=bound)


@pytest.mark.parametrize("fused", ["true", "false"])
def test_adamw_is_fused_where_asked(assembled, fused):
    loop = assembled(GPU, f"optimizer.fused={fused}")
    assert bool(loop.optimizer.param_groups[0]["fused"]) is (fused == "true")
    loop.run()


def test_a_bad_update_is_skipped_on_the_device_without_waiting_for_it(assembled):
    """As on the host bit for bit, the first update and a later one."""
    results = []
    for on_device in (True, False):
        loop = assembled(GPU, "optimizer.fused=true")
        update, steps = loop.update, [next(loop.loader) for _ in range(4)]
        assert update.skips_on_device
        update.skips_on_device = on_device
        update.backward.objective = Poisoned(loss=(0,), gradient=(2,))
        for step in steps:
            for batch in step.batches:
                batch |= {name: one.to("cuda") for name, one in batch.items()}
        torch.cuda.set_sync_debug_mode("error" if on_device else "default")
        try:
            outputs = [update(step, number) for number, step in enumerate(steps)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert [bool(output.skipped) for output in outputs] == [True, False, True, False]
        results.append(weights(loop.model) | state_of(update.optimizer))
    assert_bit_equal(*results)


def test_pinned_staging_saves_what_a_plain_save_does(trained):
    options = f"{GPU} train.max_steps=5 checkpoint.interval=2 checkpoint.keep_last_n=0"
    runs = [trained(options), trained(options, "checkpoint.async_mode=async_with_pinned_mem")]
    for step in (2, 4, 5):
        assert_bit_equal(*(stored(step_of(run, step)) for run in runs))


def test_resume_is_bit_equal_with_deterministic_kernels(trained):
    options = f"{GPU} train.max_steps=6 checkpoint.interval=3 checkpoint.keep_last_n=0"
    whole = trained(options)
    resumed = trained(options, f"checkpoint.resume_from={step_of(whole, 3)}")
    assert_bit_equal(*(stored(step_of(run, 6)) for run in (resumed, whole)))


def test_memory_snapshot(trained):
    window = "profiling=on profiling.start_step=2 profiling.end_step=3"
    path = trained("run.device=cuda profiling.memory_snapshot=true", window)
    folder = path / "profiler_traces" / "rank_0"
    snapshot = pickle.loads((folder / "steps_2_to_3_memory.pickle").read_bytes())
    assert any(trace for trace in snapshot["device_traces"])
    assert (folder / "steps_2_to_3.json.gz").exists()


def test_memory_that_runs_out_is_in_a_snapshot(new_run):
    path = new_run("run.device=cuda profiling=on profiling.memory_snapshot=true")
    loop = built(path)

    def too_much(*_):
        if loop.state.step == 2:
            torch.empty(1 << 50, device="cuda")

    loop.model.norm.register_forward_pre_hook(too_much)
    with pytest.raises(torch.OutOfMemoryError):
        loop.run()
    file = path / "profiler_traces" / "rank_0" / "out_of_memory_at_step_3.pickle"
    snapshot = pickle.loads(file.read_bytes())
    assert any(event["action"] == "oom" for trace in snapshot["device_traces"] for event in trace)


def test_what_ranks_request_is_read_a_step_later_without_waiting_for_the_device():
    agreement, seen = Agreement(Ranks(size=2)), []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for number in (1.0, 0.0, 2.0, 0.0):
            seen.append(agreement._any(torch.full((), number, device="cuda")))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert seen == [False, True, False, True]
