"""The `model` group: the trained model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from forge.config.field import opt, section, variant_of
from forge.config.model.by_depth import base_of, name_at, set_options, varies
from forge.config.model.feed_forwards.absent import NoFeedForward
from forge.config.model.feed_forwards.base import FeedForward
from forge.config.model.feed_forwards.dense import Dense
from forge.config.model.initial_law import by_law
from forge.config.model.kinds import DEFAULT, OF_ALL_LAYERS, Kind, kind_faults
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.attention import Attention
from forge.config.model.mixers.base import Mixer
from forge.config.model.moe import MoE, is_moe_layer, n_moe_layers
from forge.config.model.mtp import module_tensors
from forge.config.model.skips.backout import backout_tensors
from forge.config.model.skips.engram import MemoryShape, memory_tensors
from forge.config.model.skips.hyper_connections import streams_flops, streams_tensors
from forge.config.model.skips.layer_inputs import PART as OF_LAYERS
from forge.config.model.skips.layer_inputs import layer_input_table, layer_input_tensors
from forge.config.model.skips.residual_scalars import scalar_tensors
from forge.config.model.skips.smear import smear_tensors
from forge.config.model.tensors import (
    EMBEDDING,
    GATE,
    HEAD,
    MATRIX,
    POSITION,
    TensorSpec,
    at_layer,
    norm,
    within,
)
from forge.config.problems import Problem

PARTS = ("embedding", "attention", "feed-forward", "norms", "output head")
PARTS_OF_MOE = ("routers", "experts", "shared experts")
PARTS_OF_SKIPS = ("value embeddings", "scalars")


@section
class Decoder(LayerShape):
    """A decoder-only transformer: the Llama shape by default, the GPT-2 shape by a few options."""

    schema_name = "decoder"
    reads_documents = True
    has_blocks = True
    _target_: str = "forge.models.decoder.Decoder"
    mixer: Mixer = field(
        default_factory=Attention, metadata={"help": "how tokens learn of those before them"}
    )
    feed_forward: FeedForward = field(
        default_factory=Dense, metadata={"help": "what each token passes by itself"}
    )
    moe: MoE = field(
        default_factory=MoE,
        metadata={"help": "a mixture of experts in place of feed-forward layers"},
    )
    kinds: dict[str, Any] = opt(
        {}, "kinds of layers by name, each the options above that it has other values of"
    )
    layers: list[str] = opt(
        [], "kinds of the layers, repeated until there are n_layers; 'default' = no other values"
    )

    @property
    def is_moe(self) -> bool:
        return self.n_moe_layers > 0

    @property
    def known_dim(self) -> int:
        return self.dim

    @property
    def routed_experts(self) -> int:
        return self.moe.num_experts if self.is_moe else 0

    @property
    def draws(self) -> bool:
        return any(x.dropout > 0 for x in (self, *(layer for _, layer in self.in_use())))

    @property
    def n_moe_layers(self) -> int:
        """Blocks with experts."""
        if not self.kinds and not self.feed_forward.absent:
            return n_moe_layers(self.moe, self.n_layers)
        return sum(self.kind_of(layer).moe for layer in range(self.n_layers))

    def lacks_feed_forward(self, name: str) -> bool:
        """Whether layers of a kind are a mixer alone, without experts too."""
        entry = self.kinds.get(base_of(name), {})
        chosen = entry.get("feed_forward") if isinstance(entry, dict) else None
        if not isinstance(chosen, dict):
            return self.feed_forward.absent
        return chosen.get("schema") == NoFeedForward.schema_name

    def kind_of(self, layer: int) -> Kind:
        """Return the kind of a layer, counted from 0."""
        name = self.layers[layer % len(self.layers)] if self.layers else DEFAULT
        moe = is_moe_layer(self.moe, layer) and not self.lacks_feed_forward(name)
        return Kind(name_at(self, name, layer), moe)

    def kinds_in(self, layers: Iterable[int] | None = None) -> Counter[Kind]:
        """Count the layers of each kind among `layers`; null = all layers."""
        if layers is None and not self.layers and not varies(self):
            counts = {False: self.n_layers - self.n_moe_layers, True: self.n_moe_layers}
            return Counter({Kind(DEFAULT, moe): n for moe, n in counts.items() if n})
        return Counter(map(self.kind_of, range(self.n_layers) if layers is None else layers))

    def of_kind(self, name: str) -> Decoder:
        """Return the section of the layers of a kind: this section with the overrides of the kind.

        Where every head has own keys, every head of the kind has own keys, also with another number
        of heads. `mixer` and `feed_forward` are overridden by {schema: NAME, option: value, ...}.
        Raises ValueError for options shared by all layers.
        """
        base = base_of(name)
        if name == DEFAULT and name not in self.kinds:
            return self
        layer = self.clone()
        layer.thaw()
        layer.layers, layer.kinds = [], {}
        set_options(layer, name)
        overrides = self.kinds.get(base, {}) if base == DEFAULT else self.kinds[base]
        for option, value in overrides.items():
            if option in OF_ALL_LAYERS:
                raise ValueError(f"{option} is the same in all layers")
            group = {"mixer": Mixer, "feed_forward": FeedForward}.get(option)
            setattr(layer, option, value if group is None else variant_of(group, value))
        if self.kv_heads == self.n_heads and "n_kv_heads" not in overrides:
            layer.n_kv_heads = layer.n_heads
        if self.frozen:
            layer.freeze()
        return layer

    def in_use(self) -> Iterator[tuple[str, Decoder]]:
        """Yield the section of each kind of layer in use, with the prefix of its keys."""
        for name in dict.fromkeys(base_of(kind.name) for kind in self.kinds_in()):
            yield f"model.kinds.{name}" if name in self.kinds else "model", self.of_kind(name)

    def faults(self, prefix: str) -> Iterator[Problem]:
        return kind_faults(self, prefix)

    def tensors(self) -> Iterator[TensorSpec]:
        first, last = self.outside()
        tables = {kind: self.block_tensors(kind) for kind in self.kinds_in()}
        yield from first
        for layer in range(self.n_layers):
            of_block = at_layer(tables[self.kind_of(layer)], layer, self.n_layers)
            yield from within(f"blocks.{layer}", of_block)
        yield from last

    def outside(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Return the tensors before the first block and the tensors after the last."""
        table: dict[str, Any] = {"shape": (self.vocab_size, self.dim), "tp": 0}
        table["new"], table["std"] = tuple(self.new_rows), self.init_std_tables
        first = [TensorSpec(name="embedding.weight", role=EMBEDDING, part="embedding", **table)]
        if self.position == "learned":
            shape = (self.max_seq_len, self.dim)
            name = "positions.weight"
            first.append(TensorSpec(name=name, shape=shape, role=POSITION, part="embedding"))
        if self.embedding_norm:
            first += self._norm("embedding_norm")
        if self.smear:
            first += smear_tensors(self.dim)
        if width := self.per_layer_input_width:
            sizes = {"layers": self.n_layers, "vocab": self.vocab_size, "dim": self.dim}
            beside: Any = {"new": tuple(self.new_rows), "unit_offset": self.norm_unit_offset}
            first += layer_input_table(width=width, **sizes, **beside)
        for layer in sorted(self.engram_layers):
            first += within(f"engrams.{layer}", self.memory_tensors(layer))
        last = list(backout_tensors()) if self.backout else []
        last += self._norm("norm")
        if not self.tie_embeddings:
            last.append(TensorSpec(name="output.weight", role=HEAD, part="output head", **table))
        for depth in range(self.mtp_num_layers):
            last += within(f"mtp.{depth}", self.further_tensors())
        return list(by_law(self.initial_law, first, self.dim)), list(
            by_law(self.initial_law, last, self.dim)
        )

    def memory_tensors(self, layer: int) -> Iterator[TensorSpec]:
        """Yield the tensors of the memory before a layer, by their names inside."""
        shape = MemoryShape(
            rows=sum(self.engram_rows(layer)),
            head_dim=self.engram_head_dim,
            width=self.engram_width,
            dim=self.dim,
            streams=self.mhc_expansion_rate,
            taps=self.engram_kernel_size,
        )
        return memory_tensors(shape, unit_offset=self.norm_unit_offset)

    @property
    def repeated_layer(self) -> int:
        """The layer whose kind the modules for further tokens repeat: the last that reads nothing
        of an earlier one.
        """
        last = reversed(range(self.n_layers))
        kinds = ((layer, self.of_kind(self.kind_of(layer).name)) for layer in last)
        alone = (layer for layer, kind in kinds if not kind.mixer.reads_choice)
        return next(alone, self.n_layers - 1)

    @property
    def repeated_kind(self) -> Kind:
        """The kind of `repeated_layer`."""
        return self.kind_of(self.repeated_layer)

    def further_tensors(self) -> Iterator[TensorSpec]:
        """Yield the tensors of a module for a further token, by their names inside."""
        norms = map(self._norm, ("embedding_norm", "hidden_norm", "norm"))
        return module_tensors(self.dim, self.block_tensors(self.repeated_kind), norms)

    @property
    def n_mixtures(self) -> int:
        """Blocks with experts, with those of the modules for further tokens."""
        of_module = self.mtp_num_layers if self.repeated_kind.moe else 0
        return self.n_moe_layers + of_module

    def block_tensors(self, kind: Kind) -> list[TensorSpec]:
        """Return the tensors of one block, by their names inside of the block."""
        layer = self.of_kind(kind.name)
        last = layer.moe.tensors(layer) if kind.moe else layer.feed_forward.tensors(layer)
        pre, post = layer.norms_before, layer.norms_after
        mixes, feeds = not layer.mixer.absent, not layer.feed_forward.absent
        streams = layer.mhc_expansion_rate, layer.dim
        branched, width = kind.moe and layer.branched, layer.per_layer_input_width
        offset = layer.norm_unit_offset
        tensors = [
            *scalar_tensors(layer),
            *(streams_tensors("attention_streams", *streams) if mixes else ()),
            *(layer._norm("attention_norm") if pre and mixes else ()),
            *within("attention", layer.mixer.tensors(layer)),
            *(layer._norm("attention_post_norm") if post and mixes else ()),
            *(streams_tensors("feed_forward_streams", *streams) if feeds else ()),
            *(layer._norm("feed_forward_norm") if pre and feeds and not branched else ()),
            *within("feed_forward", last),
            *(layer._norm("feed_forward_post_norm") if post and feeds else ()),
            *(layer._beside_experts() if branched else ()),
            *(layer_input_tensors(width, layer.dim, unit_offset=offset) if width else ()),
        ]
        return list(by_law(layer.initial_law, tensors, layer.dim))

    def _beside_experts(self) -> Iterator[TensorSpec]:
        """Yield the dense branch of a block and the norms of both branches, but the experts' first
        one.
        """
        yield from self._norm("dense_norm")
        yield from within("dense", self.feed_forward.tensors(self))
        yield from self._norm("dense_post_norm")
        yield from self._norm("experts_post_norm")

    def _norm(self, name: str) -> Iterator[TensorSpec]:
        if not self.norm_with_scale:
            return iter(())
        bias = self.norm_type == "layernorm" and self.bias
        return norm(name, self.dim, bias=bias, unit_offset=self.norm_unit_offset)

    def _counted(self) -> Iterator[tuple[int, TensorSpec]]:
        """Yield tensors with their number of copies, block by kind of block."""
        first, last = self.outside()
        yield from ((1, spec) for spec in first)
        for kind, number in self.kinds_in().items():
            yield from ((number, spec) for spec in self.block_tensors(kind))
        yield from ((1, spec) for spec in last)

    def params_by_part(self) -> dict[str, int]:
        """Count the parameters of each part."""
        names = PARTS + PARTS_OF_MOE if self.is_moe else PARTS
        names += PARTS_OF_SKIPS if self.has_skips else ()
        names += ("engram",) if self.engram_layers else ()
        names += (OF_LAYERS,) if self.per_layer_input_width else ()
        names += ("hyper-connections",) if self.mhc_expansion_rate > 1 else ()
        names += ("further tokens",) if self.mtp_num_layers else ()
        parts: dict[str, int] = dict.fromkeys(names, 0)
        for number, spec in self._counted():
            parts[spec.part] += number * spec.size
        return parts

    @property
    def num_params_estimate(self) -> int:
        """All parameters; exact for this architecture."""
        return sum(number * spec.size for number, spec in self._counted())

    @property
    def num_active_params(self) -> int:
        """Parameters used by one token: all but the experts not chosen by the token."""
        return sum(number * spec.active for number, spec in self._counted())

    def flops_per_token(self, seq_len: int) -> int:
        """Return the training FLOPs a token, forward and backward.

        The FLOPs are 6 for each weight multiplied with the token, also of the output head and of
        the token's experts, and the FLOPs of the token mixers.
        """
        kinds = self.kinds_in().items()
        blocks = sum(number * self.kind_flops_per_token(kind, seq_len) for kind, number in kinds)
        roles = (GATE, MATRIX)
        gates = sum(spec.multiplied for spec in self.outside()[0] if spec.role in roles)
        return blocks + self.head_flops_per_token() + 6 * gates + self._further_flops(seq_len)

    def _further_flops(self, seq_len: int) -> int:
        """Return the training FLOPs a token of the modules for further tokens, each with a product
        with the head.
        """
        if not self.mtp_num_layers:
            return 0
        block = self.kind_flops_per_token(self.repeated_kind, seq_len)
        one = block + 6 * 2 * self.dim * self.dim + self.head_flops_per_token()
        return self.mtp_num_layers * one

    def block_flops_per_token(self, layer: int, seq_len: int) -> int:
        """Return the training FLOPs a token of one block, counted from 0."""
        return self.kind_flops_per_token(self.kind_of(layer), seq_len)

    def head_flops_per_token(self) -> int:
        """Return the training FLOPs a token of the output head."""
        return 6 * self.vocab_size * self.dim

    def kind_flops_per_token(self, kind: Kind, seq_len: int) -> int:
        """Return the training FLOPs a token of a block of a kind."""
        layer = self.of_kind(kind.name)
        weights = sum(spec.multiplied for spec in self.block_tensors(kind))
        layers = (not layer.mixer.absent) + (not layer.feed_forward.absent)
        of_streams = layers * streams_flops(layer.mhc_expansion_rate, layer.dim)
        return 6 * weights + layer.mixer.flops(layer, seq_len) + of_streams
