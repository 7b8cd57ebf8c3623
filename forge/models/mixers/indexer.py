"""The indexer of DeepSeek sparse attention (arXiv:2512.02556): narrow scores choose the keys of a
query. It learns from a loss of its own: neither its choice nor its inputs have a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.indexer import Indexed, indexed
from forge.models.contract import StepReport
from forge.models.documents import as_scores
from forge.models.mixers.causal_conv import wide
from forge.models.norm import LayerNorm
from forge.models.rope import Rotation, rotate
from forge.models.routing_record import RoutingRecord
from forge.tensors.wide import widest

AT_ONCE = 1 << 26
"""Scores of all heads held at a time: 256 MiB in fp32."""


class Index(NamedTuple):
    """Queries [batch, seq, heads, width], keys [batch, keys, width], and weights of the heads,
    [batch, seq, heads], for the scores of an indexer.
    """

    queries: Tensor
    keys: Tensor
    weights: Tensor


class Indexer(nn.Module):
    """Scores of keys for the queries of a layer: sum over heads of weight * ReLU(query . key)."""

    def __init__(self, section: DecoderConfig) -> None:
        super().__init__()
        mixer: Any = section.mixer  # its options of an indexer, and its latent of queries
        self.section, heads, width = mixer, mixer.indexer_n_heads, mixer.indexer_head_dim
        self.adjacent, self.tables_of_pairs = mixer.indexer_rope_interleave, section.rope_interleave
        self.queries = nn.Linear(mixer.q_lora_rank, heads * width, bias=False)
        self.keys = nn.Linear(section.dim, width, bias=False)
        self.key_norm = LayerNorm(width, eps=1e-6)
        self.weights = nn.Linear(section.dim, heads, bias=False)
        self.scale = (heads * width) ** -0.5
        self.record = RoutingRecord(0, sums=1)

    def forward(self, x: Tensor, latent: Tensor, rotation: Rotation | None) -> Index:
        """x: [batch, seq, dim], the layer's input; latent: [batch, seq, q_lora_rank], of queries;
        both are read without a gradient.
        """
        x, latent = x.detach(), latent.detach()
        queries = self.queries(latent).unflatten(-1, (-1, self.section.indexer_head_dim))
        keys = self.key_norm(self.keys(x)).unsqueeze(2)
        if rotation is not None:
            rotation = self._in_layout(rotation)
            queries, keys = (rotate(y, rotation, adjacent=self.adjacent) for y in (queries, keys))
        with torch.autocast(x.device.type, enabled=False):
            weights = F.linear(wide(x), wide(self.weights.weight)) * self.scale
        return Index(queries, keys[:, :, 0], weights)

    @property
    def summands(self) -> int:
        """Ranks whose gradients of the indexer are added up."""
        return 1

    def over_heads(self, shares: Tensor) -> Tensor:
        """The sum over all heads of a sum over the heads of this rank."""
        return shares

    @torch.no_grad()
    def choose(self, index: Index, seen: Tensor | None, dtype: torch.dtype) -> Tensor:
        """The mask of the chosen keys, a summand of scores: [batch, 1, seq, keys].

        seen: the keys to choose among, as in `forge.models.sdpa.causal_attention`.
        """
        rows = [
            best_keys(index_scores(part, index.keys)[0], visible, self.section.indexer_topk)
            for part, visible in self._parts(index, seen, index.queries.shape[2])
        ]
        return as_scores(torch.cat(rows, 1).unsqueeze(1), dtype)

    def learn(self, y: Tensor, index: Index, seen: Tensor | None, target: Target) -> Tensor:
        """Return y with the loss attached: the divergence of softmax(scores) from the target, over
        the keys seen.
        """
        loss, *gradients = self._loss(index, seen, target)
        loss = _WithGradients.apply(loss, *index, *gradients)
        factor, none = self.section.indexer_loss_scaling_factor, loss.new_empty(0)
        return self.record.attach(y, loss * factor, none.long(), loss.detach()[None])

    @torch.no_grad()
    def _loss(self, index: Index, seen: Tensor | None, target: Target) -> tuple[Tensor, ...]:
        """The loss, summed over queries, and its gradients by queries, keys and weights.

        Written out, since autograd would keep the scores of all heads and rows.
        """
        keys = wide(index.keys)
        loss, of_keys = keys.new_zeros(()), torch.zeros_like(keys)
        of_queries, of_weights, first = [], [], 0
        heads = max(index.queries.shape[2], target.queries.shape[1])
        for part, visible in self._parts(index, seen, heads):
            rows = slice(first, first := first + part.queries.shape[1])
            p = self.over_heads(target.shares(rows, visible))
            p = p / p.sum(-1, keepdim=True)
            total, dots = index_scores(part, index.keys)
            log_q = total.masked_fill(~visible, -torch.inf).log_softmax(-1)
            loss += torch.where(visible, torch.xlogy(p, p) - p * log_q, 0).sum()
            slope = log_q.exp() - p  # of the loss by the scores: p sums to 1
            active = dots.relu()
            of_weights.append(torch.einsum("bqk,bqhk->bqh", slope, active))
            by_dots = slope.unsqueeze(2) * part.weights.unsqueeze(-1) * (dots > 0)
            of_queries.append(by_dots @ keys.unsqueeze(1))
            of_keys += torch.einsum("bqhk,bqhd->bkd", by_dots, wide(part.queries))
        return loss, torch.cat(of_queries, 1), of_keys, torch.cat(of_weights, 1)

    def _parts(
        self, index: Index, seen: Tensor | None, heads: int
    ) -> Iterator[tuple[Index, Tensor]]:
        """Rows of the queries, as many as may be held at a time, and the keys each sees."""
        (batch, seq), keys = index.queries.shape[:2], index.keys.shape[1]
        size = max(AT_ONCE // (batch * heads * keys), 1)
        numbers = torch.arange(keys, device=index.keys.device)
        for first in range(0, seq, size):
            rows = slice(first, min(first + size, seq))
            if seen is not None:
                visible = seen[:, 0, rows] == 0
            else:  # the last query is at the position of the last key
                visible = (numbers <= numbers[keys - seq :][rows, None]).unsqueeze(0)
            part = Index(index.queries[:, rows], index.keys, index.weights[:, rows])
            yield part, visible

    def _in_layout(self, rotation: Rotation) -> Rotation:
        """Tables of rotated pairs in the layout of the indexer's pairs."""
        if self.adjacent == self.tables_of_pairs:
            return rotation
        cos, sin = rotation
        half = cos.shape[-1] // 2
        if self.adjacent:
            sines = torch.stack((sin[..., :half], sin[..., half:]), -1).flatten(-2)
            return cos[..., :half].repeat_interleave(2, -1), sines
        sines = torch.cat((sin[..., ::2], sin[..., 1::2]), -1)
        return torch.cat((cos[..., ::2], cos[..., ::2]), -1), sines


class Target(NamedTuple):
    """Attention that an indexer learns to foresee: queries [batch, heads, seq, width] and keys
    [batch, heads, keys, width], whose products times `scale` are its scores.
    """

    queries: Tensor
    keys: Tensor
    scale: float

    def shares(self, rows: slice, visible: Tensor) -> Tensor:
        """Attention of queries in `rows`, summed over these heads: [batch, rows, keys]."""
        logits = wide(self.queries[:, :, rows] @ self.keys.mT) * self.scale
        logits = logits.masked_fill(~visible.unsqueeze(1), -torch.inf)
        return logits.softmax(-1).sum(1)


class _WithGradients(torch.autograd.Function):
    """A loss whose gradients by queries, keys and weights are computed already."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *tensors: Tensor) -> Tensor:
        inputs, gradients = tensors[:3], tensors[3:]
        ctx.save_for_backward(*gradients)
        ctx.formats = [tensor.dtype for tensor in inputs]
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.formats, strict=True)
        return (None, *((grad * made).to(form) for made, form in pairs), None, None, None)


def index_scores(part: Index, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of all keys for some queries, [batch, queries, keys], and the products of each head,
    [batch, queries, heads, keys], in fp32.
    """
    with torch.autocast(keys.device.type, enabled=False):
        dots = wide(part.queries) @ wide(keys).mT.unsqueeze(1)
        return (part.weights.unsqueeze(-2) @ dots.relu()).squeeze(-2), dots


def best_keys(scores: Tensor, visible: Tensor, topk: int) -> Tensor:
    """Whether a key is among the `topk` visible ones of the highest scores of its query, of equal
    ones the earlier: bool [batch, queries, keys].
    """
    keys = scores.shape[-1]
    if topk >= keys:
        return visible.expand_as(scores)
    scores = scores.masked_fill(~visible, -torch.inf)
    least = scores.topk(topk, -1).values[..., -1:]
    above, equal = scores > least, (scores == least) & visible
    # torch.topk says not which of equal scores it takes.
    left = topk - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= left))


class Indexing:
    """The `forge.models.contract.InStep` of all indexers of a model: `indexer_loss` is the mean
    over the layers, without its factor.
    """

    def __init__(self, model: nn.Module) -> None:
        self.indexers = [module for module in model.modules() if isinstance(module, Indexer)]
        section = getattr(model, "section", None)
        self.number = number_of_losses(section) if isinstance(section, DecoderConfig) else 0

    def begin_step(self, scale: Tensor | float) -> None:
        for layer in self.indexers:
            layer.record.reset_buffers()
            layer.record.scale.add_(scale / layer.summands)

    @torch.no_grad()
    def end_of_step(self, *, device: torch.device, total: Callable[[Tensor], Tensor]) -> StepReport:
        if not self.number:
            return StepReport({}, {})
        sums = torch.zeros(1, dtype=widest(device), device=device)
        for layer in self.indexers:
            sums += layer.record.sums
        return StepReport({"indexer_loss": total(sums)[0] / self.number}, {})


def number_of_losses(section: DecoderConfig) -> int:
    """The number of layers whose indexer has a loss, with modules for further tokens."""
    learning = {path for path, _, mixer in indexed(section) if mixer.learns_to_choose}
    if not learning:
        return 0
    kinds = [section.kind_of(layer).name for layer in range(section.n_layers)]
    kinds += [section.repeated_kind.name] * section.mtp_num_layers
    mixers: list[Any] = [section.of_kind(kind).mixer for kind in kinds]
    return sum(isinstance(mixer, Indexed) and mixer.learns_to_choose for mixer in mixers)
