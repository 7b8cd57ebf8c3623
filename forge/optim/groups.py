"""Parameter groups by role: which parameters are decayed."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(
    model: nn.Module, *, weight_decay: float, decay_embeddings: bool
) -> list[dict[str, Any]]:
    """Optimizer groups `matrices`, `embeddings` and `vectors`; empty ones are left out.

    matrices: two or more dimensions; decayed. embeddings: the weights of nn.Embedding, also if the
    output head shares one; decayed if `decay_embeddings`. vectors: all else; never decayed. Frozen
    parameters are in no group.
    """
    embeddings = {
        id(table)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for table in module.parameters(recurse=False)
    }
    roles: dict[str, list[nn.Parameter]] = {"matrices": [], "embeddings": [], "vectors": []}
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim < 2:
            roles["vectors"].append(parameter)
        else:
            roles["embeddings" if id(parameter) in embeddings else "matrices"].append(parameter)
    decay = {
        "matrices": weight_decay,
        "embeddings": weight_decay if decay_embeddings else 0.0,
        "vectors": 0.0,
    }
    return [
        {"name": role, "params": parameters, "weight_decay": decay[role]}
        for role, parameters in roles.items()
        if parameters
    ]
