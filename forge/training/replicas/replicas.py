"""Replica groups in the loop: a quorum before each update, and one sum of gradients."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Step, TrainLoader
from forge.objectives.objective import Objective
from forge.tensors.local import local
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.process import say
from forge.training.replicas.equal_options import common_options
from forge.training.replicas.joining import Joining
from forge.training.replicas.state import load_training_state, training_state
from forge.training.step_output import StepOutput

log = logging.getLogger(__name__)


def join_replicas(loop: Loop) -> None:
    """Make a loop train together with other replica groups."""
    replicas = Replicas(loop)
    loop.update.backward = replicas  # type: ignore[assignment]
    loop.callbacks.insert(0, replicas)


class Replicas(Callback):
    """Sums the gradient over replica groups, in place of `Backward`, and heals this group.

    An update is one step of torchft: a quorum names the groups, each computes its part of the
    global batch, gradients and counts of targets are summed, and a vote says whether the sums are
    whole. If not, because a group died in between, the same step is computed again by the groups
    that are left. So no update is lost, and the divisor is the number of targets of the groups that
    took part.
    """

    reads_gradients = False

    def __init__(self, loop: Loop) -> None:
        self.loop, self.section = loop, loop.config.fault_tolerance
        self.backward = loop.update.backward
        self.joining: Joining | None = None
        self.healed = False
        self.participants = 0
        loader = loop.loader
        assert isinstance(loader, TrainLoader)
        assert loader.rewrite is None
        self.loader = loader
        loader.rewrite = self._begin_step

    @property
    def objective(self) -> Objective:
        return self.backward.objective

    def on_start(self, loop: Any) -> None:
        self.joining = Joining(
            self.section,
            self.loop.session.ranks,
            state=lambda: training_state(self.loop),
            load=self._heal,
            step=self.loop.state.step,
            options=common_options(self.loop.config),
        )

    def close(self) -> None:
        if self.joining is not None:
            self.joining.close()

    def _heal(self, state: dict[str, Any]) -> None:
        before = self.loop.state.step
        load_training_state(self.loop, state)
        self.healed = True
        step = self.loop.state.step
        say(f"fault_tolerance: healed from another replica group, from step {before} to {step}")

    def _quorum(self) -> bool:
        """Begin a step with the other groups; returns whether this group was behind."""
        assert self.joining is not None
        self.healed = False
        self.joining.quorum()
        now = self.joining.participants
        if now != self.participants and not self.joining.faults:
            of = self.section.group_size
            say(f"fault_tolerance: {now} of {of} replica groups at step {self.loop.state.step}")
            self.participants = now
        return self.healed

    def _begin_step(self, step: Step, first_sample: int) -> Step:
        return self._read_again() if self._quorum() else step

    def _read_again(self) -> Step:
        """The step at the place in the data of the group that healed this group."""
        self.loader.rewrite = None
        try:
            return next(self.loader)
        finally:
            self.loader.rewrite = self._begin_step

    def __call__(self, step: Step) -> tuple[Tensor, dict[str, Tensor], int]:
        """As `Backward`, over all groups that take part."""
        assert self.joining is not None
        while True:
            loss, sums, n_targets = self.backward(step)
            n_targets, loss, sums = self._sum(step, loss, sums, n_targets)
            if self.joining.vote():
                return loss, sums, n_targets
            step_number = self.loop.state.step
            say(f"fault_tolerance: step {step_number} is computed again, without a lost group")
            self.loop.optimizer.zero_grad(set_to_none=True)
            if self._quorum():
                step = self._read_again()
                self.loop.update.learning_rate.set(self.loop.state.step)

    @torch.no_grad()
    def _sum(
        self, step: Step, loss: Tensor, sums: dict[str, Tensor], n_targets: int
    ) -> tuple[int, Tensor, dict[str, Tensor]]:
        """Sum gradients, loss and reported sums over groups, for the targets that took part."""
        assert self.joining is not None
        ranks = self.loop.session.ranks
        own = sum((batch["targets"] != IGNORE_INDEX).sum() for batch in step.batches)
        counted = torch.as_tensor(own, device=loss.device).double()
        values = torch.stack(
            [ranks.total(counted), loss.double(), *(v.double() for v in sums.values())]
        )
        gradients = [local(p.grad) for _, p in self.loop.update.named if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        if self.section.process_group == "gloo":
            values, flat = values.cpu(), flat.cpu()
        self.joining.sum(values)
        self.joining.sum(flat)
        counted_targets = round(values[0].item())
        if counted_targets != n_targets:
            factor = n_targets / max(counted_targets, 1)
            flat *= factor
            values[1] *= factor
        parts = flat.to(gradients[0].device).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        values = values.to(loss)
        return counted_targets, values[1], dict(zip(sums, values[2:], strict=True))

    def on_step_end(self, loop: Any, output: StepOutput) -> None:
        """Count the tokens of the groups that took part, and report their number."""
        away = output.n_tokens - output.n_tokens * self.participants // self.section.group_size
        output.n_tokens -= away
        self.loop.state.tokens -= away
        output.means["participants"] = output.loss.new_tensor(float(self.participants))
