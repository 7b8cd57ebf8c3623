"""The profiler's window: which steps are in the trace, and where it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from forge.training.assemble import Parts, assemble

WINDOW = ("profiling=on", "profiling.start_step=2", "profiling.end_step=4")


def optimizer_steps(trace: Path) -> int:
    events: list[dict[str, Any]] = json.loads(trace.read_text())["traceEvents"]
    return sum(event.get("name", "").startswith("Optimizer.step#AdamW") for event in events)


def traces(run_dir: Path, folder: str = "profiler_traces") -> list[str]:
    return sorted(path.name for path in (run_dir / folder).iterdir()) if (run_dir / folder).exists() else []


def test_the_trace_has_exactly_the_steps_of_the_window(trained: Callable[..., Path]) -> None:
    path = trained(*WINDOW, "train.max_steps=6", "profiling.trace_dir=seen")
    assert traces(path, "seen") == ["steps_2_to_4.json"]
    assert optimizer_steps(path / "seen" / "steps_2_to_4.json") == 3
    assert traces(path) == []


def test_a_window_from_the_first_step(trained: Callable[..., Path]) -> None:
    path = trained("profiling=on", "profiling.start_step=1", "profiling.end_step=2", "train.max_steps=3")
    assert optimizer_steps(path / "profiler_traces" / "steps_1_to_2.json") == 2


def test_a_window_that_the_end_of_the_run_cuts(trained: Callable[..., Path]) -> None:
    path = trained(*WINDOW, "train.max_steps=3")
    assert traces(path) == ["steps_2_to_3.json"]
    assert optimizer_steps(path / "profiler_traces" / "steps_2_to_3.json") == 2


def test_no_window_no_trace(trained: Callable[..., Path]) -> None:
    assert traces(trained("train.max_steps=6")) == []
    assert traces(trained(*WINDOW, "train.max_steps=1")) == []


def test_a_failure_inside_the_window_leaves_no_profiler_running(assembled: Callable[..., Parts], new_run: Callable[..., Path]) -> None:
    parts = assembled(*WINDOW)
    parts.model.norm.register_forward_hook(lambda *_: 1 / 0 if parts.loop.state.step == 2 else None)
    with pytest.raises(ZeroDivisionError):
        parts.loop.run()
    assert not torch.autograd.profiler._is_profiler_enabled
    path = new_run(*WINDOW)
    assemble(path).loop.run()  # torch has one profiler a process
    assert optimizer_steps(path / "profiler_traces" / "steps_2_to_4.json") == 3
