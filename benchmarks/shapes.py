"""The parameters of a decoder as numbers alone: their sizes, and what of each a rank has under
tensor parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from forge.config.model import Decoder


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A parameter. cut: the dimension that tp cuts; null = each tp rank has all of it.

    summed: the gradient of a parameter that is not cut is the sum of what tp ranks find: always;
    parts = where they see parts of a sequence; never = all find the same. of_experts: packed,
    [experts, ...], of which each ep rank has some.
    """

    name: str
    size: tuple[int, ...]
    cut: int | None = None
    summed: str = "never"
    of_experts: bool = False

    def on(self, tp: int, ep: int = 1) -> tuple[int, ...]:
        """What the first rank has, which no other has more of."""
        first, *others = (
            -(-length // tp) if dim == self.cut else length for dim, length in enumerate(self.size)
        )
        return (first // ep if self.of_experts else first, *others)

    def elements(self, *, tp: int = 1, ep: int = 1, shards: int = 1) -> int:
        """Elements on the first rank, with the rows filled up to a multiple of the FSDP shards, as
        fully_shard sends them.

        Fewer experts than shards are cut across, where that goes.
        """
        rows, *others = self.on(tp, ep)
        across = (
            self.of_experts and rows < shards and any(length % shards == 0 for length in others)
        )
        return (rows if across else -(-rows // shards) * shards) * prod(others)


def block_shapes(model: Decoder, tp: int, *, moe: bool = False) -> Iterator[Shape]:
    """Those of one block, with experts or without; each such block has the same."""
    dim, heads, kv = model.dim, model.n_heads * model.head_dim, model.kv_heads * model.head_dim
    shared = model.kv_heads % tp != 0
    for norm in ("attention_norm", "feed_forward_norm"):
        yield from _norm(model, norm)
    yield from _linear(model, "attention.wq", heads, dim, cut=0)
    for name in ("attention.wk", "attention.wv"):
        yield from _linear(
            model, name, kv, dim, cut=None if shared else 0, summed="always" if shared else "never"
        )
    yield from _linear(model, "attention.wo", dim, heads, cut=1)
    if model.qk_norm:
        for name in ("attention.q_norm.weight", "attention.k_norm.weight"):
            yield Shape(name=name, size=(model.head_dim,), summed="always")
    yield from (
        _experts(model)
        if moe
        else _feed_forward(model, "feed_forward", model.computed_ffn_hidden_dim)
    )


def other_shapes(model: Decoder, *, first: bool = True, last: bool = True) -> Iterator[Shape]:
    """Those outside the blocks, of a part of the model that has what is before the first and after
    the last block.
    """
    table = (model.vocab_size, model.dim)
    if first or (last and model.tie_embeddings):
        yield Shape(name="embedding.weight", size=table, cut=0)
    if first and model.position == "learned":
        yield Shape(name="positions.weight", size=(model.max_seq_len, model.dim), summed="parts")
    if last:
        yield from _norm(model, "norm")
        if not model.tie_embeddings:
            yield Shape(name="output.weight", size=table, cut=0)


def _feed_forward(model: Decoder, name: str, width: int) -> Iterator[Shape]:
    for inner in ("w_gate", "w_up") if model.is_gated else ("w_up",):
        yield from _linear(model, f"{name}.{inner}", width, model.dim, cut=0)
    yield from _linear(model, f"{name}.w_down", model.dim, width, cut=1)


def _experts(model: Decoder) -> Iterator[Shape]:
    moe, width = model.moe, model.expert_hidden_dim
    yield Shape(
        name="feed_forward.router.weight", size=(moe.num_experts, model.dim), summed="always"
    )
    for inner in ("w_gate", "w_up") if model.is_gated else ("w_up",):
        yield Shape(
            name=f"feed_forward.experts.{inner}",
            size=(moe.num_experts, width, model.dim),
            cut=1,
            of_experts=True,
        )
    yield Shape(
        name="feed_forward.experts.w_down",
        size=(moe.num_experts, model.dim, width),
        cut=2,
        of_experts=True,
    )
    if moe.shared_experts:
        yield from _feed_forward(model, "feed_forward.shared", moe.shared_experts * width)


def _linear(
    model: Decoder, name: str, outputs: int, inputs: int, *, cut: int | None, summed: str = "never"
) -> Iterator[Shape]:
    yield Shape(name=f"{name}.weight", size=(outputs, inputs), cut=cut, summed=summed)
    if model.bias:
        yield Shape(
            name=f"{name}.bias",
            size=(outputs,),
            cut=0 if cut == 0 else None,
            summed="parts" if cut == 1 else summed,
        )


def _norm(model: Decoder, name: str) -> Iterator[Shape]:
    yield Shape(name=f"{name}.weight", size=(model.dim,), summed="parts")
    if model.norm_type == "layernorm" and model.bias:
        yield Shape(name=f"{name}.bias", size=(model.dim,), summed="parts")
