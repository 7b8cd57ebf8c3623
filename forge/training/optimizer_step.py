"""The optimizer's part of a step: an update that leaves no trace where a flag says so, after the
backward pass or, parameter by parameter, inside of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forge.optim.one_by_one import OneByOne
from forge.parallel.gradients import clip_values, squares, total_norm
from forge.parallel.ranks import Ranks
from forge.tensors.local import local


def skips_on_device(optimizer: torch.optim.Optimizer, weights: Iterable[Tensor]) -> bool:
    """Whether it skips an update by itself, as torch's fused ones can, and nothing waits for the
    device. Weights on a CPU, offloaded ones too, are skipped by the host.
    """
    on_gpu = all(weight.device.type == "cuda" for weight in weights)
    return on_gpu and getattr(optimizer, "_step_supports_amp_scaling", False)


def takes_factor(optimizer: torch.optim.Optimizer, *, on_device: bool) -> bool:
    """Whether its update multiplies gradients by a factor itself, as forge's own do, and torch's
    fused ones on a GPU, so that clipping needs no pass over them.
    """
    parts: list[Any] = getattr(optimizer, "optimizers", [optimizer])
    return all(
        getattr(one, "takes_factor", False) or (on_device and one.defaults.get("fused"))
        for one in parts
    )


def step_unless(
    step: Callable[[dict[str, Any]], None],
    bad: Tensor,
    *,
    on_device: bool,
    factor: Tensor | None = None,
) -> None:
    """An optimizer's step, given what it is told; where `bad` is true, weights and state keep every
    bit. factor: of gradients.
    """
    flags: dict[str, Any] = {} if factor is None else {"factor": factor}
    if not on_device:
        if not bad.item():
            step(flags)
        return
    # As torch.amp.GradScaler does it; the optimizer's kernel returns where found_inf is 1.
    scale = None if factor is None else factor.reciprocal()
    step({**flags, "grad_scale": scale, "found_inf": bad.float()})


class InBackward:
    """Takes the step of each parameter once its gradient is reduced, of steps of one micro-batch.

    A step whose loss is not finite, or without targets, is skipped as elsewhere. That a gradient is
    not finite is known only when other parameters are updated already; its norm says it.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Iterable[tuple[str, nn.Parameter]],
        *,
        counted: Callable[[str], bool],
        ranks: Ranks,
        on_device: bool,
        clip_value: float,
    ) -> None:
        self.one_by_one, self.counted, self.ranks = OneByOne(optimizer), counted, ranks
        self.on_device, self.clip_value = on_device, clip_value
        self.bad = torch.zeros((), dtype=torch.bool)
        self.squares: list[Tensor] = []
        for name, parameter in named:
            parameter.register_post_accumulate_grad_hook(partial(self._step, name))
            self.like = local(parameter).detach()

    def begin(self, loss: Tensor, n_targets: int) -> None:
        """Before the backward pass of the part of the step's loss that this rank has."""
        total = self.ranks.total(loss.detach().clone()) if self.ranks.size > 1 else loss.detach()
        self.bad, self.squares = ~total.isfinite(), []
        if not n_targets:
            self.bad = torch.ones_like(self.bad)

    def norm(self, *, also: float) -> tuple[Tensor, Tensor]:
        """After it, see `norm_of`."""
        own = torch.stack(self.squares).sum() if self.squares else torch.zeros(())
        return total_norm(own, self.like, spread=self.ranks.size > 1, also=also)

    @torch.no_grad()
    def _step(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        self.squares.append(
            squares(
                [(name, gradient)],
                counted=self.counted,
                spread=self.ranks.size > 1,
                device=local(gradient).device,
            )
        )
        if self.clip_value:
            clip_values([gradient], self.clip_value)
        step = partial(self.one_by_one.step, parameter)
        step_unless(step, self.bad.to(local(gradient).device), on_device=self.on_device)
        parameter.grad = None
