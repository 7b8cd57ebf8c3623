"""The `model` group: what is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from forge.config.field import AutoInt, Section, opt
from forge.config.moe import MoE, is_moe_layer, n_moe_layers
from forge.config.tensors import EMBEDDING, HEAD, POSITION, TensorSpec, linear, norm, within

PARTS = ("embedding", "attention", "feed-forward", "norms", "output head")
PARTS_OF_MOE = ("routers", "experts", "shared experts")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2")


@dataclass(kw_only=True)
class Model(Section):
    """What every model has: a vocabulary and a longest sequence."""

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

    def flops_per_token(self, seq_len: int) -> int | None:
        """Training FLOPs a token, forward and backward; None = not known."""
        return None


@dataclass(kw_only=True)
class Decoder(Model):
    """A decoder-only transformer: the Llama shape by default, the GPT-2 shape by a few options."""

    schema_name = "decoder"
    _target_: str = "forge.models.decoder.Decoder"
    dim: int = opt(4096, "width of the residual stream", gt=0)
    n_layers: int = opt(32, "number of transformer blocks", gt=0)
    n_heads: int = opt(32, "attention heads", gt=0)
    n_kv_heads: int | None = opt(
        None, "key/value heads: null = n_heads (MHA), 1 = MQA, between = GQA", gt=0
    )
    ffn_dim_multiplier: float = opt(1.0, "scales the computed feed-forward width", gt=0)
    ffn_hidden_dim: int | None = opt(
        None, "feed-forward width; null = 256 * ceil(int(4*dim*2/3*multiplier) / 256)", gt=0
    )
    norm_type: str = opt("rmsnorm", "normalisation layer", choices=("rmsnorm", "layernorm"))
    norm_eps: float = opt(1e-5, "epsilon of the normalisation layers", gt=0)
    activation: str = opt("silu", "activation of the feed-forward layer", choices=ACTIVATIONS)
    gated_mlp: bool | None = opt(
        None, "gate the feed-forward layer (SwiGLU and kin); null = only for silu"
    )
    position: str = opt("rope", "position encoding", choices=("rope", "learned"))
    rope_theta: float = opt(10000.0, "base of the rotary frequencies", gt=0)
    bias: bool = opt(False, "add biases to the linear and LayerNorm layers of the blocks")
    tie_embeddings: bool = opt(False, "share the embedding table with the output head")
    qk_norm: bool = opt(
        False, "RMSNorm over queries and keys, a head at a time, before the rotation"
    )
    init_std: float = opt(0.02, "standard deviation of the initial weights", gt=0)
    init_scale_residual: bool = opt(
        True, "divide init_std of layers that end in the residual by sqrt(2*n_layers)"
    )
    sdpa_backend: str = opt(
        "auto",
        "kernel of scaled dot-product attention",
        choices=("auto", "flash", "efficient", "cudnn", "math"),
    )
    moe: MoE = field(
        default_factory=MoE,
        metadata={"help": "a mixture of experts in place of feed-forward layers"},
    )

    @property
    def is_moe(self) -> bool:
        return self.n_moe_layers > 0

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
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Key/value heads, with null resolved to n_heads."""
        return self.n_kv_heads if self.n_kv_heads is not None else self.n_heads

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

    def tensors(self) -> Iterator[TensorSpec]:
        """Every parameter, in the order of the built model."""
        before, after = self.outside()
        tables = {moe: self.block_tensors(moe=moe) for moe in self._kinds()}
        yield from before
        for layer in range(self.n_layers):
            yield from within(f"blocks.{layer}", tables[is_moe_layer(self.moe, layer)])
        yield from after

    def outside(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """The tensors before the first block, and those after the last."""
        table: dict[str, Any] = {"shape": (self.vocab_size, self.dim), "tp": 0}
        before = [TensorSpec(name="embedding.weight", role=EMBEDDING, part="embedding", **table)]
        if self.position == "learned":
            shape = (self.max_seq_len, self.dim)
            name = "positions.weight"
            before.append(TensorSpec(name=name, shape=shape, role=POSITION, part="embedding"))
        after = list(self._norm("norm"))
        if not self.tie_embeddings:
            after.append(TensorSpec(name="output.weight", role=HEAD, part="output head", **table))
        return before, after

    def block_tensors(self, *, moe: bool) -> list[TensorSpec]:
        """Those of one block, by their names inside of it. moe: whether it has experts."""
        width = self.computed_ffn_hidden_dim
        layer = self.moe.tensors(self) if moe else self.feed_forward_tensors(width, bias=self.bias)
        return [
            *self._norm("attention_norm"),
            *within("attention", self._attention_tensors()),
            *self._norm("feed_forward_norm"),
            *within("feed_forward", layer),
        ]

    def feed_forward_tensors(
        self, width: int, *, part: str = "feed-forward", bias: bool = False
    ) -> Iterator[TensorSpec]:
        """Those of a feed-forward layer of that width."""
        for name in ("w_gate", "w_up") if self.is_gated else ("w_up",):
            yield from linear(name, width, self.dim, part=part, bias=bias, tp=0)
        yield from linear("w_down", self.dim, width, part=part, bias=bias, tp=1, residual=True)

    def _attention_tensors(self) -> Iterator[TensorSpec]:
        shared: dict[str, Any] = {"part": "attention", "bias": self.bias}
        for name, heads in (("wq", self.n_heads), ("wk", self.kv_heads), ("wv", self.kv_heads)):
            yield from linear(name, heads * self.head_dim, self.dim, tp=0, pieces=heads, **shared)
        width = self.n_heads * self.head_dim
        yield from linear("wo", self.dim, width, tp=1, residual=True, **shared)
        for name in ("q_norm", "k_norm") if self.qk_norm else ():
            yield from norm(name, self.head_dim, part="attention")

    def _norm(self, name: str) -> Iterator[TensorSpec]:
        return norm(name, self.dim, bias=self.norm_type == "layernorm" and self.bias)

    def _kinds(self) -> dict[bool, int]:
        """Number of blocks without and with experts, of those that there are."""
        found = {False: self.n_layers - self.n_moe_layers, True: self.n_moe_layers}
        return {moe: number for moe, number in found.items() if number}

    def _counted(self) -> Iterator[tuple[int, TensorSpec]]:
        """Tensors with how often each is there, block by kind of block."""
        before, after = self.outside()
        yield from ((1, one) for one in before)
        for moe, number in self._kinds().items():
            yield from ((number, one) for one in self.block_tensors(moe=moe))
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
        """Training FLOPs a token, forward and backward (PaLM, arXiv:2204.02311, appendix B).

        6 for each weight of the matrices that a token is multiplied with: also of the output head,
        and of experts those it is routed to. 12 * n_layers * dim * seq_len for attention, of which
        causality takes nothing off.
        """
        kinds = self._kinds().items()
        blocks = sum(number * self._block_flops(moe, seq_len) for moe, number in kinds)
        return blocks + self.head_flops_per_token()

    def block_flops_per_token(self, layer: int, seq_len: int) -> int:
        """The same of one block, counted from 0."""
        return self._block_flops(is_moe_layer(self.moe, layer), seq_len)

    def head_flops_per_token(self) -> int:
        """The same of the output head."""
        return 6 * self.vocab_size * self.dim

    def _block_flops(self, moe: bool, seq_len: int) -> int:
        weights = sum(one.multiplied for one in self.block_tensors(moe=moe))
        return 6 * weights + 12 * self.n_heads * self.head_dim * seq_len
