"""The state of training that a returning replica group gets from a healthy group."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from forge.tensors.local import local
from forge.tensors.masters import exact_state, round_masters
from forge.training.checkpoints.callback_state import (
    callback_states,
    load_states,
    parameter_states,
)
from forge.training.checkpoints.checkpoint import optimizer_tensors
from forge.training.checkpoints.restore import restore_optimizer
from forge.training.loop import Loop


def training_state(loop: Loop) -> dict[str, Any]:
    """This rank's parts of weights and optimizer state, counters, callbacks, place in the data.

    The tensors are the run's own: they are read before the update that follows.
    """
    loop.model.train(loop.model.training)  # frees weights that are still gathered
    plain, tensors = callback_states(loop.callbacks, loop.state.step)
    tensors |= parameter_states(loop.callbacks)
    return {
        "model": {name: local(value).detach() for name, value in exact_state(loop.model).items()},
        "optimizer": {
            name: local(value).detach()
            for name, value in optimizer_tensors(loop.model, loop.optimizer).items()
        },
        "train": loop.state.state_dict(),
        "callbacks": plain,
        "tensors": {name: local(value).detach() for name, value in tensors.items()},
    }


@torch.no_grad()
def load_training_state(loop: Loop, state: dict[str, Any]) -> None:
    """Take over the state of `training_state`. Raises ValueError for another model."""
    loop.model.train(loop.model.training)  # frees weights that are still gathered
    ours, theirs = exact_state(loop.model), state["model"]
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = _shape(ours.get(name)), _shape(theirs.get(name))
        if here != there:
            message = f"{name} is {here} here and {there} in another replica group"
            raise ValueError(f"fault_tolerance: {message}; give all the same model and layout")
    for name, value in ours.items():
        local(value).copy_(theirs[name])
    round_masters(loop.model)
    _load_optimizer(loop, state["optimizer"])
    loop.state.count_skipped()
    loop.state.load_state_dict(state["train"])
    load_states(loop.callbacks, state["callbacks"], state["tensors"], loop.state.step)
    loop.loader.load_state_dict({"samples": loop.state.samples})


def _shape(value: torch.Tensor | None) -> tuple[int, ...] | None:
    return None if value is None else tuple(local(value).shape)


def _load_optimizer(loop: Loop, state: dict[str, torch.Tensor]) -> None:
    """Give each parameter's state the layout of the parameter, where it has the same shape."""
    parameters = dict(loop.model.named_parameters())
    laid_out = {}
    for key, value in state.items():
        parameter = parameters[key.rpartition("/")[0]].detach()
        laid_out[key] = value
        is_cut = isinstance(parameter, DTensor)
        if is_cut and value.ndim and value.shape == local(parameter).shape:
            room = torch.empty_like(parameter, dtype=value.dtype)
            local(room).copy_(value)
            laid_out[key] = room
    restore_optimizer(loop.model, loop.optimizer, laid_out)
