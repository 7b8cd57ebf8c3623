"""Derivations of the horizon: steps of a budget of tokens or epochs, and of the schedule."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator

from forge.config.checkpoint import Checkpoint
from forge.config.data.budget import (
    COUNTED,
    HORIZON,
    MAX_TOKENS,
    OPEN,
    STEPS,
    given,
    parameters,
    typed,
)
from forge.config.horizon import SCHEDULE, open_steps
from forge.config.optimizers.schedules import WSD, Scheduler
from forge.config.root import Config
from forge.config.rule import Derived, derivation, get
from forge.config.train import Train
from forge.planning.flops import tokens_of_sample

RAMPUP = (
    *("train.rampup_start", "train.rampup_increment", "train.rampup_samples"),
    *("train.batch_stages", "train.batch_until"),
)


@derivation(
    *HORIZON, COUNTED, "train.seq_len", "train.global_batch_size", *RAMPUP, "model", writes=HORIZON
)
def budget(config: Config, train: Train) -> Iterator[Derived]:
    """train.max_steps from train.max_tokens or train.tokens_per_parameter, in whole steps."""
    values = {key: get(config, key) for key in HORIZON}
    keys = given(values, config.overrides)
    if len(keys) != 1:
        return  # a rule reports several horizons, or none
    for key in HORIZON if typed(config.overrides) else ():
        if key not in (STEPS, *keys) and values[key] is not None:
            yield Derived(key, OPEN[key], f"{keys[0]} is typed")
    if keys[0] != STEPS:
        tokens, why = tokens_of_budget(config, keys[0])
        size = f"{train.global_batch_size or 0} sequences"
        size += " a step, after ramp-up," * (train.rampup_start > 0)
        why += f" / {size} of {tokens_of_sample(config)}"
        steps = steps_of(config, tokens)
        if steps != train.max_steps:  # a scaling has set it, and says why
            yield Derived(STEPS, steps, why)


def tokens_of_budget(config: Config, key: str) -> tuple[int, str]:
    """Tokens of a budget, and words for it. key: MAX_TOKENS or PER_PARAMETER."""
    train = config.train
    if key == MAX_TOKENS:
        return train.max_tokens or 0, f"{train.max_tokens} tokens"
    number, ratio = parameters(config.model, train.parameters_counted), train.tokens_per_parameter
    words = f"{ratio:g} tokens * {number} parameters ({train.parameters_counted})"
    return round((ratio or 0) * number), words


def steps_of(config: Config, tokens: int) -> int:
    """Whole steps of these tokens, with every sequence full."""
    return config.train.batch_sizes.whole_steps(tokens // tokens_of_sample(config))


@derivation(STEPS, "train.seq_len_until", writes=("train.seq_len_until",))
def stages_of_rows(train: Train) -> Iterator[Derived]:
    """Shares of train.max_steps in train.seq_len_until become steps."""
    until, total = train.seq_len_until, train.max_steps
    if any(end < 1 for end in until):
        steps = [float(round(end * total) if end < 1 else end) for end in until]
        yield Derived("train.seq_len_until", steps, f"shares of {STEPS}={total}")


@derivation("train.max_steps", "scheduler.warmup_steps", writes=SCHEDULE)
def schedule(scheduler: Scheduler, train: Train) -> Iterator[Derived]:
    """Warm-up, decay and stable steps from the horizon, train.max_steps."""
    for key, value, why in open_steps(scheduler, train.max_steps):
        yield Derived(key, value, why)


@derivation(
    "checkpoint.branch_of", *SCHEDULE, "checkpoint.resume_from", writes=("checkpoint.resume_from",)
)
def branch(scheduler: WSD, checkpoint: Checkpoint) -> Iterator[Derived]:
    """With checkpoint.branch_of a run begins where its trunk was when the decay begins."""
    if checkpoint.branch_of is not None and checkpoint.resume_from is None:
        step = first_of_decay(scheduler)
        path = os.path.join(checkpoint.branch_of, checkpoint.dir, f"step_{step}")
        if os.path.isdir(path):  # else a rule reports the fault
            why = f"scheduler=wsd decays from step {step} on"
            yield Derived("checkpoint.resume_from", path, why)


def first_of_decay(scheduler: WSD) -> int:
    """Updates before the decay begins: warm-up and stable steps."""
    return (scheduler.warmup_steps or 0) + (scheduler.stable_steps or 0)


def fit_epochs(config: Config, samples: int, derived: Collection[str]) -> list[Derived]:
    """Cut train.max_steps to train.max_epochs passes over `samples` sequences, once counted.

    derived: keys worked out before; schedule steps among them are worked out again. Changes the
    config in place.
    """
    train, scheduler = config.train, config.scheduler
    steps = train.batch_sizes.steps(train.max_epochs * samples)
    if not train.max_epochs or steps > train.max_steps - 1:
        return []
    train.max_steps = max(math.ceil(steps), 1)
    size = f"{train.global_batch_size} a step" + ", after ramp-up" * (train.rampup_start > 0)
    why = f"{train.max_epochs:g} epochs * {samples} sequences / {size}"
    changes = [Derived("train.max_steps", train.max_steps, why)]
    for key in SCHEDULE:
        if key in derived:
            setattr(scheduler, key.rpartition(".")[2], None)
    for key, value, why in open_steps(scheduler, train.max_steps):
        setattr(scheduler, key.rpartition(".")[2], value)
        changes.append(Derived(key, value, why))
    return changes
