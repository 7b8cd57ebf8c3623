"""Training metrics, every log_interval steps."""

from __future__ import annotations

import logging
import math
import resource
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from forge.config.optimizers.param_groups import OWN
from forge.optim.build import rates
from forge.optim.groups import Schedule
from forge.planning.flops import flops_per_token
from forge.rundir.wall_clock.goodput import Start, add_up, read_starts
from forge.training.callback import Callback
from forge.training.callbacks.gathered import Gathered
from forge.training.callbacks.trackers import Trackers
from forge.training.flops import peak_flops

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


log = logging.getLogger(__name__)
WITHOUT_TARGETS = (
    "%d of the last %d steps had no token to learn, and so no loss and no update: the part of a "
    "row that is learnt stands behind train.seq_len, or is left out. `python -m forge.preview` "
    "with the same options shows it"
)


class Logger(Callback):
    """Hands the metrics of the steps since the last log to the trackers.

    train/loss and the other sums are means over all target tokens of the steps, and train/moe/...
    means over the steps, without skipped steps. train/grad_norm (before clipping) and lr are of the
    last step; the speed is of this process, without evaluation and checkpoints. Only a log waits
    for the device, and a checkpoint, which keeps the gathered values: a resumed run logs the same
    values as an unbroken run. last: values of the last log, without clock values.
    """

    def __init__(self, session: Session) -> None:
        self.interval, self.device = session.config.metrics.log_interval, session.device
        self.peak_rate, self.trackers = peak_rate(session), Trackers()
        self.gathered, self.counts = Gathered(), session.objective.counts
        self.unread: list[StepOutput] = []
        self.last: dict[str, float] = {}
        self.since, self.warned = 0.0, not session.ranks.main
        self.timed_steps, self.timed_tokens, self.timed_work = 0, 0, 0.0
        train = session.config.train
        self.seq_lens = train.seq_lens if train.seq_len_stages else None
        self.work: dict[int, float] = {}
        self.rates: list[tuple[int, float]] = []
        self.group_rates: dict[str, Schedule] = {}
        self.earlier: list[tuple[list[Start], list[float]]] = []

    def on_start(self, loop: Loop) -> None:
        self.trackers = loop.trackers.open()  # not earlier: a live console takes the terminal
        self.since = loop.clock.seconds()
        if loop.config.optimizer.groups:
            self.group_rates = rates(loop.config, loop.session.schedule)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self.unread.append(output)
        self.timed_steps += 1
        self.timed_tokens += output.n_tokens
        self.timed_work += output.n_tokens * self._work_of(loop)
        self.trackers.step(loop.state.step)
        if loop.state.step % self.interval == 0:
            self.log(loop)

    def on_end(self, loop: Loop) -> None:
        if (self.unread or self.gathered.steps) and not loop.interrupted:
            self.log(loop)

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        values = {f"eval/{name}": value for name, value in metrics.items()}
        loop.trackers.log(loop.state.step, values)

    def close(self) -> None:
        self.trackers.close()

    def state_dict(self) -> dict[str, Any]:
        self._read()
        return nulls({"gathered": asdict(self.gathered), "last": self.last})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = _numbers(state)
        self.gathered, self.last = Gathered(**state["gathered"]), state["last"]

    def log(self, loop: Loop) -> None:
        self._read()
        loop.state.count_skipped()
        gathered, self.gathered = self.gathered, Gathered()
        previous = self.last
        self.last = {_name(name): mean for name, mean in gathered.means(self.counts).items()}
        self.last |= {"train/grad_norm": gathered.grad_norm, "lr": gathered.lr}
        for name, rate in self.group_rates.items():
            self.last[f"lr/{name}" if name != OWN else "lr"] = rate(loop.state.step - 1)
        self.last |= {"tokens": loop.state.tokens, "skipped_steps": loop.state.skipped}
        self.last |= _source_metrics(loop, gathered.losses())
        loop.trackers.log(loop.state.step, self.last | self._speed(loop) | self._goodput(loop))
        if gathered.empty and not self.warned:
            self.warned = True
            log.warning(WITHOUT_TARGETS, gathered.empty, gathered.steps)
        if gathered.kept and not gathered.targets:
            # Steps without targets have no loss; the run's last loss is of earlier steps.
            unknown = (name for name, value in self.last.items() if math.isnan(value))
            self.last |= {name: previous[name] for name in unknown if name in previous}
        self.since, loop.loader.waited = loop.clock.seconds(), 0.0
        loop.loader.parts = dict.fromkeys(loop.loader.parts, 0.0)

    def results(self) -> dict[str, float]:
        """Values of the last log; tokens a second over all logs but the first.

        The first log includes the warm-up of kernels.
        """
        counted = self.rates[1:] or self.rates
        rate = sum(t for t, _ in counted) / sum(s for _, s in counted) if counted else 0.0
        return {**self.last, "tokens_per_second": rate}

    def _read(self) -> None:
        for output in self.unread:
            self.gathered.add(output)
        self.unread.clear()

    def _speed(self, loop: Loop) -> dict[str, float]:
        """Values of the clock and the machine; nothing if this process made no step.

        mfu: share of the peak taken by the model's own arithmetic, without recomputation (PaLM,
        arXiv:2204.02311, appendix B), and without positions beyond the text.
        """
        steps, tokens, work = self.timed_steps, self.timed_tokens, self.timed_work
        self.timed_steps, self.timed_tokens, self.timed_work = 0, 0, 0.0
        if not steps:
            return {}
        seconds = loop.clock.seconds() - self.since
        rate = tokens / seconds
        self.rates.append((tokens, seconds))
        values = {
            "tokens_per_second": rate,
            "step_seconds": seconds / steps,
            "data_seconds": (loop.loader.waited - sum(loop.loader.parts.values())) / steps,
            **{f"{name}_seconds": part / steps for name, part in loop.loader.parts.items()},
            "memory_gib": peak_memory(self.device) / 2**30,
        }
        if self.device.type == "cuda":
            counted = torch.cuda.memory_stats(self.device)
            values["reserved_gib"] = torch.cuda.max_memory_reserved(self.device) / 2**30
            values["allocation_retries"] = counted.get("num_alloc_retries", 0)
        if self.peak_rate:
            values["mfu"] = work / seconds / self.peak_rate
        return values

    def _goodput(self, loop: Loop) -> dict[str, float]:
        """The share of useful seconds since the submission of the run, and the seconds by name."""
        if loop.ledger.run_dir is None:
            return {}
        if not self.earlier:  # starts before this one
            self.earlier.append(read_starts(loop.ledger.run_dir, newest=False))
        starts, submissions = self.earlier[0]
        loop.ledger.enter(loop.ledger.name)
        present = Start(record=loop.ledger.record())
        total = add_up([*starts, present], submissions)
        parts = {f"goodput/{name}": seconds for name, seconds in total.seconds.items()}
        return {"goodput": total.share, **parts}

    def _work_of(self, loop: Loop) -> float:
        """FLOPs of a token in the rows of the last step, in those of a row of train.seq_len."""
        if self.seq_lens is None:
            return 1.0
        seq_len = self.seq_lens.of_step(loop.state.step - 1)
        if seq_len not in self.work:
            full = flops_per_token(loop.config) or 1
            self.work[seq_len] = (flops_per_token(loop.config, seq_len) or full) / full
        return self.work[seq_len]


def _source_metrics(loop: Loop, losses: dict[int, float]) -> dict[str, float]:
    """For each source of a mixture: tokens read so far, share of all tokens, and loss."""
    drawn = loop.loader.realised()
    total = sum(drawn.values())
    values: dict[str, float] = {
        f"data/{name}/tokens": round(n * loop.loader.tokens_of(name)) for name, n in drawn.items()
    }
    values |= {f"data/{name}/share": n / max(total, 1) for name, n in drawn.items()}
    names = loop.loader.sources
    return values | {f"data/{names[source]}/loss": loss for source, loss in losses.items()}


def peak_rate(session: Session) -> float | None:
    """Tokens a second at the peak FLOP/s of all devices; None if unknown."""
    config, device = session.config, session.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    peak = config.metrics.peak_tflops * 1e12 or peak_flops(name)
    flops = flops_per_token(config)
    return session.ranks.size * peak / flops if peak and flops else None


def peak_memory(device: torch.device) -> int:
    """Most bytes allocated on the GPU, or resident in the process.

    For an Apple GPU, without a peak counter, torch's present memory including the cache.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _name(sum_name: str) -> str:
    return "train/loss" if sum_name == "ce" else f"train/{sum_name}"


def nulls(value: Any) -> Any:
    """Replace non-finite numbers by None, as strict JSON requires."""
    if isinstance(value, dict):
        return {name: nulls(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(inner) for name, inner in value.items()}
    return math.nan if value is None else value
