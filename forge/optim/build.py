"""The optimizer of a run: an optimizer for each group of parameters, joined."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from forge.build import build
from forge.config.optimizers.param_groups import KIND, OWN, ROLES, SCHEDULER, Group, groups, members
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.optim.combined import CombinedOptimizer
from forge.optim.groups import Schedule, roles_of, torch_groups
from forge.optim.offload import Offloaded
from forge.optim.own_schedule import build_schedule, steps_of, width
from forge.optim.rounding import Rounding
from forge.optim.schedules import scale_by_phase


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Build the optimizer of the trained parameters of `model`, or of this rank's stages.

    Raises ConfigError where nothing is trained, or an optimizer cannot update a given parameter.
    """
    roles = roles_of(model, config)
    trained_parameters = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    member = members(config, ((name, roles[name]) for name, _ in trained_parameters))
    optimizers, trust, adapter = [], config.run.trust, config.adapter
    for group in groups(config).values():
        mine = [
            (name, roles[name], p) for name, p in trained_parameters if member[name] == group.name
        ]
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
        group_optimizer = build(
            group.section, path="optimizer", trust=trust, offered=offered, params=params
        )
        _check_step(group_optimizer, group)
        if config.precision.weights_in_16_bits:
            group_optimizer.rounding = _rounding(config, {p: name for name, _, p in mine})
        optimizers.append(group_optimizer)
    if not optimizers:
        message = "no parameter of the model is trained."
        raise ConfigError([Problem("optimizer", message, "freeze less", rule="optimizer.nothing")])
    optimizer = optimizers[0] if len(optimizers) == 1 else CombinedOptimizer(optimizers)
    return Offloaded(optimizer) if config.parallel.offload_optimizer else optimizer


def _rounding(config: Config, names: dict[Tensor, str]) -> Rounding:
    """The rounding of updated weights in 16 bits."""
    stochastic = config.precision.stochastic_rounding
    return Rounding(names=names, stochastic=stochastic, seed=config.seed)


def rates(config: Config, schedule: Schedule) -> dict[str, Schedule]:
    """The learning rate of each group by name, a function of the update's number from 0. schedule:
    factor of the groups without a schedule of their own.
    """

    def of(group: Group) -> Schedule:
        peak, factor = group.section.peak(width(config)), _own_schedule(config, group) or schedule
        return lambda step: peak * factor(step)

    return {name: of(group) for name, group in groups(config).items()}


def _own_schedule(config: Config, group: Group) -> Schedule | None:
    """The group's own factor of the learning rate; None = the factor of the run."""
    if SCHEDULER not in config.optimizer.groups.get(group.name, {}):
        return None
    return scale_by_phase(build_schedule(group.scheduler, config), config.data)


def _check_step(optimizer: Any, group: Group) -> None:
    """Raises ConfigError for an object that is no optimizer, or computes gradients by itself."""
    key, message = f"optimizer._target_={group.section._target_}", ""
    if not isinstance(optimizer, torch.optim.Optimizer):
        message = f"it gives a {type(optimizer).__name__}, which is no torch.optim.Optimizer."
    elif _needs_closure(optimizer):
        message = "its step computes the loss again, by a closure, and forge gives it gradients."
    if message:
        raise ConfigError([Problem(key, message, "another optimizer", rule="target")])


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is closure.empty


def _check_roles(group: Group, key: str, roles: list[str]) -> None:
    """Apply the rule optimizer.takes to models with parameters known only when built."""
    unsupported = [role for role in dict.fromkeys(roles) if role not in group.section.takes]
    if group.section.takes and unsupported:
        message = f"{group.kind} updates {' and '.join(group.section.takes)} only, and is given"
        hint = f"'+optimizer.groups.others={{{KIND}: adamw, {ROLES}: [{', '.join(unsupported)}]}}'"
        raise ConfigError(
            [Problem(key, f"{message} {', '.join(unsupported)}.", hint, rule="optimizer.takes")]
        )
