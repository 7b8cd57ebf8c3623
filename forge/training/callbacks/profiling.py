"""A torch.profiler trace of a few steps, and a CUDA memory snapshot."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from forge.training.callback import Callback
from forge.training.process import say

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

QUIET = "6"  # above all levels of Kineto's log; the highest is for tracer marks, USDT
ALLOCATIONS = 100_000  # latest allocations and frees in a memory snapshot


class Profiler(Callback):
    """Records steps start_step to end_step, or as many every `interval` steps, and writes traces.

    A trace is written after its last step, or at the end of the run. With memory_snapshot also the
    last allocations, at the same time and when memory runs out.
    """

    def __init__(self, session: Session) -> None:
        section, self.device = session.config.profiling, session.device
        self.section = section
        self.folder = session.run_dir / section.trace_dir / f"rank_{session.ranks.rank}"
        self.profile: torch.profiler.profile | None = None
        self.first_step = section.start_step  # of the window recorded now, or first
        self.snapshot = section.memory_snapshot and self.device.type == "cuda"

    @classmethod
    def wanted(cls, session: Session) -> bool:
        section, ranks = session.config.profiling, session.ranks
        return section.enable and ranks.rank in (section.ranks or range(ranks.size))

    def on_start(self, loop: Loop) -> None:
        if self.snapshot:
            torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS)
        self._begin_after(loop.state.step)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.profile is not None and loop.state.step >= self._last_step:
            self._finish(loop)
        self._begin_after(loop.state.step)

    def on_end(self, loop: Loop) -> None:
        if self.profile is not None and loop.state.step >= self.first_step:
            self._finish(loop)

    def on_failure(self, loop: Loop, error: BaseException) -> None:
        """Write a memory snapshot after an out-of-memory error, while the tensors still exist."""
        if self.snapshot and isinstance(error, torch.OutOfMemoryError):
            name = f"out_of_memory_at_step_{loop.state.step + 1}.pickle"
            with suppress(OSError):  # a full disk must not hide the failure
                self._write_memory(name)
                say(f"memory: {self.folder / name}")

    def close(self) -> None:
        if self.profile is not None:
            self._stop()
        if self.snapshot:
            torch.cuda.memory._record_memory_history(enabled=None)

    @property
    def _last_step(self) -> int:
        """The last step of the window that is being recorded."""
        return self.first_step + self.section.end_step - self.section.start_step

    def _begin_after(self, step: int) -> None:
        """Begin a window at its first step, the one after `step`."""
        section, steps = self.section, step + 1 - self.section.start_step
        if steps < 0 or (steps % section.interval if section.interval else steps):
            return
        self.first_step = step + 1
        self.profile = profiler(self.device, record_shapes=True)
        self.profile.start()

    def _finish(self, loop: Loop) -> None:
        name = f"steps_{self.first_step}_to_{loop.state.step}"
        with loop.paused():
            if self.snapshot:
                self._write_memory(f"{name}_memory.pickle")
            self._stop().export_chrome_trace(str(self._file(f"{name}.json.gz")))
        say(f"profile: {self.folder / name}.json.gz")

    def _write_memory(self, name: str) -> None:
        torch.cuda.memory._dump_snapshot(str(self._file(name)))

    def _file(self, name: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / name

    def _stop(self) -> torch.profiler.profile:
        assert self.profile is not None
        stopped, self.profile = self.profile, None
        stopped.stop()
        return stopped


def profiler(device: torch.device, *, record_shapes: bool = False) -> torch.profiler.profile:
    """Build a profiler of a device and its CPU.

    The library's lines about begin and end are silenced, unless KINETO_LOG_LEVEL is set.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, kinds.CUDA] if device.type == "cuda" else [kinds.CPU]
    return torch.profiler.profile(activities=activities, record_shapes=record_shapes)
