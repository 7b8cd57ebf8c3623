"""N:M sparsity: of each M adjacent weights of a row the N largest are trained, the others are 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.config.quantization import Sparse
from forge.tensors.local import local, owned, select
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput


class Sparsity(Callback):
    """Weights are sparse between updates: trained on, evaluated, saved and exported so. An update
    finds in place of zeros what they were, with the gradient of the zeros (the straight-through
    estimator of arXiv:2102.04010), and leaves zeros again.

    It stands before all that looks at weights at the end of a step.
    """

    def __init__(self, session: Session) -> None:
        section = session.config.quantization
        assert isinstance(section, Sparse)
        self.section = section
        names = {one.name for one in section.chosen(session.config.model)}  # type: ignore[arg-type]
        self.weights = {n: p for n, p in session.model.named_parameters() if n in names}
        for name, weight in self.weights.items():
            if local(weight).shape[-1] % section.weight_sparsity_m:
                what = f"a rank has {local(weight).shape[-1]} weights of each row of {name}"
                key = f"quantization.weight_sparsity_m={section.weight_sparsity_m}"
                raise ValueError(f"{key}: {what}; take fewer ranks, or a divisor of that")
        self.kept: dict[str, Tensor] = {}
        self.zeroed: dict[str, Tensor] = {}

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.quantization.zeroes

    @torch.no_grad()
    def on_gradients(self, loop: Loop) -> None:
        for name, kept in self.kept.items():
            weight = local(self.weights[name])
            weight.copy_(torch.where(kept, weight, self.zeroed[name]))

    @torch.no_grad()
    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        section, step = self.section, loop.state.step
        since = step - section.weight_sparsity_start_step
        if since < 0:
            return
        for name, parameter in self.weights.items():
            weight = local(parameter)
            if since % section.weight_sparsity_update_step == 0 or name not in self.kept:
                of, among = section.weight_sparsity_n, section.weight_sparsity_m
                self.kept[name] = largest(weight, of, among)
            self.zeroed[name] = weight.masked_fill(self.kept[name], 0)
            weight.masked_fill_(~self.kept[name], 0)

    def state_dict(self) -> dict[str, Any]:
        kept = {name: self._laid_out(name, mask.byte()) for name, mask in self.kept.items()}
        zeroed = {name: self._laid_out(name, rest) for name, rest in self.zeroed.items()}
        return {"kept": kept, "zeroed": zeroed} if kept else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self.weights.items():
            if name in state["kept"]:
                device, indices = local(parameter).device, owned(parameter)
                self.kept[name] = select(state["kept"][name], indices).bool().to(device)
                self.zeroed[name] = select(state["zeroed"][name], indices).to(device)

    def _laid_out(self, name: str, values: Tensor) -> Tensor:
        """As the parameter is, so that each rank saves what it has."""
        like = self.weights[name]
        if not isinstance(like, DTensor):
            return values
        how = {"shape": like.shape, "stride": like.stride(), "run_check": False}
        return DTensor.from_local(values, like.device_mesh, like.placements, **how)


def largest(weight: Tensor, of: int, among: int) -> Tensor:
    """bool, as weight: the `of` largest of each `among` adjacent values of the last dimension, of
    equal ones the first.
    """
    blocks = weight.abs().unflatten(-1, (-1, among))
    order = blocks.argsort(dim=-1, descending=True, stable=True)[..., :of]
    return torch.zeros_like(blocks, dtype=torch.bool).scatter_(-1, order, True).flatten(-2)
