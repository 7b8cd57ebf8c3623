"""The mixture of experts: a feed-forward layer of which each token meets a part."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forge.config.model import Decoder as DecoderConfig
from forge.config.moe import MoE as MoEConfig
from forge.config.moe import n_moe_layers
from forge.models.dispatch import (
    Order,
    Room,
    capacity,
    empty,
    fill,
    gather,
    order,
    room,
    scale_gradient,
    spread,
)
from forge.models.experts import Experts
from forge.models.feed_forward import FeedForward
from forge.models.router import Routed, Router
from forge.models.routing_losses import balance_loss, entropy, router_z_loss
from forge.models.routing_record import RoutingRecord


class MoE(nn.Module):
    """Sum of the outputs of the experts that the router chooses for a token, weighted, and of the
    shared experts.

    What is not linear in tokens, load balance, capacity and gradient scale, is counted over a
    scope: each sequence, or the whole micro-batch. Every token counts that is routed, also where
    its target is masked.

    In training an expert with a capacity takes the first tokens of the scope that choose it, as
    their best or as their last choice, in the order of the sequence, so that no token's experts
    depend on a later one; the rest is dropped: it is not computed, and adds nothing. In evaluation
    and generation nothing is dropped.
    """

    summands = 1
    """How many ranks find, each, a summand of this layer's output and of its gradients."""

    pieces = 1
    """The runs of tokens that are here of a sequence, one after another, which are counted apart.
    """

    def __init__(self, section: DecoderConfig, layer: int = 0) -> None:
        """layer: of which one of the model's blocks this is."""
        super().__init__()
        self.section: MoEConfig = section.moe
        self.number = n_moe_layers(section.moe, layer)
        self.router = Router(section.moe, section.dim)
        self.experts = Experts(section)
        shared = section.moe.shared_experts * section.expert_hidden_dim
        self.shared = FeedForward(section, shared) if shared else None
        self.record = RoutingRecord(section.moe.num_experts)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        section, flat = self.section, x.flatten(0, 1)
        routed = self.router(flat)
        found = order(
            routed.experts,
            section.num_experts,
            len(x) * self.pieces,
            apart=self._apart or not self.in_order,
        )
        rows = (
            self._room(found, len(flat)) if self.training and section.capacity_factor > 0 else None
        )
        y = self._sum(self._experts(spread(flat, found), found, rows), routed, found, rows).view_as(
            x
        )
        if self.shared is not None:
            y = y + self.shared(x)
        return (
            self._recorded(y, routed, found, rows)
            if self.training and torch.is_grad_enabled()
            else y
        )

    def run_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """x: [n, dim], sorted by expert; counts: [experts] -> [n, dim]. Expert parallelism
        exchanges tokens around this.
        """
        return self.experts(x, counts)

    def run_equal(self, x: Tensor) -> Tensor:
        """The same with as many rows for each expert: [experts, rows, dim] -> [experts, rows, dim]."""
        return self.experts.equal(x)

    def whole(self, counts: Tensor, *, apart: bool) -> Tensor:
        """counts: [scopes, experts], of the tokens here -> of all tokens of the scopes, some of
        which are in other rows or on other ranks.

        apart: whether each sequence is a scope, or all sequences are one.
        """
        return counts

    def earlier(self, counts: Tensor, *, apart: bool) -> Tensor:
        """The same, of those tokens of the scopes that come before them."""
        return torch.zeros_like(counts)

    def parts(self, scopes: int, *, apart: bool) -> int:
        """How many times the tokens that a row of counts, of so many, is of are those of a whole
        scope.
        """
        return 1

    @property
    def in_order(self) -> bool:
        """Whether the tokens of a micro-batch that are here follow one another without those that
        other ranks have in between.
        """
        return True

    def _experts(self, x: Tensor, found: Order, rows: Room | None) -> Tensor:
        """x: [n, dim], sorted by expert -> [n, dim], 0 where dropped."""
        factor = (
            self._gradient_factor(found, rows)
            if self.section.gradient_scale and self.training
            else None
        )
        if factor is not None:
            x = scale_gradient(
                x, 1 / factor
            )  # so that what goes on to the layers below is as it was
        if rows is None:
            y = self.run_experts(x, found.counts.sum(0))
        else:
            y = empty(
                self.run_equal(fill(x, rows).unflatten(0, (found.counts.shape[1], -1))).flatten(
                    0, 1
                ),
                rows,
            )
        return y if factor is None else scale_gradient(y, factor)

    def _sum(self, y: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """y: [n, dim], sorted by expert -> [tokens, dim], the weighted sum, in the weights' fp32."""
        weights = routed.weights
        if rows is not None:
            weights = weights * rows.kept[found.place].view_as(weights)
        each = gather(y, found).unflatten(0, weights.shape)
        return (each * weights.unsqueeze(-1)).sum(1).to(y.dtype)

    def _room(self, found: Order, tokens: int) -> Room:
        """The rows that experts have for the tokens here, of what they have for whole scopes."""
        section, apart = self.section, self._apart
        tokens //= len(found.counts)
        size = capacity(
            section.capacity_factor,
            tokens * self.parts(len(found.counts), apart=apart),
            section.top_k,
            section.num_experts,
        )
        left = (size - self.earlier(found.counts, apart=apart)).clamp(min=0)
        return room(found, min(size, tokens), left)

    def _gradient_factor(self, found: Order, rows: Room | None) -> Tensor:
        """[n], in sorted order: the even load of an expert in the scope over its own; dropped
        assignments are no load.

        The gradient of an expert's weights is a sum over its tokens, so the busy ones learn faster;
        this divides by how busy it is.
        """
        counts = found.counts
        if rows is not None:
            kept = rows.kept.long()
            flat = torch.zeros_like(counts).flatten()
            counts = flat.scatter_add(
                0, found.scope * counts.shape[1] + found.expert, kept
            ).view_as(counts)
        counts = self.whole(counts, apart=self._apart).double()
        factor = counts.sum(1, keepdim=True) / (counts.clamp(min=1) * counts.shape[1])
        return factor[found.scope, found.expert]

    @property
    def _apart(self) -> bool:
        return self.section.balance_scope == "sequence"

    def _recorded(self, y: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """y, with the auxiliary losses and the record of the micro-batch behind it."""
        section, none = self.section, routed.logits.new_zeros(())
        aux = sequence_aux = z = none
        if section.aux_loss_weight:
            aux = balance_loss(routed.shares, self.whole(found.counts, apart=self._apart))
        if section.sequence_aux_loss_weight:
            sequence_aux = balance_loss(routed.shares, self.whole(found.of_sequences, apart=True))
        if section.z_loss_weight:
            z = router_z_loss(routed.logits)
        loss = (
            section.aux_loss_weight * aux
            + section.sequence_aux_loss_weight * sequence_aux
            + section.z_loss_weight * z
        )
        dropped = none if rows is None else (~rows.kept).sum().to(none.dtype)
        tokens = none + len(routed.logits)
        sums = torch.stack(
            [
                tokens,
                entropy(routed.shares),
                dropped,
                aux.detach(),
                sequence_aux.detach(),
                z.detach(),
            ]
        )
        return self.record.attach(y, loss, found.counts.sum(0), sums)
