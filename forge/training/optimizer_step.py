"""The optimizer's part of a step: an update without effect if flagged.

After the backward pass or, parameter by parameter, inside of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from forge.optim.one_by_one import SequentialUpdates
from forge.parallel.gradients import clip_values, squares, total_norm
from forge.parallel.ranks import Ranks
from forge.tensors.local import local


def skips_on_device(optimizer: torch.optim.Optimizer, weights: Iterable[Tensor]) -> bool:
    """Whether an optimizer skips an update on the device, without a wait of the host.

    Torch's fused optimizers can. Weights on a CPU, offloaded weights too, are skipped by the host.
    """
    on_gpu = all(weight.device.type == "cuda" for weight in weights)
    return on_gpu and getattr(optimizer, "_step_supports_amp_scaling", False)


def takes_factor(optimizer: torch.optim.Optimizer, *, on_device: bool) -> bool:
    """Whether the update itself multiplies gradients by a factor, which saves a pass for clipping.

    True of forge's optimizers, and of torch's fused optimizers on a GPU.
    """
    parts: list[Any] = getattr(optimizer, "optimizers", [optimizer])
    return all(
        getattr(part, "takes_factor", False) or (on_device and part.defaults.get("fused"))
        for part in parts
    )


def step_unless(
    step: Callable[[dict[str, Any]], None],
    bad: Tensor,
    *,
    on_device: bool,
    factor: Tensor | None = None,
) -> None:
    """Make an optimizer's step; where `bad` is true, weights and state keep every bit.

    step: called with the flags for the optimizer. factor: of gradients.
    """
    flags: dict[str, Any] = {} if factor is None else {"factor": factor}
    if not on_device:
        if not bad.item():
            step(flags)
        return
    # The protocol of torch.amp.GradScaler: the optimizer's kernel returns if found_inf is 1.
    # grad_scale divides gradients, so the factor is inverted.
    scale = None if factor is None else factor.reciprocal()
    step({**flags, "grad_scale": scale, "found_inf": bad.float()})


class InBackward:
    """Takes the step of each parameter once its gradient is reduced, for steps of one micro-batch.

    A step with a non-finite loss, or without targets, is skipped as elsewhere. A non-finite
    gradient shows only in the norm, after the update of other parameters.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        counted: Callable[[str], bool],
        ranks: Ranks,
        on_device: bool,
        clip_value: float,
    ) -> None:
        self.one_by_one, self.counted, self.ranks = SequentialUpdates(optimizer), counted, ranks
        self.on_device, self.clip_value = on_device, clip_value
        self.bad = torch.zeros((), dtype=torch.bool)
        self.squares: list[Tensor] = []
        for name, parameter in parameters:
            parameter.register_post_accumulate_grad_hook(partial(self._step, name))
            self.like = local(parameter).detach()

    def begin(self, loss: Tensor, n_targets: int) -> None:
        """Prepare for the backward pass of this rank's part of the step's loss."""
        total = self.ranks.total(loss.detach().clone()) if self.ranks.size > 1 else loss.detach()
        self.bad, self.squares = ~total.isfinite(), []
        if not n_targets:
            self.bad = torch.ones_like(self.bad)

    def norm(self, *, also: float) -> tuple[Tensor, Tensor]:
        """The gradient norm after the backward pass, see `norm_of`."""
        local_squares = torch.stack(self.squares).sum() if self.squares else torch.zeros(())
        return total_norm(local_squares, self.like, spread=self.ranks.size > 1, also=also)

    @torch.no_grad()
    def _step(self, name: str, parameter: Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        # Before clipping: the reported norm is of the unclipped gradient.
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
