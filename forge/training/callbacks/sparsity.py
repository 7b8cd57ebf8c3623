"""N:M sparsity: of each M adjacent weights of a row the N largest are trained, all others are 0."""

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
    """Keeps weights sparse between updates: for training, evaluating, saving and exporting.

    An update finds the old values in place of zeros, with the gradient of the zeros (the
    straight-through estimator of arXiv:2102.04010), and leaves zeros again. Stands before all
    callbacks reading weights at the end of a step.
    """

    def __init__(self, session: Session) -> None:
        section = session.config.quantization
        assert isinstance(section, Sparse)
        self.section = section
        names = {spec.name for spec in section.chosen(session.config.model)}  # type: ignore[arg-type]
        self.weights = {n: p for n, p in session.model.named_parameters() if n in names}
        for name, weight in self.weights.items():
            if local(weight).shape[-1] % section.weight_sparsity_m:
                message = f"a rank has {local(weight).shape[-1]} weights of each row of {name}"
                key = f"quantization.weight_sparsity_m={section.weight_sparsity_m}"
                raise ValueError(f"{key}: {message}; take fewer ranks, or a divisor of that")
        self.kept: dict[str, Tensor] = {}
        self.zeroed: dict[str, Tensor] = {}

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.quantization.zeroes

    @torch.no_grad()
    def on_gradients(self, loop: Loop) -> None:
        for name, mask in self.kept.items():
            weight = local(self.weights[name])
            weight.copy_(torch.where(mask, weight, self.zeroed[name]))

    @torch.no_grad()
    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        section, step = self.section, loop.state.step
        since = step - section.weight_sparsity_start_step
        if since < 0:
            return
        for name, parameter in self.weights.items():
            weight = local(parameter)
            if since % section.weight_sparsity_update_step == 0 or name not in self.kept:
                count, among = section.weight_sparsity_n, section.weight_sparsity_m
                self.kept[name] = _largest_mask(weight, count, among)
            # The values about to be zeroed, restored before the next update.
            self.zeroed[name] = weight.masked_fill(self.kept[name], 0)
            weight.masked_fill_(~self.kept[name], 0)

    def state_dict(self) -> dict[str, Any]:
        masks = {name: self._laid_out(name, mask.byte()) for name, mask in self.kept.items()}
        zeroed = {name: self._laid_out(name, values) for name, values in self.zeroed.items()}
        return {"kept": masks, "zeroed": zeroed} if masks else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, parameter in self.weights.items():
            if name in state["kept"]:
                device, indices = local(parameter).device, owned(parameter)
                self.kept[name] = select(state["kept"][name], indices).bool().to(device)
                self.zeroed[name] = select(state["zeroed"][name], indices).to(device)

    def _laid_out(self, name: str, values: Tensor) -> Tensor:
        """Lay out values as the parameter, so each rank saves its own shard."""
        like = self.weights[name]
        if not isinstance(like, DTensor):
            return values
        options = {"shape": like.shape, "stride": like.stride(), "run_check": False}
        return DTensor.from_local(values, like.device_mesh, like.placements, **options)


def _largest_mask(weight: Tensor, count: int, among: int) -> Tensor:
    """Mask of the `count` largest of each `among` adjacent values in the last dimension.

    bool, shaped as weight. Of equal values the first counts.
    """
    blocks = weight.abs().unflatten(-1, (-1, among))
    order = blocks.argsort(dim=-1, descending=True, stable=True)[..., :count]
    return torch.zeros_like(blocks, dtype=torch.bool).scatter_(-1, order, True).flatten(-2)
