"""The `model` group: what is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any, ClassVar

from omegaconf import MISSING

from forge.config.attention_options import AttentionOptions
from forge.config.feed_forwards.base import FeedForward
from forge.config.feed_forwards.dense import Dense
from forge.config.field import AutoInt, Condition, Section, opt, section, variant_of
from forge.config.kinds import DEFAULT, OF_ALL_LAYERS, Kind, kind_faults
from forge.config.mixers.attention import Attention
from forge.config.mixers.base import Mixer
from forge.config.moe import MoE, is_moe_layer, n_moe_layers
from forge.config.problems import Problem
from forge.config.rotary import RotaryOptions
from forge.config.tensors import EMBEDDING, HEAD, POSITION, TensorSpec, norm, within

PARTS = ("embedding", "attention", "feed-forward", "norms", "output head")
PARTS_OF_MOE = ("routers", "experts", "shared experts")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")
GATED = Condition(lambda config, ranks: config.model.is_gated, "with model.gated_mlp=false")


@section
class Model(Section):
    """What every model has: a vocabulary and a longest sequence.

    reads_documents: whether it keeps documents apart that share a row: `hidden` takes `documents`.
    """

    reads_documents: ClassVar[bool] = False
    _target_: str = MISSING
    vocab_size: AutoInt = opt(
        32000,
        "rows of the embedding table; auto = one for each id of the tokenizer",
        gt=0,
        choices=("auto",),
    )
    pad_vocab_to: int = opt(
        1, "round vocab_size up to a multiple; 128 suits matrix units and tp", gt=0
    )
    max_seq_len: int = opt(2048, "longest sequence in tokens", gt=0)

    @property
    def is_moe(self) -> bool:
        """Whether any block routes its tokens to experts."""
        return False

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers in training, by `forge.models.dropout`."""
        return False

    def flops_per_token(self, seq_len: int) -> int | None:
        """Training FLOPs a token, forward and backward; None = not known."""
        return None


@section
class Decoder(RotaryOptions, AttentionOptions, Model):
    """A decoder-only transformer: the Llama shape by default, the GPT-2 shape by a few options."""

    schema_name = "decoder"
    reads_documents = True
    _target_: str = "forge.models.decoder.Decoder"
    ffn_dim_multiplier: float = opt(1.0, "scales the computed feed-forward width", gt=0)
    ffn_hidden_dim: int | None = opt(
        None, "feed-forward width; null = 256 * ceil(int(4*dim*2/3*multiplier) / 256)", gt=0
    )
    activation: str = opt("silu", "activation of the feed-forward layer", choices=ACTIVATIONS)
    gated_mlp: bool | None = opt(
        None, "gate the feed-forward layer (SwiGLU and kin); null = only for silu"
    )
    mlp_activations_limit: float = opt(
        0.0,
        "what enters an activation is at most this, and a gate multiplies within it; 0 = any",
        ge=0,
    )
    mlp_up_offset: float = opt(
        0.0, "added to what a gate multiplies: 1 in gpt-oss", acts_when=GATED
    )
    mlp_bias: bool = opt(False, "add biases to the feed-forward layers alone")
    tie_embeddings: bool = opt(False, "share the embedding table with the output head")
    new_rows: tuple[int, int] = opt(
        (0, 0),
        "rows [FIRST, END) of embedding and head that begin as the mean of those before FIRST, in "
        "weights that the run begins with; worked out of tokenizer.add_tokens",
        ge=0,
    )
    init_std: float = opt(0.02, "standard deviation of the initial weights", gt=0)
    init_scale_residual: bool = opt(
        True, "divide init_std of layers that end in the residual by sqrt(2*n_layers)"
    )
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

    @property
    def expert_hidden_dim(self) -> int:
        """Width of one expert, with null resolved to that of the dense feed-forward layer."""
        width = self.moe.ffn_hidden_dim
        return self.computed_ffn_hidden_dim if width is None else width

    @property
    def is_rotary(self) -> bool:
        """Whether heads are rotated: tokens that are read in their order need no positions."""
        return super().is_rotary and not self.mixer.recurrent

    @property
    def rotary_dim(self) -> int:
        """Dimensions of a head that are rotated."""
        return self.mixer.rotary_dim(self)

    @property
    def is_tempered(self) -> bool:
        """Whether queries are multiplied by a temperature of their positions."""
        read = "temperature_tuning" not in self.mixer.unread
        return read and self.temperature_tuning and self.position != "rope"

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with null resolved to n_heads."""
        if self.n_kv_heads is None or "n_kv_heads" in self.mixer.unread:
            return self.n_heads
        return self.n_kv_heads

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layer has a gate, with null resolved."""
        return self.gated_mlp if self.gated_mlp is not None else self.activation == "silu"

    @property
    def computed_ffn_hidden_dim(self) -> int:
        """Feed-forward width: ffn_hidden_dim, or Llama's rule rounded up to a multiple of 256."""
        if self.ffn_hidden_dim is not None:
            return self.ffn_hidden_dim
        return 256 * -(-int(4 * self.dim * 2 / 3 * self.ffn_dim_multiplier) // 256)

    @property
    def has_mlp_bias(self) -> bool:
        """Whether the feed-forward layer has biases."""
        return self.bias or self.mlp_bias

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
