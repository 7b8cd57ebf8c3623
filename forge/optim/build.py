"""The optimizer of a run: one for each group of parameters, as one."""

from __future__ import annotations

import torch
from torch import nn

from forge.build import build
from forge.config.model import Decoder
from forge.config.param_groups import KIND, OWN, ROLES, SCHEDULER, Group, groups, members
from forge.config.problems import ConfigError, Problem
from forge.config.root import Config
from forge.optim.groups import Schedule, roles_of, torch_groups
from forge.optim.learning_rate import scaled
from forge.optim.together import Together


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """What updates the trained parameters of `model`, or of the stages of it that are here.

    Raises ConfigError where nothing is trained, or an optimizer cannot update what it is given.
    """
    roles = roles_of(model, config.model)
    here = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    member = members(config.optimizer, ((name, roles[name]) for name, _ in here))
    made, trust = [], config.run.trust
    for group in groups(config).values():
        mine = [(name, roles[name], p) for name, p in here if member[name] == group.name]
        if not mine:
            continue
        key = f"optimizer.groups.{group.name}" if group.name != OWN else "optimizer"
        _check_roles(group, key, [role for _, role, _ in mine])
        params = torch_groups(
            group,
            mine,
            dim=_dim(config),
            horizon=config.train.max_steps,
            schedule=_own_schedule(config, group),
        )
        made.append(build(group.section, path="optimizer", trust=trust, params=params))
    if not made:
        what = "no parameter of the model is trained."
        raise ConfigError([Problem("optimizer", what, "freeze less", rule="optimizer.nothing")])
    return made[0] if len(made) == 1 else Together(made)


def rates(config: Config, schedule: Schedule) -> dict[str, Schedule]:
    """The learning rate of each group by its name, at an update by its number from 0. schedule:
    factor of those without one of their own.
    """

    def of(group: Group) -> Schedule:
        peak, factor = group.section.peak(_dim(config)), _own_schedule(config, group) or schedule
        return lambda step: peak * factor(step)

    return {name: of(group) for name, group in groups(config).items()}


def _dim(config: Config) -> int | None:
    """Width of the model, where it is known."""
    return config.model.dim if isinstance(config.model, Decoder) else None


def _own_schedule(config: Config, group: Group) -> Schedule | None:
    """Factor of the learning rate of a group, if it is not that of the run."""
    if SCHEDULER not in config.optimizer.groups.get(group.name, {}):
        return None
    return scaled(build(group.scheduler, path="scheduler", trust=config.run.trust), config.data)


def _check_roles(group: Group, key: str, roles: list[str]) -> None:
    """What the rule optimizer.takes says of models whose parameters are known only now."""
    left = [role for role in dict.fromkeys(roles) if role not in group.section.takes]
    if group.section.takes and left:
        what = f"{group.kind} updates {' and '.join(group.section.takes)} only, and is given"
        fix = f"'+optimizer.groups.others={{{KIND}: adamw, {ROLES}: [{', '.join(left)}]}}'"
        raise ConfigError([Problem(key, f"{what} {', '.join(left)}.", fix, rule="optimizer.takes")])
