"""The profiler's window: which steps are in the trace, and where it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from forge.config.profiling import Profiling
from forge.parallel.ranks import Ranks
from forge.training.callbacks.profiling import Profiler, profiler

WINDOW = "profiling=on profiling.start_step=2 profiling.end_step=4"


def optimizer_steps(trace: Path) -> int:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    return sum(event.get("name", "").startswith("Optimizer.step#AdamW") for event in events)


@pytest.mark.nightly
def test_a_failure_inside_the_window_leaves_no_profiler_running(assembled, trained):
    """Else the next trace, which has exactly the steps of its window, could not be: torch has one
    profiler a process.
    """
    loop = assembled(WINDOW)
    loop.model.norm.register_forward_hook(lambda *_: 1 / 0 if loop.state.step == 2 else None)
    with pytest.raises(ZeroDivisionError):
        loop.run()
    assert not torch.autograd.profiler._is_profiler_enabled
    path = trained(WINDOW, "train.max_steps=6 profiling.trace_dir=seen")
    (trace,) = (file for file in path.rglob("*.json.gz"))
    assert trace == path / "seen" / "rank_0" / "steps_2_to_4.json.gz"
    assert optimizer_steps(trace) == 3


def test_windows_come_again(trained):
    path = trained("profiling=on profiling.start_step=2 profiling.end_step=3 profiling.interval=3")
    traces = sorted(path.rglob("*.json.gz"))
    assert [trace.name for trace in traces] == ["steps_2_to_3.json.gz", "steps_5_to_6.json.gz"]
    assert [optimizer_steps(trace) for trace in traces] == [2, 2]


def test_its_library_prints_nothing_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    with profiler(torch.device("cpu")):
        torch.ones(2).sum()
    assert capfd.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_where_the_memory_of_a_gpu_runs_out_its_last_allocations_are_written(
    assembled, monkeypatch, tmp_path
):
    """After the error has been told, for which other ranks wait. Also at the end of the window.
    Here without a GPU.
    """
    done: list[str] = []
    recorded = lambda enabled="all", **_: done.append(f"record {enabled}")  # noqa: E731
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", recorded)
    dumped = lambda path: done.append(str(Path(path).relative_to(tmp_path)))  # noqa: E731
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dumped)
    loop = assembled()
    section = Profiling(enable=True, start_step=2, end_step=3, memory_snapshot=True)
    on_gpu: Any = SimpleNamespace(
        config=SimpleNamespace(profiling=section),
        run_dir=tmp_path,
        device=torch.device("cuda"),
        ranks=Ranks(rank=3),
    )
    loop.callbacks = [Profiler(on_gpu)]
    loop.model.norm.register_forward_pre_hook(
        lambda *_: _run_out() if loop.state.step == 4 else None
    )
    with pytest.raises(torch.OutOfMemoryError):
        loop.run(lambda error: done.append(f"told {error}"))
    window, error = "steps_2_to_3_memory.pickle", "out_of_memory_at_step_5.pickle"
    place = "profiler_traces/rank_3/"
    assert done == ["record all", place + window, "told no memory", place + error, "record None"]


def _run_out():
    raise torch.OutOfMemoryError("no memory")
