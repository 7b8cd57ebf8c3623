"""NorMuon: Muon with rows, or columns, scaled by a second moment."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

from forge.config.optimizers.muon import NorMuon as NorMuonSection
from forge.optim.matrix import Matrix
from forge.optim.muon import Muon, norm
from forge.tensors.local import cut_dim, local, owned, select
from forge.tensors.wide import wide_dtype

LEAST = 1e-10


class NorMuon(Muon):
    """Muon with momentum rows scaled to equal length, and with an orthogonal update divided by the
    root of a moving mean of the squares of each row, or of each column of a wide matrix, at
    unchanged norm (arXiv:2510.05491, as in nanochat).
    """

    def __init__(self, params: list[dict[str, Any]], section: NorMuonSection) -> None:
        super().__init__(params, section)
        self.section: NorMuonSection = section

    def orthogonal(
        self, matrix: Matrix, momentum: Tensor, bad: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        x = self.orthogonalized(matrix, momentum).to(wide_dtype(matrix.parameter))
        shape = self.section.second_moment_shape(tuple(x.shape))
        if not shape:
            return x, []
        squares = x.square().mean(-1 if shape[-1] == 1 else -2, keepdim=True)
        second = self._second_moment(matrix, squares)
        moved = second.lerp(squares, 1 - self.section.beta2)
        second = moved if bad is None else torch.where(bad, second, moved)
        scaled = x * second.clamp_min(LEAST).rsqrt()
        return scaled * (norm(x) / norm(scaled).clamp_min(LEAST)), [second]

    def result_dtype(self, matrix: Matrix) -> torch.dtype:
        return wide_dtype(matrix.parameter)

    def kept_shapes(self, matrix: Matrix) -> list[tuple[int, ...]]:
        shape = self.section.second_moment_shape(matrix.shape)
        return [shape] if shape else []

    def keep(self, matrix: Matrix, kept: list[Tensor]) -> None:
        """Store the second moment, whole on each rank of the group; stacks are cut as the
        parameter is.
        """
        if not kept:
            return
        (second,), parameter = kept, matrix.parameter
        second = second.to(wide_dtype(parameter))
        if isinstance(parameter, DTensor):
            last = parameter.ndim - 2
            placements = [
                placement if (dim := cut_dim(placement)) is not None and dim < last else Replicate()
                for placement in parameter.placements
            ]
            shape = torch.Size((*parameter.shape[:last], *second.shape[-2:]))
            stride = torch.empty(shape, device="meta").stride()
            second = DTensor.from_local(
                second,
                parameter.device_mesh,
                placements,
                run_check=False,
                shape=shape,
                stride=stride,
            )
        self.state[parameter]["second_moment"] = second

    def _second_moment(self, matrix: Matrix, like: Tensor) -> Tensor:
        saved = self.state[matrix.parameter].get("second_moment")
        if saved is None:
            return torch.zeros_like(like)
        if isinstance(saved, DTensor) or not isinstance(matrix.parameter, DTensor):
            return local(saved)
        return select(saved, owned(matrix.parameter)[:-2])  # whole, from a checkpoint
