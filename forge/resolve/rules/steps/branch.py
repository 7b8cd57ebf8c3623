"""Rules on the decay of another run's constant learning rate: checkpoint.branch_of."""

from __future__ import annotations

from pathlib import Path

from forge.config import changes
from forge.config.checkpoint import Checkpoint
from forge.config.horizon import SCHEDULE
from forge.config.optimizers.schedules import WSD, Constant, Decay, Scheduler
from forge.config.problems import shown
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.resolve.horizon import first_of_decay
from forge.resolve.rules.run_directory import has_saved_since
from forge.rundir import checkpoints, saved_config

BRANCH = "checkpoint.branch_of"
OTHER = ("scheduler", "train.max_steps", "checkpoint")
"""Keys in which a branch is another run than its trunk."""


@rule(BRANCH, BRANCH, *SCHEDULE, "scheduler", "train.max_steps", "checkpoint.resume_from")
def branch_of(config: Config, scheduler: Scheduler, checkpoint: Checkpoint) -> Findings:
    """A branch begins in a run of equal model, data and optimizer with scheduler=constant, at the
    checkpoint where scheduler=wsd begins to decay.
    """
    if checkpoint.branch_of is None or has_saved_since(config, "branch_of"):
        return
    path = Path(checkpoint.branch_of)
    if not saved_config.is_run(path):
        yield BRANCH, f"{path} is no run directory.", "another run"
    elif not isinstance(scheduler, WSD):
        yield BRANCH, "the decay of a branch is that of scheduler=wsd.", "scheduler=wsd"
    elif config.optimizer.weight_decay_schedule != "constant":
        message = "weight decay that falls over the run is another one with another horizon."
        yield BRANCH, message, "optimizer.weight_decay_schedule=constant"
    else:
        yield from _of_trunk(config, path, scheduler)


def _of_trunk(config: Config, path: Path, scheduler: WSD) -> Findings:
    try:
        trunk = saved_config.load_config(saved_config.newest(path), trust=config.run.trust)
    except Exception as error:  # a damaged file can raise anything
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        yield BRANCH, f"the config of {path} cannot be read: {reason}.", "another run"
        return
    step = first_of_decay(scheduler)
    for change in changes.changes(trunk, config):
        if not change.free and not change.key.startswith(OTHER):
            old, new = shown(change.before), shown(change.after)
            message = f"the run in {path} has {change.key}={old}; here it is {new}."
            yield f"{change.key}={new}", message, f"{change.key}={old}"
    if fault := _other_rate(trunk.scheduler, scheduler, step):
        yield BRANCH, f"{path} {fault}", f"{BRANCH}=null"
        return
    saved = sorted(c.step for c in checkpoints.list_checkpoints(path / trunk.checkpoint.dir))
    if step not in saved:
        message = f"{path} has no checkpoint of step {step}, where the decay begins"
        message += f"; it has steps {', '.join(map(str, saved))}." if saved else "."
        end = config.train.max_steps
        hints = [f"scheduler.decay_steps={end - n}" for n in reversed(saved) if n < end]
        yield BRANCH, message, " or ".join(hints[:3]) or f"{BRANCH}=null"


def _other_rate(trunk: Scheduler, branch: WSD, step: int) -> str:
    """How the rates of a trunk differ from the branch's before its decay; empty if they do not."""
    if not isinstance(trunk, Constant):
        return "has another schedule than scheduler=constant or wsd."
    if (trunk.warmup_steps or 0) != (branch.warmup_steps or 0):
        old, new = trunk.warmup_steps, branch.warmup_steps
        return f"has scheduler.warmup_steps={old}; here it is {new}."
    if isinstance(trunk, WSD):
        end = first_of_decay(trunk)
        return f"decays from step {end} on, before step {step}." if end < step else ""
    return "has a learning rate that decays." if isinstance(trunk, Decay) else ""
