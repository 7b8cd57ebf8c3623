"""The `model` group: what is trained."""

from __future__ import annotations

from dataclasses import dataclass, field

from omegaconf import MISSING

from forge.config.field import AutoInt, Section, opt
from forge.config.moe import MoE, is_moe_layer, n_moe_layers

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

    def params_by_part(self) -> dict[str, int]:
        """Parameters of each part, in closed form."""
        dim, ffn = self.dim, self.computed_ffn_hidden_dim
        heads_dim, kv_dim = self.n_heads * self.head_dim, self.kv_heads * self.head_dim
        norm = dim * (2 if self.norm_type == "layernorm" and self.bias else 1)
        attention, feed_forward = self._attention_matrices(), self._feed_forward_matrices(ffn)
        attention += 2 * self.head_dim if self.qk_norm else 0
        if self.bias:
            attention += heads_dim + 2 * kv_dim + dim
            feed_forward += ffn * (2 if self.is_gated else 1) + dim
        moe_layers, expert = self.n_moe_layers, self._feed_forward_matrices(self.expert_hidden_dim)
        positions = self.max_seq_len if self.position == "learned" else 0
        parts = {
            "embedding": (self.vocab_size + positions) * dim,
            "attention": self.n_layers * attention,
            "feed-forward": (self.n_layers - moe_layers) * feed_forward,
            "norms": (2 * self.n_layers + 1) * norm,
            "output head": 0 if self.tie_embeddings else self.vocab_size * dim,
        }
        if self.is_moe:
            parts |= {
                "routers": moe_layers * self.moe.num_experts * dim,
                "experts": moe_layers * self.moe.num_experts * expert,
                "shared experts": moe_layers * self.moe.shared_experts * expert,
            }
        return parts

    @property
    def num_params_estimate(self) -> int:
        """All parameters; exact for this architecture."""
        return sum(self.params_by_part().values())

    @property
    def num_active_params(self) -> int:
        """Parameters that one token meets: without the experts it is not routed to."""
        idle = self.n_moe_layers * max(self.moe.num_experts - self.moe.top_k, 0)
        expert = self._feed_forward_matrices(self.expert_hidden_dim)
        return self.num_params_estimate - idle * expert

    def flops_per_token(self, seq_len: int) -> int:
        """Training FLOPs a token, forward and backward (PaLM, arXiv:2204.02311, appendix B).

        6 for each weight of the matrices that a token meets, and 12 * n_layers * dim * seq_len for
        attention, of which causality takes nothing off.
        """
        blocks = (self.block_flops_per_token(layer, seq_len) for layer in range(self.n_layers))
        return sum(blocks) + self.head_flops_per_token()

    def block_flops_per_token(self, layer: int, seq_len: int) -> int:
        """The same of one block, counted from 0."""
        feed_forward = self.active_feed_forward(moe=is_moe_layer(self.moe, layer))
        matrices = self._attention_matrices() + feed_forward
        return 6 * matrices + 12 * self.n_heads * self.head_dim * seq_len

    def head_flops_per_token(self) -> int:
        """The same of the output head."""
        return 6 * self.vocab_size * self.dim

    def active_feed_forward(self, *, moe: bool) -> int:
        """Matrix weights that a token meets in a feed-forward layer, or in router and experts."""
        if not moe:
            return self._feed_forward_matrices(self.computed_ffn_hidden_dim)
        chosen = self.moe.top_k + self.moe.shared_experts
        expert = self._feed_forward_matrices(self.expert_hidden_dim)
        return self.moe.num_experts * self.dim + chosen * expert

    def _attention_matrices(self) -> int:
        return 2 * self.dim * self.head_dim * (self.n_heads + self.kv_heads)

    def _feed_forward_matrices(self, width: int) -> int:
        return self.dim * width * (3 if self.is_gated else 2)
