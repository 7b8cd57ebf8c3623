"""A torch.profiler trace of a few steps, and a CUDA memory snapshot."""

from __future__ import annotations

from pathlib import Path

import torch

from forge.config.profiling import Profiling
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput
from forge.training.writing import say


class Profiler(Callback):
    """Records steps start_step to end_step, both included, and writes the trace when the window or the run ends."""

    def __init__(self, section: Profiling, run_dir: Path, device: torch.device) -> None:
        self.section, self.device = section, device
        self.folder = run_dir / section.trace_dir
        self.profile: torch.profiler.profile | None = None
        self.snapshot = section.memory_snapshot and device.type == "cuda"

    def on_start(self, loop: Loop) -> None:
        self._begin_after(loop.state.step)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.profile is not None and loop.state.step >= self.section.end_step:
            self._finish(loop)
        self._begin_after(loop.state.step)

    def on_end(self, loop: Loop) -> None:
        if self.profile is not None and loop.state.step >= self.section.start_step:
            self._finish(loop)

    def close(self) -> None:
        if self.profile is not None:
            self._stop()

    def _begin_after(self, step: int) -> None:
        if step != self.section.start_step - 1:
            return
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        if self.snapshot:
            torch.cuda.memory._record_memory_history()
        self.profile = torch.profiler.profile(activities=activities, record_shapes=True)
        self.profile.start()

    def _finish(self, loop: Loop) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"steps_{self.section.start_step}_to_{loop.state.step}"
        with loop.paused():
            if self.snapshot:
                torch.cuda.memory._dump_snapshot(str(self.folder / f"{name}_memory.pickle"))
            self._stop().export_chrome_trace(str(self.folder / f"{name}.json"))
        say(f"profile: {self.folder / name}.json")

    def _stop(self) -> torch.profiler.profile:
        assert self.profile is not None
        stopped, self.profile = self.profile, None
        stopped.stop()
        if self.snapshot:
            torch.cuda.memory._record_memory_history(enabled=None)
        return stopped
