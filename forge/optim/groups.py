"""Parameters of a built model: roles, and torch's parameter groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

from torch import Tensor, nn

from forge.config.adapters.adapter import B
from forge.config.model.tensors import BIAS, EMBEDDING, MATRIX, NORM
from forge.config.optimizers.param_groups import Group, named_parameters, trained
from forge.config.root import Config

Schedule = Callable[[int], float]


def roles_of(model: nn.Module, config: Config) -> dict[str, str]:
    """The role of each parameter by name, from the table of a decoder.

    For other models, and for parameters added to a decoder: embedding = the weight of an
    nn.Embedding, matrix = two or more dimensions, bias = a name ending in bias, norm = all else.
    """
    table = dict(named_parameters(config))
    embeddings = {
        id(table)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for table in module.parameters(recurse=False)
    }
    return {
        name: table.get(name) or _guess(name, values, id(values) in embeddings)
        for name, values in model.named_parameters()
    }


def _guess(name: str, values: Tensor, is_embedding: bool) -> str:
    if values.ndim > 1:
        return EMBEDDING if is_embedding else MATRIX
    return BIAS if name.endswith("bias") else NORM


def freeze(model: nn.Module, config: Config) -> None:
    """Turn off gradients of parameters left out by an adapter or the patterns of an optimizer."""
    is_trained = trained(config)
    for name, values in model.named_parameters():
        if not is_trained(name):
            values.requires_grad_(False)


def torch_groups(
    group: Group,
    members: Iterable[tuple[str, str, nn.Parameter]],
    *,
    dim: int | None,
    horizon: int,
    schedule: Schedule | None,
    ratio: float = 1.0,
) -> list[dict[str, Any]]:
    """Make torch's parameter groups: decayed, and not decayed.

    members: name, role and values of each parameter. dim: width of the model. horizon: updates in
    the run. schedule: the group's own factor of the learning rate, if not the run's. ratio:
    learning rate of parameters that `learns_faster` selects, over the rate of the others.
    """
    section, groups = group.section, []
    common: dict[str, Any] = {"lr": section.peak(dim)}
    if schedule:
        common["schedule"] = schedule
    if factors := section.schedules(group.scheduler, horizon):
        common["schedules"] = factors
    traits = [
        (p, (group.decays((name, role)), ratio != 1 and learns_faster(name, p)))
        for name, role, p in members
    ]
    for decays, faster in product((True, False), (False, True)):
        parameters = [p for p, trait in traits if trait == (decays, faster)]
        label = (group.name or "optimizer") + ("" if decays else ", not decayed")
        if parameters:
            groups.append(
                {
                    "name": f"{label}, {ratio:g} times the rate" if faster else label,
                    "params": parameters,
                    "weight_decay": section.weight_decay if decays else 0.0,
                    **common,
                    "lr": common["lr"] * (ratio if faster else 1),
                }
            )
    return groups


def learns_faster(name: str, values: Tensor) -> bool:
    """Whether adapter.lora_plus_ratio applies to a parameter: as in PEFT to B, and to magnitudes,
    norms and biases.
    """
    return name.endswith(B) or values.ndim == 1
