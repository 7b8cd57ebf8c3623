"""The `model` group: what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from forge.config.field import opt, section, variant_of
from forge.config.model.feed_forwards.base import FeedForward
from forge.config.model.feed_forwards.dense import Dense
from forge.config.model.kinds import DEFAULT, OF_ALL_LAYERS, Kind, kind_faults
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.attention import Attention
from forge.config.model.mixers.base import Mixer
from forge.config.model.moe import MoE, is_moe_layer, n_moe_layers
from forge.config.model.tensors import EMBEDDING, HEAD, POSITION, TensorSpec, norm, within
from forge.config.problems import Problem

PARTS = ("embedding", "attention", "feed-forward", "norms", "output head")
PARTS_OF_MOE = ("routers", "experts", "shared experts")


@section
class Decoder(LayerShape):
    """A decoder-only transformer: the Llama shape by default, the GPT-2 shape by a few options."""

    schema_name = "decoder"
    reads_documents = True
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
    def draws(self) -> bool:
        return any(one.dropout > 0 for one in (self, *(layer for _, layer in self.in_use())))

    @property
    def n_moe_layers(self) -> int:
        """Blocks that have experts."""
        return n_moe_layers(self.moe, self.n_layers)

    def kind_of(self, layer: int) -> Kind:
        """The kind of a layer, counted from 0."""
        name = self.layers[layer % len(self.layers)] if self.layers else DEFAULT
        return Kind(name, is_moe_layer(self.moe, layer))

    def kinds_in(self, layers: Iterable[int] | None = None) -> Counter[Kind]:
        """Number of layers of each kind among these; null = all."""
        if layers is None and not self.layers:
            found = {False: self.n_layers - self.n_moe_layers, True: self.n_moe_layers}
            return Counter({Kind(DEFAULT, moe): number for moe, number in found.items() if number})
        return Counter(map(self.kind_of, range(self.n_layers) if layers is None else layers))

    def of_kind(self, name: str) -> Decoder:
        """The section of the layers of a kind: this one, with what the kind overrides; where every
        head has its own keys, with another number of heads too.

        `mixer` and `feed_forward` are overridden by {schema: NAME, option: value, ...}. Raises
        ValueError for what no kind overrides.
        """
        if name == DEFAULT and name not in self.kinds:
            return self
        made = self.clone()
        made.thaw()
        made.layers, made.kinds = [], {}
        for option, value in self.kinds[name].items():
            if option in OF_ALL_LAYERS:
                raise ValueError(f"{option} is the same in all layers")
            base = {"mixer": Mixer, "feed_forward": FeedForward}.get(option)
            setattr(made, option, value if base is None else variant_of(base, value))
        if self.kv_heads == self.n_heads and "n_kv_heads" not in self.kinds[name]:
            made.n_kv_heads = made.n_heads
        if self.frozen:
            made.freeze()
        return made

    def in_use(self) -> Iterator[tuple[str, Decoder]]:
        """The section of each kind of layer that there is, with the prefix of its keys."""
        for name in dict.fromkeys(kind.name for kind in self.kinds_in()):
            yield f"model.kinds.{name}" if name in self.kinds else "model", self.of_kind(name)

    def faults(self, prefix: str) -> Iterator[Problem]:
        return kind_faults(self, prefix)

    def tensors(self) -> Iterator[TensorSpec]:
        """Every parameter, in the order of the built model."""
        before, after = self.outside()
        tables = {kind: self.block_tensors(kind) for kind in self.kinds_in()}
        yield from before
        for layer in range(self.n_layers):
            yield from within(f"blocks.{layer}", tables[self.kind_of(layer)])
        yield from after

    def outside(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The tensors before the first block, and those after the last."""
        table: dict[str, Any] = {"shape": (self.vocab_size, self.dim), "tp": 0}
        table["new"] = tuple(self.new_rows)
        before = [TensorSpec(name="embedding.weight", role=EMBEDDING, part="embedding", **table)]
        if self.position == "learned":
            shape = (self.max_seq_len, self.dim)
            name = "positions.weight"
            before.append(TensorSpec(name=name, shape=shape, role=POSITION, part="embedding"))
        after = list(self._norm("norm"))
        if not self.tie_embeddings:
            after.append(TensorSpec(name="output.weight", role=HEAD, part="output head", **table))
        return before, after

    def block_tensors(self, kind: Kind) -> list[TensorSpec]:
        """Those of one block, by their names inside of it."""
        layer = self.of_kind(kind.name)
        last = layer.moe.tensors(layer) if kind.moe else layer.feed_forward.tensors(layer)
        pre, post = layer.norms_before, layer.norms_after
        return [
            *(layer._norm("attention_norm") if pre else ()),
            *within("attention", layer.mixer.tensors(layer)),
            *(layer._norm("attention_post_norm") if post else ()),
            *(layer._norm("feed_forward_norm") if pre else ()),
            *within("feed_forward", last),
            *(layer._norm("feed_forward_post_norm") if post else ()),
        ]

    def _norm(self, name: str) -> Iterator[TensorSpec]:
        bias = self.norm_type == "layernorm" and self.bias
        return norm(name, self.dim, bias=bias, unit_offset=self.norm_unit_offset)

    def _counted(self) -> Iterator[tuple[int, TensorSpec]]:
        """Tensors with how often each is there, block by kind of block."""
        before, after = self.outside()
        yield from ((1, one) for one in before)
        for kind, number in self.kinds_in().items():
            yield from ((number, one) for one in self.block_tensors(kind))
        yield from ((1, one) for one in after)

    def params_by_part(self) -> dict[str, int]:
        """Parameters of each part."""
        names = PARTS + PARTS_OF_MOE if self.is_moe else PARTS
        parts: dict[str, int] = dict.fromkeys(names, 0)
        for number, one in self._counted():
            parts[one.part] += number * one.size
        return parts

    @property
    def num_params_estimate(self) -> int:
        """All parameters; exact for this architecture."""
        return sum(number * one.size for number, one in self._counted())

    @property
    def num_active_params(self) -> int:
        """Parameters that one token meets: all but those of the experts it is not routed to."""
        return sum(number * one.active for number, one in self._counted())

    def flops_per_token(self, seq_len: int) -> int:
        """Training FLOPs a token, forward and backward: 6 for each weight of the matrices that it
        is multiplied with (also of the output head, and of experts those it is routed to), and
        those of the token mixers.
        """
        kinds = self.kinds_in().items()
        blocks = sum(number * self.kind_flops_per_token(kind, seq_len) for kind, number in kinds)
        return blocks + self.head_flops_per_token()

    def block_flops_per_token(self, layer: int, seq_len: int) -> int:
        """The same of one block, counted from 0."""
        return self.kind_flops_per_token(self.kind_of(layer), seq_len)

    def head_flops_per_token(self) -> int:
        """The same of the output head."""
        return 6 * self.vocab_size * self.dim

    def kind_flops_per_token(self, kind: Kind, seq_len: int) -> int:
        """The same of a block of a kind."""
        layer = self.of_kind(kind.name)
        weights = sum(one.multiplied for one in self.block_tensors(kind))
        return 6 * weights + layer.mixer.flops(layer, seq_len)
