"""The `sweeper` group: the choice of a sweep's points."""

from __future__ import annotations

from forge.config.field import Section, opt, section

DIRECTIONS = ("minimize", "maximize")
SAMPLERS = ("tpe", "random", "cmaes", "gp", "grid")


@section
class Sweeper(Section):
    """Base of every sweeper."""

    all_free = True

    params: dict[str, str] = opt({}, "values by key, like {optimizer.lr: '1e-3,3e-3'}")


@section
class Basic(Sweeper):
    """Every combination of the values."""

    schema_name = "basic"


@section
class Optuna(Sweeper):
    """Trial after trial, each chosen from what those before it have reached of run.objective."""

    schema_name = "optuna"
    n_trials: int = opt(20, "trials in all, with those of earlier commands", gt=0)
    n_jobs: int = opt(1, "jobs of a cluster at a time; on this machine launch.jobs", gt=0)
    direction: str | None = opt(
        None,
        "of run.objective; null = as the objective says, for token_accuracy maximize",
        choices=DIRECTIONS,
    )
    sampler: str = opt("tpe", "how the next trial is chosen", choices=SAMPLERS)
    seed: int | None = opt(None, "seed of the sampler; null = that of the config", ge=0)
