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
    """Logs norms/{weights,gradients,updates}/{role} of trained parameters, at logged steps.

    Gradients are clipped, weights from before the update. In a logged step the old weights are kept
    until the end of the step.
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
        parameters = loop.update.named
        gradients = {name: p.grad for name, p in parameters if p.grad is not None}
        self.gradients = self._squares(loop, gradients)
        self.before = {name: p.detach().clone() for name, p in parameters}

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if not self.before:
            return
        parameters = {name: p.detach() for name, p in loop.update.named}
        updates = {name: parameters[name] - old for name, old in self.before.items()}
        squares_by_kind = [
            self._squares(loop, self.before),
            self.gradients,
            self._squares(loop, updates),
        ]
        self.before, self.gradients = {}, {}
        # With a pipeline a role may be on other ranks alone; one sum covers norms and presence.
        present = torch.tensor([float(role in self.roles.values()) for role in ALL_ROLES])
        of_roles = [
            torch.stack([of_kind[role] for role in ALL_ROLES]) for of_kind in squares_by_kind
        ]
        sums = torch.stack([*of_roles, present.to(of_roles[0])])
        if self.ranks.size > 1:
            dist.all_reduce(sums)
        *norms, existing = sums.sqrt().tolist()
        loop.log(
            {
                f"norms/{kind}/{role}": norm
                for kind, row in zip(OF, norms, strict=True)
                for role, norm, exists in zip(ALL_ROLES, row, existing, strict=True)
                if exists
            }
        )

    def _squares(self, loop: Loop, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Sums of squares of the parameters counted by this rank, by role."""
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
