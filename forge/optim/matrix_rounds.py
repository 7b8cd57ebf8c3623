"""Matrices laid out over ranks, each computed as a whole on the rank that owns it.

Every rank of a group is the owner of some matrices. The owner gets all parts of a matrix, computes,
and sends each rank its part of the result; during the computation the next matrix is on its way to
the owner and the last result on its way to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from forge.optim.matrix import Compute, Done, Extras, Matrix, length_of
from forge.tensors.local import cut_dim, owned


class MatrixRounds:
    """Matrices of this rank's groups, in rounds with at most one matrix for each owner."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        by_group: dict[dist.ProcessGroup, list[Matrix]] = {}
        for matrix in matrices:
            assert matrix.group is not None, "this rank has the whole matrix"
            by_group.setdefault(matrix.group, []).append(matrix)
        self.rounds: list[tuple[dist.ProcessGroup, tuple[Matrix, ...]]] = [
            (group, round_matrices)
            for group, members in by_group.items()
            for round_matrices in _rounds(members, group)
        ]

    def begin(
        self,
        values: dict[Matrix, Tensor],
        compute: Compute,
        extras: Extras,
        done: Done,
        dtype: Callable[[Matrix], torch.dtype] | None,
    ) -> Callable[[], None]:
        """Compute all rounds, as in `WholeMatrices`. The function returned waits for the results of
        the last round.
        """
        coming = self._gather(0, values)
        waiting: Callable[[], None] | None = None
        for number in range(len(self.rounds)):
            gathered = coming()
            # The next matrices are on their way while this round computes.
            coming = self._gather(number + 1, values)
            sent = self._scatter(number, gathered, values, compute, extras, done, dtype)
            if waiting is not None:
                waiting()
            waiting = sent
        assert waiting is not None, "there is a round"
        return waiting

    def _gather(self, number: int, values: dict[Matrix, Tensor]) -> Callable[[], Tensor | None]:
        """Begin to send the matrices of a round to the owners. The function returned waits, and
        returns this rank's matrix.
        """
        if number >= len(self.rounds):
            return lambda: None
        group, matrices = self.rounds[number]
        group_rank = group.rank()
        mine = next((matrix for matrix in matrices if matrix.owner == group_rank), None)
        by_owner = {matrix.owner: matrix for matrix in matrices}
        sends = [
            by_owner[owner].sends(group_rank) if owner in by_owner else 0
            for owner in range(group.size())
        ]
        parts = [values[by_owner[owner]].flatten() for owner, size in enumerate(sends) if size]
        like = values[matrices[0]]
        receives = [mine.sends(rank) if mine else 0 for rank in range(group.size())]
        out = like.new_empty(sum(receives))
        send = torch.cat(parts) if parts else like.new_empty(0)
        work: Any = dist.all_to_all_single(out, send, receives, sends, group=group, async_op=True)

        def wait() -> Tensor | None:
            work.wait()
            _ = send  # referenced until sent
            if mine is None:
                return None
            gathered = like.new_empty(mine.shape)
            for rank, part in enumerate(out.split(receives)):
                if len(part):
                    rows, columns, _ = mine.boxes[rank]
                    _put(gathered, rows, columns, part)
            return gathered

        return wait

    def _scatter(
        self,
        number: int,
        whole: Tensor | None,
        values: dict[Matrix, Tensor],
        compute: Compute,
        extras: Extras,
        done: Done,
        dtype: Callable[[Matrix], torch.dtype] | None,
    ) -> Callable[[], None]:
        """Compute this rank's matrix of a round, and begin to send each rank its part. The function
        returned waits, and passes the parts received to `done`.
        """
        group, matrices = self.rounds[number]
        group_rank, size = group.rank(), group.size()
        by_owner = {matrix.owner: matrix for matrix in matrices}
        first = matrices[0]
        # A rank that owns no matrix of the round receives in the format of the others' results.
        send = values[first].new_empty(0, dtype=dtype(first) if dtype else None)
        sends = [0] * size
        if whole is not None:
            mine = by_owner[group_rank]
            result, extra_values = compute(mine, whole)
            result = result.to(send.dtype)
            flat = [extra.to(result.dtype).flatten() for extra in extra_values]
            pieces = [torch.cat([mine.part(result, rank).flatten(), *flat]) for rank in range(size)]
            send, sends = torch.cat(pieces), [len(piece) for piece in pieces]
        shapes = {owner: extras(matrix) for owner, matrix in by_owner.items()}
        n_extra = {owner: sum(map(_numel, extra)) for owner, extra in shapes.items()}
        receives = [
            by_owner[owner].numel(group_rank) + n_extra[owner] if owner in by_owner else 0
            for owner in range(size)
        ]
        out = send.new_empty(sum(receives))
        work: Any = dist.all_to_all_single(out, send, receives, sends, group=group, async_op=True)

        def wait() -> None:
            work.wait()
            _ = send  # referenced until sent
            for owner, part in enumerate(out.split(receives)):
                if owner in by_owner:
                    matrix = by_owner[owner]
                    values_of, *extra_values = part.split(
                        [matrix.numel(group_rank), *map(_numel, shapes[owner])]
                    )
                    extra_values = [
                        extra.view(s) for extra, s in zip(extra_values, shapes[owner], strict=True)
                    ]
                    done(matrix, values_of.view_as(values[matrix]), extra_values)

        return wait


def matrix_over_ranks(
    parameter: DTensor, groups: dict[tuple[int, ...], dist.ProcessGroup]
) -> Matrix:
    """The matrix of a parameter laid out over ranks. groups: of ranks, made once; added to. A
    collective of the parameter's ranks.
    """
    mesh, last = parameter.device_mesh, parameter.ndim - 2
    cuts = [cut_dim(placement) for placement in parameter.placements]
    shared = [axis for axis, dim in enumerate(cuts) if dim is None or dim >= last]
    held = owned(parameter)
    stack = tuple(len(index) for index in held[:last])
    shape = (*stack, *parameter.shape[-2:])
    ranks = _ranks(mesh, shared)
    if len(ranks) == 1:
        return Matrix(parameter, shape)
    # Only the ranks of this group take part: other ranks may hold other stages or stacks.
    if ranks not in groups:
        new_group: Any = dist.new_group(list(ranks), use_local_synchronization=True)
        groups[ranks] = new_group
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    # Along axes without a cut ranks hold copies; the coordinates there name the copy.
    replica = [position for axis, position in enumerate(coordinate) if cuts[axis] is None]
    box = (*(_compact(index) for index in held[last:]), replica)
    boxes: list[Any] = [None] * len(ranks)
    dist.all_gather_object(boxes, box, group=groups[ranks])
    return Matrix(parameter, shape, groups[ranks], boxes)


def _ranks(mesh: DeviceMesh, axes: Sequence[int]) -> tuple[int, ...]:
    """The ranks that differ from this rank along some axes only."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    selector = tuple(
        slice(None) if a in axes else position for a, position in enumerate(coordinate)
    )
    return tuple(sorted(mesh.mesh[selector].flatten().tolist()))


def _rounds(matrices: Sequence[Matrix], group: dist.ProcessGroup) -> list[tuple[Matrix, ...]]:
    """Give each matrix an owner, the costliest first to the least loaded rank, and arrange the
    matrices in rounds with at most one matrix for each owner.
    """
    loads = [0] * group.size()
    of_owner: list[list[Matrix]] = [[] for _ in loads]
    for matrix in sorted(matrices, key=lambda m: -m.cost):
        matrix.owner = loads.index(min(loads))
        loads[matrix.owner] += matrix.cost
        of_owner[matrix.owner].append(matrix)
    return [tuple(m for m in round_matrices if m) for round_matrices in zip_longest(*of_owner)]


def _compact(index: Tensor) -> slice | Tensor:
    """Turn consecutive indices into a slice."""
    start, length = int(index[0]) if len(index) else 0, len(index)
    if torch.equal(index, torch.arange(start, start + length)):
        return slice(start, start + length)
    return index


def _put(whole: Tensor, rows: slice | Tensor, columns: slice | Tensor, part: Tensor) -> None:
    shape = (*whole.shape[:-2], length_of(rows), length_of(columns))
    if isinstance(rows, Tensor) or isinstance(columns, Tensor):
        index = [_indices(axis).to(whole.device) for axis in (rows, columns)]
        whole[..., index[0][:, None], index[1]] = part.view(shape)
    else:
        whole[..., rows, columns] = part.view(shape)


def _indices(index: slice | Tensor) -> Tensor:
    return torch.arange(index.start, index.stop) if isinstance(index, slice) else index


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
