"""The whole configuration: one section a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from forge.config.adapters.adapter import Adapter
from forge.config.changes import assignments
from forge.config.checkpoint import Checkpoint
from forge.config.data.text import Data
from forge.config.eval import Eval
from forge.config.field import Section, opt, section
from forge.config.launch import Launch
from forge.config.metrics import Metrics
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.objectives.base import Objective
from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.schedules import Scheduler
from forge.config.parallel import Parallel
from forge.config.plan import Plan
from forge.config.precision import Precision
from forge.config.profiling import Profiling
from forge.config.quantization import Quantization
from forge.config.replicas.diloco import DiLoCo
from forge.config.replicas.fault_tolerance import FaultTolerance
from forge.config.rollouts.rollout import Rollout
from forge.config.run import Run
from forge.config.scaling.base import Scaling
from forge.config.sweep import Sweep
from forge.config.sweeper import Sweeper
from forge.config.tokenizers.tokenizer import Tokenizer
from forge.config.train import Train


@dataclass(frozen=True)
class Source:
    """Origin of a composed config. config: a copy from then, where changes count. stated: keys that
    files of a whole experiment set, beside the presets of groups.
    """

    overrides: tuple[str, ...] = ()
    preset: str = "run"
    config: Config | None = None
    stated: frozenset[str] = frozenset()


@section
class Config(Section):
    """Everything a run depends on."""

    _source = Source()  # no option: without an annotation it is no field

    seed: int = opt(42, "seed of initial weights, data order and sampling", ge=0)
    model: Model = MISSING
    tokenizer: Tokenizer = MISSING
    data: Data = MISSING
    objective: Objective = MISSING
    rollout: Rollout = MISSING
    adapter: Adapter = MISSING
    optimizer: Optimizer = MISSING
    scheduler: Scheduler = MISSING
    diloco: DiLoCo = MISSING
    fault_tolerance: FaultTolerance = MISSING
    precision: Precision = MISSING
    quantization: Quantization = MISSING
    parallel: Parallel = MISSING
    train: Train = MISSING
    scaling: Scaling = MISSING
    eval: Eval = MISSING
    checkpoint: Checkpoint = MISSING
    metrics: Metrics = MISSING
    profiling: Profiling = MISSING
    run: Run = MISSING
    launch: Launch = MISSING
    plan: Plan = MISSING
    sweep: Sweep = MISSING
    sweeper: Sweeper = MISSING
    callbacks: dict[str, Any] = opt(
        {}, "callbacks by name, each {_target_: dotted path, and its keywords}", free=True
    )
    techniques: dict[str, Any] = opt(
        {},
        "your parallel techniques by name, each {_target_: dotted path, and its keywords}",
        free=True,
    )
    trackers: dict[str, Any] = opt(
        {}, "your trackers by name, each {_target_: dotted path, and its keywords}", free=True
    )
    rewards: dict[str, Any] = opt(
        {}, "rewards of completions by name, each {_target_: dotted path, weight, and its keywords}"
    )
    environment: dict[str, Any] = opt(
        {}, "what answers between the turns of a completion: {_target_: dotted path, its keywords}"
    )
    tags: list[str] = opt([], "words that forge.runs finds the run by, and W&B", free=True)
    hparams: dict[str, Any] = opt(
        {}, "values of your own by name, for ${hparams.name} in files and overrides"
    )

    @property
    def decoder(self) -> Decoder | None:
        """The model's section, if its blocks are known; None for models of unknown layers."""
        return self.model if isinstance(self.model, Decoder) else None

    @property
    def one_rank_has_fsdp(self) -> bool:
        """Whether FSDP holds the weights of one rank too: for casts of weights, for weights kept on
        the CPU, or for copies in fp8.
        """
        beyond_casts = self.parallel.cpu_offload or self.quantization.gathers_in_fp8
        precision = self.precision
        return precision.casts or (precision.any_16_bits and beyond_casts)

    @property
    def draws(self) -> bool:
        """Whether each step draws random numbers; the batches bring the noise."""
        return any(section.draws for section in (self.model, self.objective, self.adapter))

    @property
    def overrides(self) -> tuple[str, ...]:
        """The overrides of this config: as composed, and the values set in Python since."""
        source = self._source
        changed = assignments(source.config, self) if source.config else ()
        return (*source.overrides, *changed)

    @property
    def preset(self) -> str:
        """The option of the model group; 'run' for a config made by hand."""
        return self._source.preset

    def set_source(
        self,
        overrides: tuple[str, ...],
        preset: str,
        *,
        track: bool = True,
        stated: frozenset[str] | None = None,
    ) -> None:
        """Remember the overrides. track: values set from now on are overrides too. stated: as of
        `Source`; None = as before.
        """
        copied = self.clone() if track else None
        stated = self._source.stated if stated is None else stated
        self.__dict__["_source"] = Source(overrides, preset, copied, stated)
