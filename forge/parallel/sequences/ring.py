"""Ring attention (arXiv:2310.01889): keys and values go round, and softmaxes are merged.

Each rank keeps its queries. In each of `ranks` steps it attends to the keys and values of one rank,
while these are already sent on to the next rank; outputs over parts of the keys are merged by the
logarithms of their sums of exponentials. Backward the keys and values go round again, and their
gradients with them. No rank ever holds all keys. Parts hidden by the causal mask, a window or a
chunk are left out. The merge is in fp32 at least.

The kernel is FlashAttention on a GPU in 16 bits where a part needs no mask but the causal one, else
products of matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models.head import soft_cap
from forge.models.sdpa import ALIGNED, HALF
from forge.parallel.collectives import pass_on, received
from forge.parallel.sequences.part import Context, Part


class Ring(NamedTuple):
    """The ranks of a ring, and the scores: scale, cap, and the span of keys, 0 = all."""

    group: str
    rank: int
    ranks: int
    balanced: bool
    scale: float
    cap: float
    window: int
    chunk: int

    def part(self, step: int) -> Part:
        """The part of the sequence whose keys this rank has in a step."""
        rank = (self.rank - step) % self.ranks
        return Part(rank=rank, ranks=self.ranks, balanced=self.balanced)

    def pairs(self, step: int, length: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (run of queries, run of keys, their chunks in the sequence) that see one another.

        length: tokens of a run.
        """
        for i, of_queries in enumerate(self.part(0).chunks):
            for j, of_keys in enumerate(self.part(step).chunks):
                nearest = (of_queries - of_keys - 1) * length + 1  # in tokens
                in_chunk = not self.chunk or (
                    of_queries * length // self.chunk <= ((of_keys + 1) * length - 1) // self.chunk
                )
                near = not self.window or nearest < self.window
                if of_keys <= of_queries and near and in_chunk:
                    yield i, j, of_queries, of_keys


class RingAttention:
    """Mixin of attention: this rank's queries over keys and values that go round."""

    over_cp: Context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *seen: Tensor | None) -> Tensor:
        """seen: masks added to scores, for this rank's queries and all keys."""
        layer: Any = self
        if not self.over_cp.sequences.cut:
            return super().attend(q, k, v, *seen)  # type: ignore[misc]
        part = self.over_cp.part
        ring = Ring(
            group=self.over_cp.group.group_name,
            rank=part.rank,
            ranks=part.ranks,
            balanced=part.balanced,
            scale=layer.scale or q.shape[-1] ** -0.5,
            cap=layer.cap,
            window=layer.window,
            chunk=layer.chunk,
        )
        sinks = layer.sinks_here() if hasattr(layer, "sinks_here") else None
        mask = seen[0] if seen else None
        return _RingAttention.apply(q, k, v, sinks, mask, *ring)  # type: ignore[return-value]


class _RingAttention(torch.autograd.Function):
    """Attention over keys and values that go round the ring, and their gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Any, seen: Any, *ring_fields: Any
    ) -> Tensor:
        ring, runs = Ring(*ring_fields), len(Ring(*ring_fields).part(0).chunks)
        length, wide = q.shape[2] // runs, torch.promote_types(q.dtype, torch.float32)
        queries = q.chunk(runs, 2)
        outputs = [part.new_zeros(*part.shape[:3], v.shape[3], dtype=wide) for part in queries]
        sums = [part.new_full(part.shape[:3], -torch.inf, dtype=wide) for part in queries]
        pair = torch.cat((k.flatten(), v.flatten()))
        for step in range(ring.ranks):
            sent = pass_on(pair, *ring[1:3], ring.group) if step < ring.ranks - 1 else None
            keys, values = (x.chunk(runs, 2) for x in _unpacked(pair, k, v))
            for i, j, *run_pair in ring.pairs(step, length):
                mask = _mask(ring, run_pair, i, length, seen, q)
                output, total = attend_to_run(queries[i], keys[j], values[j], mask, ring, run_pair)
                outputs[i], sums[i] = _merged(outputs[i], sums[i], output, total)
            pair = pair if sent is None else received(sent)
        output, total = torch.cat(outputs, 2), torch.cat(sums, 2)
        if sinks is not None:
            with_sink = torch.logaddexp(total, sinks.to(wide).view(1, -1, 1))
            output = output * (total - with_sink).exp().unsqueeze(-1)
            total = with_sink
        output = output.to(q.dtype)
        ctx.save_for_backward(q, k, v, sinks, seen, output, total)
        ctx.ring = ring_fields
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        q, k, v, sinks, seen, output, total = ctx.saved_tensors
        ring, wide = Ring(*ctx.ring), total.dtype
        runs = len(ring.part(0).chunks)
        length = q.shape[2] // runs
        delta = (grad.to(wide) * output.to(wide)).sum(-1)
        of_queries = [
            Queries(*parts)
            for parts in zip(
                *(x.chunk(runs, 2) for x in (q, grad, output, total, delta)), strict=True
            )
        ]
        by_query = [torch.zeros_like(part.q, dtype=wide) for part in of_queries]
        pair, own_gradients, carried = torch.cat((k.flatten(), v.flatten())), None, None
        for step in range(ring.ranks):
            sent = pass_on(pair, *ring[1:3], ring.group) if step < ring.ranks - 1 else None
            keys, values = (x.chunk(runs, 2) for x in _unpacked(pair, k, v))
            by_pair = [torch.zeros_like(x, dtype=wide) for x in (k, v)]
            for i, j, *run_pair in ring.pairs(step, length):
                mask = _mask(ring, run_pair, i, length, seen, q)
                parts = run_gradients(of_queries[i], keys[j], values[j], mask, ring, run_pair)
                by_query[i] += parts[0]
                for whole, part in zip(by_pair, parts[1:], strict=True):
                    whole.narrow(2, j * length, length).add_(part)
            gathered = torch.cat([x.flatten() for x in by_pair])
            if step == 0:
                own_gradients = gathered
            else:  # The gradients of a rank's keys go round after the keys, and home at the end.
                gathered = gathered if carried is None else gathered + received(carried)
                carried = pass_on(gathered, *ring[1:3], ring.group)
            pair = pair if sent is None else received(sent)
        assert own_gradients is not None
        home = own_gradients if carried is None else own_gradients + received(carried)
        by_keys, by_values = _unpacked(home, k, v)
        by_sinks = None
        if sinks is not None:
            share = (sinks.to(wide).view(1, -1, 1) - total).exp()
            by_sinks = -(share * delta).sum((0, 2)).to(sinks.dtype)
        gradients = torch.cat(by_query, 2).to(q.dtype), by_keys.to(k.dtype), by_values.to(v.dtype)
        return (*gradients, by_sinks, None, *(None for _ in ctx.ring))


class Queries(NamedTuple):
    """A run of queries in backward: its output's gradient, output, logarithm of the sum of
    exponentials over all keys, and product of output and gradient.
    """

    q: Tensor
    grad: Tensor
    output: Tensor
    total: Tensor
    delta: Tensor


def _unpacked(pair: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = pair.split((k.numel(), v.numel()))
    return keys.view(k.shape), values.view(v.shape)


def _mask(
    ring: Ring, run_pair: list[int], run: int, length: int, seen: Tensor | None, q: Tensor
) -> Tensor | None:
    """The mask of a pair of runs, added to scores; null = all keys are seen, or in the same run
    those before.
    """
    of_queries, of_keys = run_pair
    if seen is not None:
        rows = seen.narrow(2, run * length, length)
        return rows.narrow(3, of_keys * length, length)
    farthest = (of_queries - of_keys + 1) * length - 1
    first, last = of_keys * length, (of_queries + 1) * length - 1
    inside = not ring.chunk or first // ring.chunk == last // ring.chunk
    if (not ring.window or farthest < ring.window) and inside:
        return None
    index = torch.arange(length, device=q.device)
    positions, keys = index[:, None] + of_queries * length, index + first
    hidden = keys > positions
    if ring.window:
        hidden = hidden | (positions - keys >= ring.window)
    if ring.chunk:
        hidden = hidden | (positions // ring.chunk != keys // ring.chunk)
    return torch.zeros(hidden.shape, dtype=q.dtype, device=q.device).masked_fill(hidden, -torch.inf)


def _merged(a: Tensor, a_sum: Tensor, b: Tensor, b_sum: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs over two sets of keys, with the logarithms of their sums -> over both sets."""
    total = torch.logaddexp(a_sum, b_sum)
    safe = total.masked_fill(total == -torch.inf, 0.0)  # no key is seen yet
    a_share, b_share = ((each - safe).exp().unsqueeze(-1) for each in (a_sum, b_sum))
    return a * a_share + b * b_share, total


def _by_flash(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ring: Ring) -> bool:
    fits = q.is_cuda and q.dtype in HALF and q.shape[-1] % ALIGNED == 0
    return fits and mask is None and not ring.cap and v.shape[-1] <= q.shape[-1]


def attend_to_run(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, ring: Ring, run_pair: list[int]
) -> tuple[Tensor, Tensor]:
    """The output of queries over a run of keys, and the logarithm of the sum of exponentials."""
    causal, wide = run_pair[0] == run_pair[1], torch.promote_types(q.dtype, torch.float32)
    if _by_flash(q, k, v, mask, ring):
        narrower = q.shape[-1] - v.shape[-1]
        flash = torch.ops.aten._scaled_dot_product_flash_attention
        v = F.pad(v, (0, narrower))  # flash kernels take values as wide as keys
        output, total = flash(q, k, v, 0.0, causal, False, scale=ring.scale)[:2]
        return output[..., : output.shape[-1] - narrower].to(wide), total.to(wide)
    scores = _scores(q, k, mask, ring, causal=causal)[0]
    total = scores.logsumexp(-1)
    safe = total.masked_fill(total == -torch.inf, 0.0)
    shares = (scores - safe.unsqueeze(-1)).exp()
    output = shares @ v.to(wide).unsqueeze(2)
    return output.flatten(1, 2), total.flatten(1, 2)


def _scores(
    q: Tensor, k: Tensor, mask: Tensor | None, ring: Ring, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Scores [batch, kv_heads, heads of each, queries, keys], and before the mask."""
    wide = torch.promote_types(q.dtype, torch.float32)
    q = q.to(wide).unflatten(1, (k.shape[1], -1))
    scores = q @ k.to(wide).unsqueeze(2).mT * ring.scale
    scores = soft_cap(scores, ring.cap) if ring.cap else scores
    if mask is not None:
        masked = scores + mask if mask.dim() == 2 else scores + mask.unsqueeze(1)
    elif causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        masked = scores.masked_fill(hidden, -torch.inf)
    else:
        masked = scores
    return masked, scores


def run_gradients(
    run: Queries, k: Tensor, v: Tensor, mask: Tensor | None, ring: Ring, run_pair: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values of a pair of runs, in fp32 at least."""
    causal, wide = run_pair[0] == run_pair[1], run.total.dtype
    if _by_flash(run.q, k, v, mask, ring):
        return _flash_gradients(run, k, v, ring, causal=causal)
    groups = k.shape[1], -1
    masked, scores = _scores(run.q, k, mask, ring, causal=causal)
    total = run.total.masked_fill(run.total == -torch.inf, 0.0).unflatten(1, groups)
    shares = (masked - total.unsqueeze(-1)).exp()
    grad, q = (x.to(wide).unflatten(1, groups) for x in (run.grad, run.q))
    by_values = (shares.mT @ grad).sum(2)
    by_shares = grad @ v.to(wide).unsqueeze(2).mT
    by_scores = shares * (by_shares - run.delta.unflatten(1, groups).unsqueeze(-1))
    if ring.cap:
        by_scores = by_scores * (1 - (scores / ring.cap).square())
    by_scores = by_scores * ring.scale
    by_query = by_scores @ k.to(wide).unsqueeze(2)
    return by_query.flatten(1, 2), (by_scores.mT @ q).sum(2), by_values


def _flash_gradients(
    run: Queries, k: Tensor, v: Tensor, ring: Ring, *, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by the flash kernel, which takes the output and the sums over all keys."""
    narrower = run.q.shape[-1] - v.shape[-1]
    grad, output, v = (F.pad(x, (0, narrower)) for x in (run.grad, run.output, v))
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward
    # Without dropout the state of random numbers is not read.
    state = torch.zeros(2, dtype=torch.uint64, device=v.device)
    lengths = run.q.shape[2], k.shape[2]
    kernel = (*lengths, 0.0, causal, state, torch.zeros_like(state))
    total = run.total.to(torch.float32)
    by_query, by_keys, by_values = backward(
        grad, run.q, k, v, output, total, None, None, *kernel, scale=ring.scale
    )
    by_values = by_values[..., : by_values.shape[-1] - narrower]
    wide = run.total.dtype
    return by_query.to(wide), by_keys.to(wide), by_values.to(wide)
