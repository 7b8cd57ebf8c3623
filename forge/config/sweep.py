"""The `sweep` group: an experiment of many runs, each a point, made by `python -m forge.train -m`."""

from __future__ import annotations

from dataclasses import dataclass, field

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Ablation(Section):
    """A baseline and what is changed of it, one arm a change; each arm is run with each seed."""

    all_free = True

    baseline: str | None = opt(
        None, "the arm that the others are compared with; null = no ablation"
    )
    arms: dict[str, list[str]] = opt(
        {},
        "arms by name, each with the overrides that make it, like {base: [], wide: ['model.dim=256']}",
    )
    seeds: list[int] = opt([], "seeds that every arm is run with; empty = that of the config", ge=0)


@dataclass(kw_only=True)
class Sweep(Section):
    """Name and place of a sweep, and what happens to points that failed."""

    all_free = True

    name: str | None = opt(
        None,
        "directory of the sweep below sweep.root; null = the experiment's name, else the model's preset",
    )
    root: str = opt("sweeps", "where the directories of sweeps are")
    retry: bool = opt(False, "run points again that failed or were cancelled")
    ablation: Ablation = field(
        default_factory=Ablation, metadata={"help": "a baseline, arms and seeds"}
    )
