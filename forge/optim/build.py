"""The optimizer of a run: one for each group of parameters, as one."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from forge.build import build
from forge.config.optimizers.param_groups import KIND, OWN, ROLES, SCHEDULER, Group, groups, members
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.optim.combined import Together
from forge.optim.groups import Schedule, roles_of, torch_groups
from forge.optim.learning_rate import scaled
from forge.optim.offload import Offloaded
from forge.optim.own_schedule import build_schedule, steps_of, width
from forge.optim.rounding import Rounding


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """What updates the trained parameters of `model`, or of the stages of it that are here.

    Raises ConfigError where nothing is trained, or an optimizer cannot update what it is given.
    """
    roles = roles_of(model, config)
    here = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    member = members(config, ((name, roles[name]) for name, _ in here))
    made, trust, adapter = [], config.run.trust, config.adapter
    for group in groups(config).values():
        mine = [(name, roles[name], p) for name, p in here if member[name] == group.name]
        if not mine:
            continue
        key = f"optimizer.groups.{group.name}" if group.name != OWN else "optimizer"
        _check_roles(group, key, [role for _, role, _ in mine])
        params = torch_groups(
            group,
            mine,
            dim=width(config),
            horizon=config.train.max_steps,
            schedule=_own_schedule(config, group),
            ratio=adapter.lr_ratio,
        )
        offered = {"model": model} | steps_of(config)
        one = build(group.section, path="optimizer", trust=trust, offered=offered, params=params)
        _check_step(one, group)
        if config.precision.weights_in_16_bits:
            one.rounding = Rounding(
                names={p: name for name, _, p in mine},
                stochastic=config.precision.stochastic_rounding,
                seed=config.seed,
            )
        made.append(one)
    if not made:
        what = "no parameter of the model is trained."
        raise ConfigError([Problem("optimizer", what, "freeze less", rule="optimizer.nothing")])
    optimizer = made[0] if len(made) == 1 else Together(made)
    return Offloaded(optimizer) if config.parallel.offload_optimizer else optimizer


def rates(config: Config, schedule: Schedule) -> dict[str, Schedule]:
    """The learning rate of each group by its name, at an update by its number from 0. schedule:
    factor of those without one of their own.
    """

    def of(group: Group) -> Schedule:
        peak, factor = group.section.peak(width(config)), _own_schedule(config, group) or schedule
        return lambda step: peak * factor(step)

    return {name: of(group) for name, group in groups(config).items()}


def _own_schedule(config: Config, group: Group) -> Schedule | None:
    """Factor of the learning rate of a group, if it is not that of the run."""
    if SCHEDULER not in config.optimizer.groups.get(group.name, {}):
        return None
    return scaled(build_schedule(group.scheduler, config), config.data)


def _check_step(optimizer: Any, group: Group) -> None:
    """Raises ConfigError for what is no optimizer, or one that computes gradients by itself."""
    key, what = f"optimizer._target_={group.section._target_}", ""
    if not isinstance(optimizer, torch.optim.Optimizer):
        what = f"it gives a {type(optimizer).__name__}, which is no torch.optim.Optimizer."
    elif _needs_closure(optimizer):
        what = "its step computes the loss again, by a closure, and forge gives it gradients."
    if what:
        raise ConfigError([Problem(key, what, "another optimizer", rule="target")])


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _check_roles(group: Group, key: str, roles: list[str]) -> None:
    """What the rule optimizer.takes says of models whose parameters are known only now."""
    left = [role for role in dict.fromkeys(roles) if role not in group.section.takes]
    if group.section.takes and left:
        what = f"{group.kind} updates {' and '.join(group.section.takes)} only, and is given"
        fix = f"'+optimizer.groups.others={{{KIND}: adamw, {ROLES}: [{', '.join(left)}]}}'"
        raise ConfigError([Problem(key, f"{what} {', '.join(left)}.", fix, rule="optimizer.takes")])
