"""The whole configuration: one section a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from forge.config.changes import assignments
from forge.config.checkpoint import Checkpoint
from forge.config.data import Data
from forge.config.eval import Eval
from forge.config.field import Section, opt
from forge.config.launch import Launch
from forge.config.metrics import Metrics
from forge.config.model import Model
from forge.config.objective import Objective
from forge.config.optimizer import Optimizer
from forge.config.parallel import Parallel
from forge.config.precision import Precision
from forge.config.profiling import Profiling
from forge.config.run import Run
from forge.config.scheduler import Scheduler
from forge.config.sweep import Sweep
from forge.config.sweeper import Sweeper
from forge.config.tokenizer import Tokenizer
from forge.config.train import Train


@dataclass(kw_only=True)
class Config(Section):
    """Everything a run depends on."""

    seed: int = opt(42, "seed of initial weights, data order and sampling", ge=0)
    model: Model = MISSING
    tokenizer: Tokenizer = MISSING
    data: Data = MISSING
    objective: Objective = MISSING
    optimizer: Optimizer = MISSING
    scheduler: Scheduler = MISSING
    precision: Precision = MISSING
    parallel: Parallel = MISSING
    train: Train = MISSING
    eval: Eval = MISSING
    checkpoint: Checkpoint = MISSING
    metrics: Metrics = MISSING
    profiling: Profiling = MISSING
    run: Run = MISSING
    launch: Launch = MISSING
    sweep: Sweep = MISSING
    sweeper: Sweeper = MISSING
    callbacks: dict[str, Any] = opt(
        {}, "your callbacks by name, each {_target_: dotted path, and its keywords}", free=True
    )
    trackers: dict[str, Any] = opt(
        {}, "your trackers by name, each {_target_: dotted path, and its keywords}", free=True
    )

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides that make this config: those it was composed from, and what was set in
        Python since; none for one made by hand.
        """
        composed, typed = self.__dict__.get("_composed"), self.__dict__.get("_overrides", ())
        return typed if composed is None else (*typed, *assignments(composed, self))

    @property
    def preset(self) -> str:
        """The option of the model group it was composed from; 'run' for one made by hand."""
        return self.__dict__.get("_preset", "run")
