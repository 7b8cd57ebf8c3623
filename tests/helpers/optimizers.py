"""Parameter groups of a model by itself, for an optimizer without a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch import nn

from forge.build import build
from forge.config.adapters.adapter import NoAdapter
from forge.config.model.layer import Model
from forge.config.objectives.base import Pretrain
from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.param_groups import OWN, Group
from forge.config.optimizers.schedules import NoSchedule
from forge.optim.groups import roles_of, torch_groups


def params_of(section: Optimizer, model: nn.Module, horizon: int = 1) -> list[dict[str, Any]]:
    """What a target gets as `params`."""
    group = Group(name=OWN, section=section, scheduler=NoSchedule())
    own = getattr(model, "section", None) or Model()
    config: Any = SimpleNamespace(model=own, adapter=NoAdapter(), objective=Pretrain())
    roles = roles_of(model, config)
    members = [(name, roles[name], p) for name, p in model.named_parameters() if p.requires_grad]
    return torch_groups(group, members, dim=None, horizon=horizon, schedule=None)


def optimizer_of(section: Optimizer, model: nn.Module) -> Any:
    """The optimizer of a section, of all trained parameters of a model."""
    return build(section, path="optimizer", params=params_of(section, model))
