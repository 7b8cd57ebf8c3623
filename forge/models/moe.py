"""The mixture of experts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forge.build import build_part
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.moe import MoE as MoEConfig
from forge.config.model.moe import n_moe_layers
from forge.models.dispatch import (
    Order,
    Room,
    assign_rows,
    capacity,
    empty,
    fill_rows,
    rearrange,
    scale_gradient,
    sort_assignments,
    spread_tokens,
)
from forge.models.experts import Experts
from forge.models.feed_forward import FeedForward
from forge.models.norm import make_norm
from forge.models.router import Routed, Router
from forge.models.routing_losses import balance_loss, entropy, router_z_loss
from forge.models.routing_record import RoutingRecord
from forge.tensors.wide import widest


class MoE(nn.Module):
    """The weighted outputs of the experts chosen by the router for a token, plus the shared
    experts; or the outputs of weighted inputs. A dense layer may be added.

    Quantities not linear in tokens (load balance, capacity, gradient scale) are counted over a
    scope: each sequence, or the whole micro-batch, masked targets too.

    In training an expert with a capacity takes the first tokens of the scope that choose the
    expert, as their best or their last choice, so that no token's experts depend on a later token.
    The other assignments are dropped, and add nothing. In evaluation and generation nothing is
    dropped.
    """

    summands = 1
    """Number of ranks that each compute a summand of the layer's output and gradients."""

    kept_names = {"router": "router", "shared_gate": "router"}  # noqa: RUF012
    """Names of the modules' outputs in `train.recompute`."""

    pieces = 1
    """This rank's number of runs of consecutive tokens in a sequence."""

    def __init__(self, section: DecoderConfig, layer: int = 0) -> None:
        super().__init__()
        self.section: MoEConfig = section.moe
        self.number = n_moe_layers(section.moe, layer)
        self.router = Router(section.moe, section.dim, section.norm_eps)
        self.experts = Experts(section)
        shared = section.moe.shared_width(section)
        self.shared = FeedForward(section, shared) if shared else None
        gated = shared and section.moe.shared_expert_gate
        self.shared_gate = nn.Linear(section.dim, 1, bias=False) if gated else None
        self.input_norm = make_norm(section) if section.moe.branch_norms else None
        beside = section.moe.beside_dense and not section.moe.branch_norms
        self.dense = build_part(section.feed_forward, section) if beside else None
        self.record = RoutingRecord(section.moe.num_experts)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, seq, dim] -> [batch, seq, dim]."""
        section, routed = self.section, self.router(x.flatten(0, 1))
        x = x if self.input_norm is None else self.input_norm(x)
        flat = x.flatten(0, 1)
        # Where ranks cut sequences, each run has other earlier tokens, and is counted alone.
        sequences, per_sequence = len(x) * self.pieces, self._per_sequence or not self.in_order
        assignments = sort_assignments(
            routed.experts, section.num_experts, sequences, per_sequence=per_sequence
        )
        limited = self.training and section.capacity_factor > 0
        rows = self._room(assignments, len(flat)) if limited else None
        y = self.mix(flat, routed, assignments, rows).view_as(x)
        if self.shared is not None:
            shared = self.shared(x)
            gate = self.shared_gate
            y = y + (shared if gate is None else shared * gate(x).sigmoid())
        if self.dense is not None:
            y = y + self.dense(x)
        if self.training and torch.is_grad_enabled():
            return self._recorded(y, routed, assignments, rows)
        return y

    def mix(self, x: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """Sum the weighted outputs of the experts of each token: [tokens, dim] -> [tokens, dim]."""
        entering = spread_tokens(x, found)
        if self.section.score_on_input:
            weights = rearrange(routed.weights.view(-1, 1), found.by_expert, found.place)
            entering = (entering * weights).to(x.dtype)
        return self._sum(self._experts(entering, found, rows), routed, found, rows)

    def run_experts(self, x: Tensor, counts: Tensor) -> Tensor:
        """Run the experts on x: [n, dim], sorted by expert; counts: [experts] -> [n, dim]."""
        return self.experts(x, counts)

    def run_equal(self, x: Tensor) -> Tensor:
        """Run the experts on equally many rows, [experts, rows, dim] -> [experts, rows, dim]."""
        return self.experts.equal(x)

    def scope_counts(self, counts: Tensor, *, per_sequence: bool) -> Tensor:
        """Sum counts: [scopes, experts] of this rank's tokens over all ranks with tokens of the
        scopes.

        per_sequence: each sequence is a scope; else all sequences are a single scope.
        """
        return counts

    def earlier_counts(self, counts: Tensor, *, per_sequence: bool) -> Tensor:
        """Sum counts: [scopes, experts] over the scopes' tokens before this rank's tokens."""
        return torch.zeros_like(counts)

    def parts_of_scope(self, scopes: int, *, per_sequence: bool) -> int:
        """Number of rows of counts, of `scopes` on each rank, in a scope."""
        return 1

    @property
    def in_order(self) -> bool:
        """Whether no other rank has tokens in between this rank's tokens."""
        return True

    def _experts(self, x: Tensor, found: Order, rows: Room | None) -> Tensor:
        """Run the experts on x: [n, dim], sorted by expert -> [n, dim], 0 where dropped."""
        scaled = self.section.gradient_scale and self.training
        factor = self.gradient_factor(found, rows) if scaled else None
        if factor is not None:
            x = scale_gradient(x, 1 / factor)  # so that gradients of earlier layers do not change
        if rows is None:
            y = self.run_experts(x, found.counts.sum(0))
        else:
            filled = fill_rows(x, rows).unflatten(0, (found.counts.shape[1], -1))
            y = empty(self.run_equal(filled).flatten(0, 1), rows)
        return y if factor is None else scale_gradient(y, factor)

    def _sum(self, y: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """Sum y: [n, dim], sorted by expert, weighted, in fp32 -> [tokens, dim]."""
        weights = routed.weights
        if self.section.score_on_input:
            y = rearrange(y, found.place, found.by_expert).unflatten(0, weights.shape)
            return y.sum(1, dtype=weights.dtype).to(y.dtype)
        if rows is not None:
            weights = weights * rows.kept[found.place].view_as(weights)
        outputs = rearrange(y, found.place, found.by_expert).unflatten(0, weights.shape)
        return (outputs * weights.unsqueeze(-1)).sum(1).to(y.dtype)

    def _room(self, found: Order, tokens: int) -> Room:
        """The experts' rows for this rank's tokens, out of the rows for whole scopes."""
        section, per_sequence = self.section, self._per_sequence
        tokens //= len(found.counts)
        in_scope = tokens * self.parts_of_scope(len(found.counts), per_sequence=per_sequence)
        size = capacity(section.capacity_factor, in_scope, section.top_k, section.num_experts)
        free = (size - self.earlier_counts(found.counts, per_sequence=per_sequence)).clamp(min=0)
        return assign_rows(found, min(size, tokens), free)

    def gradient_factor(self, found: Order, rows: Room | None) -> Tensor:
        """The even load in the scope over the expert's load, of kept assignments, [n] in sorted
        order.

        The gradient of an expert's weights is a sum over the expert's tokens; the factor divides by
        the expert's relative load.
        """
        counts = found.counts
        if rows is not None:
            flat, index = counts.flatten(), found.scope * counts.shape[1] + found.expert
            kept_counts = torch.zeros_like(flat).scatter_add(0, index, rows.kept.long())
            counts = kept_counts.view_as(counts)
        counts = self.scope_counts(counts, per_sequence=self._per_sequence)
        counts = counts.to(widest(counts.device))
        factor = counts.sum(1, keepdim=True) / (counts.clamp(min=1) * counts.shape[1])
        return factor[found.scope, found.expert]

    @property
    def _per_sequence(self) -> bool:
        return self.section.balance_scope == "sequence"

    def _recorded(self, y: Tensor, routed: Routed, found: Order, rows: Room | None) -> Tensor:
        """Attach the auxiliary losses and the record to y."""
        section, zero = self.section, routed.logits.new_zeros(())
        aux = sequence_aux = z = zero
        if section.aux_loss_weight:
            counts = self.scope_counts(found.counts, per_sequence=self._per_sequence)
            aux = balance_loss(routed.shares, counts)
        if section.sequence_aux_loss_weight:
            counts = self.scope_counts(found.of_sequences, per_sequence=True)
            sequence_aux = balance_loss(routed.shares, counts)
        if section.z_loss_weight:
            z = router_z_loss(routed.logits)
        loss = section.aux_loss_weight * aux + section.sequence_aux_loss_weight * sequence_aux
        loss = loss + section.z_loss_weight * z
        dropped = zero if rows is None else (~rows.kept).sum().to(zero.dtype)
        tokens = zero + len(routed.logits)
        sums = [tokens, entropy(routed.shares), dropped, aux, sequence_aux, z]
        return self.record.attach(y, loss, found.counts.sum(0), torch.stack(sums).detach())


def mixtures_of(model: nn.Module) -> list[MoE]:
    """All mixtures of experts inside of a model, in the order of its layers."""
    return [module for module in model.modules() if isinstance(module, MoE)]
