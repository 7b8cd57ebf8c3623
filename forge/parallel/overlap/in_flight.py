"""Collectives begun before their results are needed, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forge.parallel.collectives import ops


class InFlight:
    """A collective of x that was begun; `arrive` waits for the result.

    Backward, the collective of the gradient is begun where this one arrived, and waited for where
    this one was begun. Work between the two runs beside the collective in both directions. On a
    GPU no wait is the host's: NCCL has a stream of its own.

    name: of a pair in BEGINNINGS; args: of the collective.
    """

    def __init__(self, x: Tensor, name: str, *args: Any) -> None:
        self.name, self.args = name, args
        self.result: Tensor | None = None
        self.begun: Tensor | None = _Begun.apply(x, self)

    def arrive(self) -> Tensor:
        """Wait for the result; once."""
        begun, self.begun = self.begun, None
        return _Arrived.apply(begun, self)

    def abandon(self) -> None:
        """Wait, if nobody has, for a result that nothing will read."""
        result, self.result, self.begun = self.result, None, None
        if result is not None:
            ops.wait_tensor(result)


class _Begun(torch.autograd.Function):
    """Begins the collective and returns x: a gradient has the shape of x, not of the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flight: InFlight) -> Tensor:
        flight.result = BEGINNINGS[flight.name][0](x.contiguous(), *flight.args)
        return torch.ops.aten._unsafe_view(x, x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ops.wait_tensor(gradient), None


class _Arrived(torch.autograd.Function):
    """Waits for the result; backward begins the collective of the gradient, for `_Begun`."""

    @staticmethod
    def forward(ctx: Any, begun: Tensor, flight: InFlight) -> Tensor:
        ctx.name, ctx.args = flight.name, flight.args
        result, flight.result = flight.result, None
        assert result is not None, "arrived before"
        return ops.wait_tensor(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Nothing reads the result on its way to `_Begun`: an edge of the graph only passes it on.
        return BEGINNINGS[ctx.name][1](gradient.contiguous(), *ctx.args), None


def _rows(x: Tensor, send: list[int], receive: list[int], group: str) -> Tensor:
    return ops.all_to_all_single(x, receive, send, group)


def _rows_back(x: Tensor, send: list[int], receive: list[int], group: str) -> Tensor:
    return ops.all_to_all_single(x, send, receive, group)


def _gather(x: Tensor, ranks: int, group: str) -> Tensor:
    return ops.all_gather_into_tensor(x, ranks, group)


def _scatter_sum(x: Tensor, ranks: int, group: str) -> Tensor:
    return ops.reduce_scatter_tensor(x, "sum", ranks, group)


BEGINNINGS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "exchange_rows": (_rows, _rows_back),
    "gather": (_gather, _scatter_sum),
    "scatter_sum": (_scatter_sum, _gather),
}
"""By name: beginnings of a collective along dimension 0, and of its gradient's collective."""


def pipelined(
    number: int, send: Callable[[int], InFlight], compute: Callable[[int, Tensor], InFlight]
) -> list[Tensor]:
    """Send, compute and return `number` parts; the results of the parts, in order.

    send: begins the way there of a part. compute: the work on a part that arrived, which begins
    the way back. The next part is on its way while a part is computed, as are results.
    """
    flights = [send(0)]
    leaving: list[InFlight] = []
    try:
        for part in range(number):
            if part + 1 < number:
                flights.append(send(part + 1))
            leaving.append(compute(part, flights[part].arrive()))
        return [flight.arrive() for flight in leaving]
    finally:
        # Recomputation ends by an exception once it has what backward needs.
        for flight in (*flights, *leaving):
            flight.abandon()
