"""Experts over ranks, a layer's rows in parts: the next part travels while one is computed.

Tutel (arXiv:2206.03382, section 3.3) calls the number of parts the pipelining degree. Routing,
load, capacity and losses are of the whole; each part has as many rows of every expert, so parts
are as even as the whole is. Weights of experts are gathered once for all parts.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forge.models.dispatch import Order, Room
from forge.models.router import Routed
from forge.parallel.collectives import exchange_counts
from forge.parallel.overlap.in_flight import InFlight, pipelined


class RowsInParts:
    """Mixin of a mixture whose ranks exchange rows: in training, in `overlap_degree` parts."""

    over_ep: dist.ProcessGroup
    overlap_degree: int

    def mix(self, x: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """x: [tokens, dim] -> [tokens, dim]."""
        if rows is None and in_training(self):
            found = order_of_parts(found, self.overlap_degree)
        return super().mix(x, routed, found, rows)  # type: ignore[misc]

    def run_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [n, dim], in training as `order_of_parts` sorts rows; counts: [experts]."""
        if not in_training(self):
            return super().run_experts(x, counts)  # type: ignore[misc]
        moe: Any = self
        of_ranks = counts.unflatten(0, (self.over_ep.size(), -1))
        come = exchange_counts(counts, self.over_ep).view_as(of_ranks)  # [rank, own expert]
        # A sender's pieces follow from its counts: parts need no further exchange, and one wait.
        sent, received = (sizes_of_parts(n, self.overlap_degree) for n in (of_ranks, come))
        send, receive = torch.stack((sent.sum(-1), received.sum(-1))).tolist()

        def in_parts(x: Tensor) -> Tensor:
            name, parts = self.over_ep.group_name, x.split([sum(sizes) for sizes in send])

            def begin(part: int) -> InFlight:
                return InFlight(parts[part], "exchange_rows", send[part], receive[part], name)

            def compute(part: int, rows: Tensor) -> InFlight:
                y = moe.run_received(rows, received[part], moe.experts.forward)
                return InFlight(y, "exchange_rows", receive[part], send[part], name)

            return torch.cat(pipelined(self.overlap_degree, begin, compute))

        return moe.experts.with_weights(in_parts, x)

    def run_equal(self, x: Tensor) -> Tensor:
        """x: [experts, rows, dim] -> [experts, rows, dim]; every rank has as many rows."""
        if not in_training(self):
            return super().run_equal(x)  # type: ignore[misc]
        return self.experts.with_weights(self._equal_in_parts, x)  # type: ignore[attr-defined]

    def _equal_in_parts(self, x: Tensor) -> Tensor:
        experts, ranks = self.experts, self.over_ep.size()  # type: ignore[attr-defined]
        ones, parts = [1] * ranks, x.tensor_split(min(self.overlap_degree, x.shape[1]), 1)

        def exchanged(x: Tensor) -> InFlight:
            rows = x.reshape(ranks, -1)
            return InFlight(rows, "exchange_rows", ones, ones, self.over_ep.group_name)

        def compute(part: int, rows: Tensor) -> InFlight:
            _, size, dim = parts[part].shape
            rows = rows.view(ranks, -1, size, dim).transpose(0, 1).flatten(1, 2)
            # Of the class: FSDP's method would gather the weights again.
            y = type(experts).equal(experts, rows)
            return exchanged(y.unflatten(1, (ranks, size)).transpose(0, 1))

        results = pipelined(len(parts), lambda part: exchanged(parts[part]), compute)
        return torch.cat([y.view_as(part) for y, part in zip(results, parts, strict=True)], 1)


class TokensInParts:
    """Mixin of a mixture whose ranks gather tokens: in training, in `overlap_degree` parts."""

    over_ep: dist.ProcessGroup
    overlap_degree: int

    def mix_gathered(self, x: Tensor, routing: tuple[Tensor, ...]) -> Tensor:
        """x: [tokens, dim] of this rank -> [tokens, dim]; routing: of all ranks' tokens."""
        moe: Any = self
        ranks, name = self.over_ep.size(), self.over_ep.group_name
        lengths = [len(part) for part in x.detach().tensor_split(min(self.overlap_degree, len(x)))]

        def in_parts(x: Tensor, *routing: Tensor) -> Tensor:
            parts = x.split(lengths)
            cut = [
                [part.flatten(0, 1) for part in each.unflatten(0, (ranks, -1)).split(lengths, 1)]
                for each in routing
            ]

            def begin(part: int) -> InFlight:
                return InFlight(parts[part], "gather", ranks, name)

            def compute(part: int, rows: Tensor) -> InFlight:
                of_part = [each[part] for each in cut]
                y = moe.outputs_here(rows, of_part, moe.experts.forward)
                return InFlight(y, "scatter_sum", ranks, name)

            return torch.cat(pipelined(len(parts), begin, compute))

        return moe.experts.with_weights(in_parts, x, *routing)


def in_training(moe: Any) -> bool:
    """Whether a mixture runs forward and backward, and not to evaluate or generate."""
    return moe.training and torch.is_grad_enabled()


def sizes_of_parts(counts: Tensor, parts: int) -> Tensor:
    """Cut counts into `parts` pieces that differ by 1 at most: [...] -> [parts, ...]."""
    edges = torch.arange(parts + 1, device=counts.device).view(-1, *[1] * counts.dim())
    return ((edges * counts + parts - 1) // parts).diff(dim=0)


def order_of_parts(found: Order, parts: int) -> Order:
    """Sort assignments by part, then by expert, then by token; without a wait.

    Each part has an equal piece of each expert's run. The result's `starts` are those of `found`,
    for a capacity alone.
    """
    counts, index = found.counts.sum(0), torch.arange(len(found.expert), device=found.expert.device)
    number = index - (counts.cumsum(0) - counts)[found.expert]  # in the expert's run
    part = number * parts // counts[found.expert]
    sizes = sizes_of_parts(counts, parts)
    piece = part * len(counts) + found.expert
    before = (sizes.cumsum(0) - sizes).flatten()[piece]
    first = (sizes.flatten().cumsum(0) - sizes.flatten())[piece]
    place = first + number - before
    order = torch.empty_like(index).scatter_(0, place, index)
    return found._replace(
        by_expert=found.by_expert[order],
        place=place[found.place],
        expert=found.expert[order],
        scope=found.scope[order],
        rank=found.rank[order],
    )
