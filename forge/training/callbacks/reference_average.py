"""A reference that follows the trained model (objective.reference=ema)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from forge.config.objectives.grpo import GRPO
from forge.objectives.grpo import REFERENCE
from forge.tensors.local import local
from forge.tensors.masters import master
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

foreach: Any = torch  # pyright takes torch's functions on lists of tensors for private


class ReferenceAverage(Callback):
    """Moves the reference towards the trained weights, as in TRL's sync_ref_model.

    reference <- mix * weights + (1 - mix) * reference, every `objective.reference_interval`
    updates. The reference is cut over ranks as the model is, so no move needs a collective;
    checkpoints store it by the parameter's name.
    """

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        section = session.config.objective
        assert isinstance(section, GRPO)
        self.section = section
        self.reference: Any = session.objective.models[REFERENCE]
        trained = {name: p for name, p in session.model.named_parameters() if p.requires_grad}
        values = dict(self.reference.named_parameters())
        self.pairs = {name: (values[name], p) for name, p in trained.items()}

    @classmethod
    def wanted(cls, session: Session) -> bool:
        section = session.config.objective
        return isinstance(section, GRPO) and section.reference_moves

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.state.step % self.section.reference_interval == 0:
            self.move()

    @torch.no_grad()
    def move(self) -> None:
        """Move the reference towards the present weights."""
        self.reference.train(False)  # frees weights that are still gathered
        means = [local(value) for value, _ in self.pairs.values()]
        weights = [local(master(p)).to(value.dtype) for value, p in self.pairs.values()]
        foreach._foreach_lerp_(means, weights, self.section.reference_mix)

    def parameter_state(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, (value, _) in self.pairs.items()}

    @torch.no_grad()
    def load_parameter_state(self, state: dict[str, Tensor]) -> None:
        self.reference.train(False)
        for name, (value, _) in self.pairs.items():
            local(value).copy_(local(state[name]))
