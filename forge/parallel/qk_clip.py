"""QK-Clip (arXiv:2507.20534, algorithm 1): weights of queries and keys whose logits grew too large
are scaled down after the update, head by head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forge.models.contract import StepReport
from forge.parallel.mesh import Mesh
from forge.parallel.modules import blocks_of, mix_in
from forge.tensors.local import local, owned

QUERIES = 512
"""Queries with logits in memory at a time."""


def clip_logits(model: Any, threshold: float, mesh: Mesh | None) -> None:
    """Have the attention of a model or a stage clip its logits, in place.

    Called after heads are cut over tp. A layer names its scaled weights by `of_heads`.
    """
    layers: dict[int, Any] = {}
    for name, block in zip(model.blocks.keys(), blocks_of(model), strict=True):
        for module in list(block.modules()):
            if hasattr(module, "of_heads"):
                mix_in(module, SeesLogits, largest=None)
                layers[int(name)] = module
    section, spread = model.section, mesh is not None and dist.get_world_size() > 1
    tp = mesh.tp.get_local_rank() if mesh is not None else 0
    shape = section.n_layers, section.n_heads
    ranks = mesh.tp.size() if mesh is not None else 1
    model.qk_clip = QKClip(layers, shape, threshold, tp=(tp, ranks), spread=spread)


class SeesLogits:
    """Mixin of attention: keeps the largest logit of each head while it is trained."""

    largest: Tensor | None
    scale: float | None
    window: int
    chunk: int
    training: bool

    def attend(self, q: Tensor, k: Tensor, v: Tensor, seen: Any = None) -> Tensor:
        if self.training and self.largest is not None:
            with torch.no_grad():
                span = {"window": self.window, "chunk": self.chunk}
                block_largest = largest_logits(q, k, scale=self.scale, seen=seen, **span)
                torch.maximum(self.largest, block_largest, out=self.largest)
        return super().attend(q, k, v, seen)  # type: ignore[misc]


@torch.no_grad()
def largest_logits(
    q: Tensor,
    k: Tensor,
    *,
    scale: float | None,
    window: int,
    chunk: int = 0,
    seen: Tensor | None,
) -> Tensor:
    """q: [batch, heads, seq, width], k: [batch, kv_heads, seq, width] -> largest logits [heads].

    Over the visible keys of each query, as in `forge.models.sdpa.causal_attention`; `QUERIES`
    queries at a time.
    """
    seq, keys = q.shape[2], k.shape[2]
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1) if q.shape[1] != k.shape[1] else k
    key_index, maxima = torch.arange(keys, device=q.device), []
    # Attention kernels keep no logits: recompute, in pieces, since seq x seq would not fit.
    for start in range(0, seq, QUERIES):
        part = q[:, :, start : start + QUERIES]
        logits = part @ k.mT
        if seen is not None:
            logits = logits + seen[:, :, start : start + QUERIES]
        else:
            # The last query is at the position of the last key.
            query_index = keys - seq + start + torch.arange(part.shape[2], device=q.device)[:, None]
            behind = query_index - key_index
            hidden = (behind < 0) | (behind >= window if window else False)
            hidden |= (query_index // chunk != key_index // chunk) if chunk else False
            logits = logits.masked_fill(hidden, -torch.inf)
        maxima.append(logits.amax((0, 2, 3)))
    return torch.stack(maxima).amax(0).float() * (q.shape[-1] ** -0.5 if scale is None else scale)


class QKClip(nn.Module):
    """Scales weights after each step by gamma = threshold / largest logit, where gamma is below 1.

    layers: by their numbers. shape: [layers, heads] of the whole model. tp: rank and number of the
    ranks with cut heads. spread: whether there are other ranks.
    """

    def __init__(
        self,
        layers: dict[int, Any],
        shape: tuple[int, int],
        threshold: float,
        *,
        tp: tuple[int, int],
        spread: bool,
    ) -> None:
        super().__init__()
        self.layers, self.shape, self.threshold = layers, shape, threshold
        self.tp, self.spread = tp, spread

    def begin_step(self, scale: Tensor | float) -> None:
        for layer in self.layers.values():
            if layer.largest is None:
                queries, powers = layer.of_heads()[0]
                weight = next(queries.parameters(recurse=False))
                heads = weight.shape[0] // len(powers) // self.tp[1]
                layer.largest = torch.empty(heads, device=weight.device)
            layer.largest.fill_(-torch.inf)

    @torch.no_grad()
    def end_of_step(
        self, done: float, *, skipped: Tensor, total: Callable[[Tensor], Tensor]
    ) -> StepReport:
        """Scale the weights, asynchronously, after a collective of all ranks over all layers and
        heads.
        """
        device = next(iter(self.layers.values())).largest.device
        largest = torch.full(self.shape, -torch.inf, device=device)
        for number, layer in self.layers.items():
            local_heads = len(layer.largest)
            start = self.tp[0] * local_heads
            largest[number, start : start + local_heads] = layer.largest
        if self.spread:
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        gamma = (self.threshold / largest).where(largest > self.threshold, 1.0)
        # A skipped update leaves the weights as before the step.
        gamma = torch.where(skipped.to(device), torch.ones_like(gamma), gamma)
        for number, layer in self.layers.items():
            for linear, powers in layer.of_heads():
                rows = torch.tensor(powers, device=device)
                heads = next(linear.parameters(recurse=False)).shape[0] // len(powers)
                # The powers split gamma: a half for queries and keys each, or all for queries.
                factors = (gamma[number, :heads, None] ** rows).flatten()
                for values in linear.parameters(recurse=False):
                    local_factors = factors[owned(values)[0].to(device)].to(values.dtype)
                    local(values).mul_(local_factors.view(-1, *[1] * (values.dim() - 1)))
        return StepReport({}, {"qk_clip/max_logit": largest.max()})
