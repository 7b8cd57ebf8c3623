"""Updates inside of the backward pass: a gradient is gone as soon as its parameter is updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor, nn

from forge.optim.one_by_one import OneByOne
from forge.owned import local
from forge.parallel.gradients import clip_values, squares, total_norm
from forge.parallel.ranks import Ranks
from forge.training.skipping import step_unless


class InBackward:
    """Takes the step of each parameter once its gradient is reduced, of steps of one micro-batch.

    A step whose loss is not finite, or with `nothing` to learn, is skipped as elsewhere. That a
    gradient is not finite is known only when other parameters are updated already; its norm says
    it.
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
        self.bad, self.nothing = torch.zeros((), dtype=torch.bool), False
        self.squares: list[Tensor] = []
        for name, parameter in named:
            parameter.register_post_accumulate_grad_hook(partial(self._step, name))
            self.like = local(parameter).detach()

    def begin(self, loss: Tensor) -> None:
        """Before the backward pass of the part of the step's loss that this rank has."""
        total = self.ranks.total(loss.detach().clone()) if self.ranks.size > 1 else loss.detach()
        self.bad, self.squares = ~total.isfinite(), []
        if self.nothing:
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
