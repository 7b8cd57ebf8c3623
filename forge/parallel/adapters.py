"""Adapters whose rows tensor parallelism cuts: their lengths are found over all ranks."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from forge.adapters.experts import AdaptedExperts
from forge.adapters.lora import AdaptedLinear
from forge.models.decoder import Decoder
from forge.parallel.collectives import sum_over
from forge.parallel.mesh import Mesh
from forge.parallel.modules import mix_in


def spread_adapters(model: nn.Module, mesh: Mesh) -> None:
    """Tell each adapted matrix whose columns are cut over tp which are here, and have it add the
    squares of all of them.
    """
    assert isinstance(model, Decoder), model
    group, size = mesh.tp.get_group(), mesh.tp.size()
    for name, module in model.named_modules():
        if isinstance(module, AdaptedLinear):
            if model.table[f"{name}.weight"].cut(size) == 1:
                mix_in(module, Lengths, rows_over=group)
                if (drops := module.lora_dropout) is not None:
                    drops.first = mesh.tp.get_local_rank() * (module.lora_a.shape[1])
        elif isinstance(module, AdaptedExperts):
            cut = {own for own in module.scaling if model.table[f"{name}.{own}"].cut(size) == 2}
            mix_in(module, LengthsOfExperts, rows_over=group, cut_rows=cut)


class Lengths(nn.Module):
    """Mixin of a linear layer."""

    rows_over: dist.ProcessGroup

    def total(self, squares: Tensor) -> Tensor:
        return sum_over(squares, self.rows_over)


class LengthsOfExperts(nn.Module):
    """Mixin of experts."""

    rows_over: dist.ProcessGroup
    cut_rows: set[str]

    def total(self, squares: Tensor, name: str) -> Tensor:
        return sum_over(squares, self.rows_over) if name in self.cut_rows else squares
