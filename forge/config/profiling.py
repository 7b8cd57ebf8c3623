"""The `profiling` group: a window of torch.profiler, and memory snapshots."""

from __future__ import annotations

from forge.config.field import Section, opt, section


@section
class Profiling(Section):
    """A trace of a few steps, for Perfetto or chrome://tracing."""

    all_free = True

    enable: bool = opt(False, "record a trace of steps start_step to end_step")
    start_step: int = opt(5, "first step recorded", gt=0)
    end_step: int = opt(8, "last step recorded", gt=0)
    interval: int = opt(
        0, "record so many steps again every N steps, counted from start_step; 0 = once", ge=0
    )
    ranks: list[int] = opt([0], "the ranks that record; [] = all of them", ge=0)
    trace_dir: str = opt(
        "profiler_traces", "directory of the traces, inside the run directory", folder=True
    )
    memory_snapshot: bool = opt(
        False, "also write a snapshot of the GPU's memory, when it runs out too"
    )
