"""The runs of a sweep as a ladder: parameters, tokens, FLOPs and loss of each run; and the runs
left out, with their reasons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from forge.config.model.tensors import HEAD
from forge.config.optimizers.param_groups import TABLES
from forge.config.problems import COMMAND_LINE, closest, did_you_mean, refusal
from forge.config.root import Config
from forge.launch.sweep.state import DONE
from forge.planning.flops import flops_per_token
from forge.report.grouping import APART, differing
from forge.report.runs import Run, Source, read_source
from forge.rundir import saved_config
from forge.scaling_laws.frontier import Curve
from forge.scaling_laws.law import FLOPS

AT_THE_ENDS = (*TABLES, HEAD)  # roles left out of parameters without embeddings
BY_ITSELF = "end"  # the reason of a run with all its steps done
OF_LADDER = (  # options that a ladder varies
    *("model", "model.dim", "model.n_layers", "model.n_heads", "model.n_kv_heads"),
    *("model.head_dim", "model.ffn_hidden_dim", "model.ffn_dim_multiplier"),
    *("train.max_steps", "train.max_tokens", "train.tokens_per_parameter"),
    *("scheduler.warmup_steps", "scheduler.decay_steps", "scheduler.stable_steps"),
    *("eval.interval", "train.max_epochs", "seed"),
)
SECTIONS = ("scaling", "checkpoint", *APART)
COUNTS = ("all", "without_embeddings")
COMPUTES = ("6nd", "counted")


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A finished run. parameters: all that one token uses. matrices: those without embeddings.

    flops: counted for a token, forward and backward, with attention.
    """

    run: Run
    name: str
    parameters: int
    matrices: int
    tokens: float
    flops: int
    loss: float

    def size(self, count: str) -> int:
        return self.parameters if count == COUNTS[0] else self.matrices

    def compute(self, count: str, compute: str) -> float:
        """FLOPs of the training."""
        per_token = FLOPS * self.size(count) if compute == COMPUTES[0] else self.flops
        return per_token * self.tokens

    def curve(self, metric: str, count: str, compute: str) -> Curve:
        """The loss over the training."""
        logged = self.run.log.curve(metric)
        rows = np.isfinite(logged.tokens) & (logged.tokens > 0)
        return Curve(
            parameters=float(self.size(count)),
            compute=self.compute(count, compute) / self.tokens * logged.tokens[rows],
            tokens=logged.tokens[rows],
            losses=logged.values[rows],
        )


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A run that counts in no number, with the reason."""

    name: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The runs of a sweep, lowest compute first. differs: options beside size and length that the
    runs differ in.
    """

    source: Source
    metric: str
    rungs: list[Rung]
    left_out: list[LeftOut] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)

    @cached_property
    def tokens(self) -> np.ndarray:
        return np.array([rung.tokens for rung in self.rungs])

    @cached_property
    def losses(self) -> np.ndarray:
        return np.array([rung.loss for rung in self.rungs])

    def sizes(self, count: str) -> np.ndarray:
        return np.array([float(rung.size(count)) for rung in self.rungs])

    def compute(self, count: str, compute: str) -> np.ndarray:
        return np.array([rung.compute(count, compute) for rung in self.rungs])


def read_ladder(paths: Sequence[Path], *, metric: str | None, trust: Sequence[str] = ()) -> Ladder:
    """Read a sweep, or runs. Raises ConfigError, also where no run is done.

    metric: None for run.objective.
    """
    source = read_source(paths)
    done = [run for run in source.runs if run.state == DONE]
    if not done:
        states = ", ".join(f"{run.state}" for run in source.runs[:5]) or "it has no runs"
        message = f"none of its {len(source.runs)} runs is done: {states}."
        hint = f"python -m forge.status {paths[0]} tells how far they are"
        raise refusal(str(paths[0]), message, hint, COMMAND_LINE)
    metric = _metric(done, metric)
    rungs, left_out = [], []
    for run in source.runs:
        read = _rung(run, metric, trust)
        (rungs if isinstance(read, Rung) else left_out).append(read)
    rungs.sort(key=lambda rung: rung.compute(*_FIRST))
    texts = [rung.run.texts for rung in rungs]
    differs = [key for key in differing(texts, seeds=True) if not _of_ladder(key)] if texts else []
    return Ladder(source=source, metric=metric, rungs=rungs, left_out=left_out, differs=differs)


_FIRST = (COUNTS[0], COMPUTES[0])


def _of_ladder(key: str) -> bool:
    return key in OF_LADDER or key.partition(".")[0] in SECTIONS


def _metric(done: Sequence[Run], asked: str | None) -> str:
    """The metric to fit. Raises ConfigError for an unknown one, or one that is no loss."""
    logged = dict.fromkeys(name for run in done for name in run.final)
    name = asked or next((run.objective for run in done if run.objective), None) or "eval/loss"
    if name not in logged:
        meant = did_you_mean([f"--metric {near}" for near in closest(name, logged)])
        hint = meant or f"its runs have {', '.join(logged) or 'no metric'}"
        message = f"no finished run has {name}."
        raise refusal(f"--metric {name}", message, hint, COMMAND_LINE)
    if any(name.rpartition("/")[2] in run.higher_is_better for run in done):
        message = f"more of {name} is better, and these laws are of a loss that falls to a floor."
        raise refusal(f"--metric {name}", message, "--metric eval/loss", COMMAND_LINE)
    return name


def _rung(run: Run, metric: str, trust: Sequence[str]) -> Rung | LeftOut:
    name = _name(run)
    if run.state != DONE:
        why = f"{run.state}: {run.why}" if run.why else run.state
        return LeftOut(name=name, why=" ".join(why.split()))
    step, reason = run.ended or (0, "")
    if reason != BY_ITSELF:
        why = f"stopped early, at step {step:,} of {run.max_steps or 0:,}: {reason}"
        return LeftOut(name=name, why=why)
    loss = run.final.get(metric)
    if loss is None or loss <= 0:
        return LeftOut(name=name, why=f"it has no finite, positive value of {metric} at its end")
    try:
        file = saved_config.newest(run.path)
        config = saved_config.load_config(file, trust=tuple(trust))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return LeftOut(name=name, why=f"its config cannot be read: {error}")
    return _measured(run, name, config, metric, loss)


def _measured(run: Run, name: str, config: Config, metric: str, loss: float) -> Rung | LeftOut:
    vocab = getattr(config.model, "vocab_size", None)
    if metric.endswith("/loss") and isinstance(vocab, int) and loss > math.log(vocab):
        guessing = f"that of guessing among {vocab:,} tokens"
        why = f"diverged: its {metric} {loss:.4g} is above {math.log(vocab):.4g}, {guessing}"
        return LeftOut(name=name, why=why)
    tensors = list(config.model.tensors())
    flops, tokens = flops_per_token(config), run.log.tokens or run.final.get("tokens")
    if not tensors or flops is None:
        return LeftOut(name=name, why="the parameters of its model are not known to forge")
    if not tokens:
        return LeftOut(name=name, why="it has logged no tokens")
    return Rung(
        run=run,
        name=name,
        parameters=sum(spec.active for spec in tensors),
        matrices=sum(spec.active for spec in tensors if spec.role not in AT_THE_ENDS),
        tokens=float(tokens),
        flops=flops,
        loss=loss,
    )


def _name(run: Run) -> str:
    varied = " ".join(f"{key.rpartition('.')[2]}={v}" for key, v in run.point.varied.items())
    words = " ".join(filter(None, (run.point.arm, varied)))
    number = f"#{run.point.number:03d} " if run.point.hash else ""
    return f"{number}{words or run.point.slug}"
