"""Measurements of a run for `forge.bench`: time of a step and its parts, memory, kernels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor

from forge.parallel.pipeline import Pipeline
from forge.rundir.files import write_json
from forge.training.callback import Callback
from forge.training.callbacks.metrics import peak_memory, peak_rate
from forge.training.callbacks.profiling import profiler

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

FILE = "bench.json"  # in the run directory, of the main rank
KERNELS = 10  # in the list
HOLDS = {
    "cuda": "the most that tensors had on the GPU at once",
    "mps": "what torch has of the GPU at the end, its cache with it",
    "cpu": "the whole process, with Python, torch and its libraries",
}
"""Meaning of `peak`, by kind of device."""
COMMUNICATION = ("nccl", "gloo:", "c10d::")  # beginnings of names


class Bench(Callback):
    """Skips `warmup` steps, times `steps`, then lists the kernels of `profiled` more.

    Marks wait for nothing: CUDA events, or points in time on a device without a queue.
    """

    def __init__(self, session: Session, warmup: int, steps: int, profiled: int) -> None:
        self.session, self.device = session, session.device
        self.warmup, self.timed, self.profiled = warmup, steps, profiled
        self.begun: list[Mark] = []
        self.gradients: list[Mark] = []
        self.ended: list[Mark] = []
        self.forwards: list[list[tuple[Mark, Mark]]] = []
        self.waited: list[float] = []
        self.losses: list[Tensor] = []
        self.tokens = 0
        self.profile: torch.profiler.profile | None = None

    @property
    def end(self) -> int:
        """The last timed step."""
        return self.warmup + self.timed

    def on_start(self, loop: Loop) -> None:
        backward = loop.update.backward
        if not isinstance(loop.model, Pipeline):  # a pipeline's stages take turns
            backward.objective = Marked(backward.objective, self._mark)  # type: ignore[assignment]

    def on_step_start(self, loop: Loop) -> None:
        if loop.state.step == self.end and self.profiled:
            self.profile = profiler(self.device)
            self.profile.start()
        self.begun.append(Mark(self.device))
        self.forwards.append([])

    reads_gradients = False

    def on_gradients(self, loop: Loop) -> None:
        self.gradients.append(Mark(self.device))

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self.ended.append(Mark(self.device))
        self.waited.append(loop.loader.waited)
        self.losses.append(output.loss.detach())
        self.tokens = output.n_tokens

    def on_end(self, loop: Loop) -> None:
        torch.get_device_module(self.device).synchronize()
        if self.profile is not None:
            self.profile.stop()
        if self.session.ranks.main:
            write_json(loop.run_dir / FILE, self.measured(loop))

    def measured(self, loop: Loop) -> dict[str, Any]:
        """Seconds, bytes and shares; parts are medians over the timed steps."""
        first, last = self.warmup, self.end
        # From end to end, so that waits between steps count.
        ends = self.ended[first - 1 : last]
        steps = [a.seconds(b) for a, b in pairwise(ends)]
        median = statistics.median(steps)
        rate, peak = self.tokens / median, peak_rate(self.session)
        tenths = statistics.quantiles(steps, n=10, method="inclusive")
        losses = torch.stack(self.losses[:last]).tolist()
        return {
            "device": device_name(self.device),
            "world": self.session.ranks.size,
            "tokens_a_step": self.tokens,
            "first_step_seconds": self.begun[0].seconds(self.ended[0]),
            "step_seconds": {"median": median, "p10": tenths[0], "p90": tenths[-1]},
            "tokens_per_second": rate,
            "mfu": rate / peak if peak else None,
            "loss": {"first": losses[0], "last": losses[-1]},
            "parts_seconds": self._parts(first, last),
            "memory_bytes": _memory(loop.model, loop.optimizer, self.device),
            "peak_holds": HOLDS.get(self.device.type, HOLDS["cpu"]),
            "graph_breaks": sum(counters["graph_break"].values()),
            "graphs": counters["stats"]["unique_graphs"],
            **(kernels(self.profile, self.profiled, self.device) if self.profile else {}),
        }

    def _parts(self, first: int, last: int) -> dict[str, float]:
        steps = range(first, last)
        waited = [self.waited[n] - self.waited[n - 1] for n in steps]
        gradients = [self.begun[n].seconds(self.gradients[n]) for n in steps]
        updates = [self.gradients[n].seconds(self.ended[n]) for n in steps]
        parts = {"waiting for data": statistics.median(waited)}
        if any(self.forwards):
            forwards = [sum(a.seconds(b) for a, b in self.forwards[n]) for n in steps]
            backwards = [total - part for total, part in zip(gradients, forwards, strict=True)]
            parts["forward"] = statistics.median(forwards)
            parts["backward, reduction, clipping"] = statistics.median(backwards)
        else:
            parts["gradients"] = statistics.median(gradients)
        return parts | {"optimizer": statistics.median(updates)}

    def _mark(self, forward: Callable[[], Any]) -> Any:
        begin = Mark(self.device)
        result = forward()
        if self.forwards:
            self.forwards[-1].append((begin, Mark(self.device)))
        return result


class Mark:
    """A moment of the device's work."""

    def __init__(self, device: torch.device) -> None:
        self.event = torch.cuda.Event(enable_timing=True) if device.type == "cuda" else None
        self.time = time.perf_counter()
        if self.event is not None:
            self.event.record()

    def seconds(self, later: Mark) -> float:
        """Seconds until `later`; the device has reached both marks."""
        if self.event is None or later.event is None:
            return later.time - self.time
        return self.event.elapsed_time(later.event) / 1e3


class Marked:
    """An objective with marked calls, the forward passes."""

    def __init__(self, objective: Any, mark: Callable[[Callable[[], Any]], Any]) -> None:
        self.objective, self.mark = objective, mark

    def __getattr__(self, name: str) -> Any:
        return getattr(self.objective, name)

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        return self.mark(lambda: self.objective(model, batch))


def _memory(model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> dict:
    """Bytes on this rank: weights, optimizer state, and the peak."""
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    sizes = {
        "weights": bytes_of(model.parameters()),
        "optimizer state": bytes_of(value for value in state if isinstance(value, Tensor)),
        "peak": peak_memory(device),
    }
    if device.type == "cuda":
        counted = torch.cuda.memory_stats(device)
        sizes["peak reserved"] = torch.cuda.max_memory_reserved(device)
        sizes["allocation retries"] = counted.get("num_alloc_retries", 0)
    return sizes


def bytes_of(tensors: Any) -> int:
    """Bytes of this rank's shards."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def kernels(profile: torch.profiler.profile, steps: int, device: torch.device) -> dict[str, Any]:
    """The longest kernels, and the time of communication: seconds a step."""
    field = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    times = {event.key: getattr(event, field) / 1e6 / steps for event in profile.key_averages()}
    most = sorted(times, key=times.__getitem__, reverse=True)[:KERNELS]
    links = sum(t for name, t in times.items() if name.lower().startswith(COMMUNICATION))
    return {
        "kernels_seconds": {name: times[name] for name in most},
        "communication_seconds": links,
    }


def device_name(device: torch.device) -> str:
    """Name of the device by its driver or the machine's kernel."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads of {processor() or device.type}"


def processor() -> str | None:
    """Model name of the processor by the kernel; None where the kernel has none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None)
