"""What one rank has of a model's parameters, before FSDP shards it."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.model import Decoder
from forge.config.moe import n_moe_layers
from forge.config.parallel import V_SCHEDULE, Parallel


@dataclass(frozen=True, kw_only=True)
class Share:
    """The blocks of a rank, whether the first and the last of the model are among them, and its
    parameters.

    experts: those of the experts, which FSDP shards over efsdp. in_blocks: the others in blocks,
    and outside: the rest; both are sharded over fsdp. two_blocks: all of two adjacent blocks, or of
    the only one. outside_at_once: of the rest what is gathered at a time: the embedding is let go
    before the output head is needed. packed: the shape of the experts of one layer, [experts,
    width, dim].
    """

    layers: int
    moe_layers: int
    first: bool
    last: bool
    experts: int
    in_blocks: int
    outside: int
    outside_at_once: int
    two_blocks: int
    packed: tuple[int, int, int]

    @property
    def parameters(self) -> int:
        return self.experts + self.in_blocks + self.outside

    def sharded(self, parallel: Parallel) -> int:
        """What the FSDP rank with most has of them: whole experts, or a part of each where they are
        fewer than ranks and it divides.
        """
        fsdp, efsdp, (count, *others) = max(parallel.fsdp, 1), max(parallel.efsdp, 1), self.packed
        across = count < efsdp and any(length % efsdp == 0 for length in others)
        experts = (
            -(-self.experts // efsdp)
            if across
            else self.experts * -(-count // efsdp) // max(count, 1)
        )
        return -(-(self.in_blocks + self.outside) // fsdp) + experts


def shares(model: Decoder, parallel: Parallel) -> list[Share]:
    """Of the ranks that may need most: those at the ends of the pipeline. Stages are taken to have
    equal numbers of blocks.
    """
    if parallel.pp == 1:
        return [_share(model, parallel, first=True, last=True)]
    return [
        _share(model, parallel, first=True, last=parallel.pp_schedule == V_SCHEDULE),
        _share(model, parallel, first=False, last=True),
    ]


def _share(model: Decoder, parallel: Parallel, *, first: bool, last: bool) -> Share:
    """Norms, learned positions, routers and, where ranks share them, keys and values are whole on
    every tp rank; all else is cut.
    """
    parts, tp = model.params_by_part(), parallel.tp
    layers = -(-model.n_layers // parallel.pp)
    before = 0 if first else model.n_layers - layers
    moe_layers = n_moe_layers(model.moe, before + layers) - n_moe_layers(model.moe, before)
    table = model.vocab_size * model.dim
    key_values = (
        2 * model.n_layers * model.dim * model.kv_heads * model.head_dim
        if model.kv_heads % tp
        else 0
    )
    final_norm = parts["norms"] // (2 * model.n_layers + 1)
    attention = (
        -(-(parts["attention"] - key_values) // tp) + key_values + parts["norms"] - final_norm
    )
    dense_layers, sparse_layers = (
        max(model.n_layers - model.n_moe_layers, 1),
        max(model.n_moe_layers, 1),
    )
    dense = -(-parts["feed-forward"] // tp) // dense_layers
    routing = (parts.get("routers", 0) + -(-parts.get("shared experts", 0) // tp)) // sparse_layers
    experts = -(-parts.get("experts", 0) // (tp * parallel.ep)) // sparse_layers
    outside = final_norm if last else 0
    if first:
        outside += -(-table // tp) + parts["embedding"] - table
    if last and not (first and model.tie_embeddings):
        outside += -(-table // tp)
    kinds = [dense] * (moe_layers < layers) + [routing + experts] * (moe_layers > 0)
    two = sum(kinds) if len(kinds) == 2 and model.moe.frequency > 1 else 2 * max(kinds)
    return Share(
        layers=layers,
        moe_layers=moe_layers,
        first=first,
        last=last,
        experts=moe_layers * experts,
        in_blocks=attention * layers // model.n_layers
        + (layers - moe_layers) * dense
        + moe_layers * routing,
        outside=outside,
        outside_at_once=outside
        - (-(-table // tp) if first and last and not model.tie_embeddings else 0),
        two_blocks=min(2, layers) * attention // model.n_layers
        + (two if layers > 1 else max(kinds)),
        packed=(model.moe.num_experts // parallel.ep, -(-model.expert_hidden_dim // tp), model.dim),
    )
