"""Norms of weights, gradients and updates, by the role of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from forge.config.optimizers.param_groups import ALL_ROLES
from forge.optim.groups import roles_of
from forge.parallel.gradients import squares
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

OF = ("weights", "gradients", "updates")


class Norms(Callback):
    """Logs norms/{weights,gradients,updates}/{role} of the parameters that are trained, at the
    steps that are logged.

    Gradients are clipped, weights those before the update. In such a step the weights of before it
    are kept until its end.
    """

    def __init__(self, session: Session) -> None:
        self.interval, self.ranks = session.config.metrics.log_interval, session.ranks
        self.roles = roles_of(session.model, session.config)
        self.before: dict[str, Tensor] = {}
        self.gradients: Mapping[str, Tensor] = {}

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.metrics.norms_by_role

    def on_gradients(self, loop: Loop) -> None:
        if (loop.state.step + 1) % self.interval:
            return
        named = loop.update.named
        found = {name: p.grad for name, p in named if p.grad is not None}
        self.gradients = self._squares(loop, found)
        self.before = {name: p.detach().clone() for name, p in named}

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if not self.before:
            return
        named = {name: p.detach() for name, p in loop.update.named}
        updates = {name: named[name] - before for name, before in self.before.items()}
        each = [self._squares(loop, self.before), self.gradients, self._squares(loop, updates)]
        self.before, self.gradients = {}, {}
        here = torch.tensor([float(role in self.roles.values()) for role in ALL_ROLES])
        of_roles = [torch.stack([one[role] for role in ALL_ROLES]) for one in each]
        sums = torch.stack([*of_roles, here.to(of_roles[0])])
        if self.ranks.size > 1:
            dist.all_reduce(sums)
        *norms, known = sums.sqrt().tolist()
        loop.log(
            {
                f"norms/{what}/{role}": norm
                for what, row in zip(OF, norms, strict=True)
                for role, norm, is_known in zip(ALL_ROLES, row, known, strict=True)
                if is_known
            }
        )

    def _squares(self, loop: Loop, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums of squares of what this rank counts, by role."""
        spread, counted = self.ranks.size > 1, loop.update.counted
        return {
            role: squares(
                [(name, value) for name, value in values.items() if self.roles[name] == role],
                counted=counted,
                spread=spread,
                device=loop.session.device,
            )
            for role in ALL_ROLES
        }
