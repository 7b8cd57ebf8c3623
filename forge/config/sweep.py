"""The `sweep` group: an experiment of many runs, by `python -m forge.train -m`."""

from __future__ import annotations

from dataclasses import field

from forge.config.field import Section, opt, section


@section
class Ablation(Section):
    """A baseline and what is changed of it, one arm a change; each arm is run with each seed."""

    all_free = True

    baseline: str | None = opt(None, "arm that the others are compared with; null = no ablation")
    arms: dict[str, list[str]] = opt(
        {}, "overrides of each arm by name, like {base: [], wide: ['model.dim=256']}"
    )
    seeds: list[int] = opt([], "seeds of every arm; empty = that of the config", ge=0)


@section
class Sweep(Section):
    """Name and place of a sweep, and what happens to points that failed."""

    all_free = True

    name: str | None = opt(
        None, "directory in sweep.root; null = name of the experiment, else of the model"
    )
    root: str = opt("sweeps", "where the directories of sweeps are", folder=True)
    retry: bool = opt(False, "run points again that failed or were cancelled")
    question: str | None = opt(
        None, "question of the sweep, in words; kept as first stated and shown in the report"
    )
    hypothesis: str | None = opt(None, "expected answer, in words; kept as first stated")
    decision: str | None = opt(
        None,
        "when the hypothesis holds, like 'lr=1e-3 beats lr=1e-4 by 0.01' or 'wide is no worse than "
        "base by 0.01'; kept as first stated and judged by the report",
    )
    ablation: Ablation = field(
        default_factory=Ablation, metadata={"help": "a baseline, arms and seeds"}
    )
