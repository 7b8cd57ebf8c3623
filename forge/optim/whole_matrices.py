"""Whole matrices for optimizers that need them: those of this rank, and of all its groups.

A stack of matrices with whole matrices on each rank, such as experts, is computed in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.optim.matrix import Compute, Done, Extras, Matrix
from forge.optim.matrix_rounds import MatrixRounds, matrix_over_ranks


class WholeMatrices:
    """Computes with whole matrices of `parameters`; all ranks construct and call together."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self.matrices = [
            matrix_over_ranks(parameter, groups)
            if isinstance(parameter, DTensor)
            else Matrix(parameter, tuple(parameter.shape))
            for parameter in parameters
        ]
        over_ranks = [matrix for matrix in self.matrices if matrix.group is not None]
        self.rounds = MatrixRounds(over_ranks) if over_ranks else None

    def __call__(
        self,
        values: dict[Matrix, Tensor],
        compute: Compute,
        extras: Extras,
        done: Done,
        dtype: Callable[[Matrix], torch.dtype] | None = None,
    ) -> None:
        """Compute all matrices. values: the local part of each matrix. dtype: format of the
        results; None = of the values.
        """
        wait: Callable[[], None] | None = None
        if self.rounds is not None:
            wait = self.rounds.begin(values, compute, extras, done, dtype)
        for matrix in self.matrices:
            if matrix.group is None:
                done(matrix, *compute(matrix, values[matrix]))
        if wait is not None:
            wait()
