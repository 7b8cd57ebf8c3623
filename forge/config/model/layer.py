"""The shape of a decoder's layers, read by token mixers and feed-forward layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from omegaconf import MISSING

from forge.config.field import AutoInt, Condition, Section, opt, section
from forge.config.model.block_attention import BlockAttention
from forge.config.model.initial_law import InitialLaw
from forge.config.model.mtp import MultiToken
from forge.config.model.rotary import RotaryOptions
from forge.config.model.skips.backout import Backout
from forge.config.model.skips.engram import Engram
from forge.config.model.skips.hyper_connections import HyperConnections
from forge.config.model.skips.layer_inputs import LayerInputs
from forge.config.model.skips.residual_scalars import ResidualScalars
from forge.config.model.skips.smear import Smear
from forge.config.model.skips.value_embeddings import ValueEmbeddings
from forge.config.model.tensors import TensorSpec
from forge.config.model.window_pattern import WindowPattern

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")
GATED = Condition(lambda config, ranks: config.model.is_gated, "with model.gated_mlp=false")


@section
class Model(Section):
    """What every model has: a vocabulary and a longest sequence.

    reads_documents: whether it keeps documents apart that share a row: `hidden` takes `documents`.
    has_blocks: whether the section knows the blocks and the parameters of the model.
    """

    reads_documents: ClassVar[bool] = False
    has_blocks: ClassVar[bool] = False
    _target_: str = MISSING
    vocab_size: AutoInt = opt(
        32000,
        "rows of the embedding table; auto = one per tokenizer id",
        gt=0,
        choices=("auto",),
    )
    pad_vocab_to: int = opt(
        1, "round vocab_size up to a multiple; 128 suits matrix units and tp", gt=0
    )
    max_seq_len: int = opt(2048, "longest sequence in tokens", gt=0)
    recipe: str = opt(
        "llm",
        "option of the group recipe with values for training it, which recipe=NAME applies",
        free=True,
    )

    @property
    def is_moe(self) -> bool:
        """Whether any block routes its tokens to experts."""
        return False

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers, by `forge.models.dropout`."""
        return False

    @property
    def known_dim(self) -> int | None:
        """Width of the residual stream; None = unknown."""
        return None

    @property
    def routed_experts(self) -> int:
        """Experts of a block to choose from; 0 = no block has experts."""
        return 0

    def tensors(self) -> Iterator[TensorSpec]:
        """Yield every known parameter, in the order of the built model."""
        return iter(())

    def in_use(self) -> Iterator[tuple[str, LayerShape]]:
        """Yield the shape of each kind of layer in use, with the prefix of its keys."""
        return iter(())

    def flops_per_token(self, seq_len: int) -> int | None:
        """Return the training FLOPs a token, forward and backward; None = unknown."""
        return None


@section
class Skips(
    ValueEmbeddings, ResidualScalars, LayerInputs, Smear, Backout, HyperConnections, Engram
):
    """Ways around layers."""

    @property
    def has_skips(self) -> bool:
        return self.value_embeddings or self.rescaled or self.smear or self.backout

    @property
    def kept_around(self) -> int:
        """Hidden states kept for backward outside of layers: of a smear its input and that of the
        token before; of a backout the states of the middle layer.
        """
        return 2 * self.smear + self.backout


@section
class LayerShape(
    RotaryOptions, BlockAttention, WindowPattern, Skips, MultiToken, InitialLaw, Model
):
    """Options of a decoder that its layers read, with the values of one kind of layer."""

    if TYPE_CHECKING:  # declared by the decoder: the sections' classes read this class
        mixer: Any
        feed_forward: Any
        moe: Any
        kinds: dict[str, Any]
        layers: list[str]

        def of_kind(self, name: str) -> LayerShape: ...

        def kind_of(self, layer: int) -> Any: ...

    ffn_dim_multiplier: float = opt(1.0, "scales the computed feed-forward width", gt=0)
    ffn_hidden_dim: int | None = opt(
        None, "feed-forward width; null = 256 * ceil(int(4*dim*2/3*multiplier) / 256)", gt=0
    )
    activation: str = opt("silu", "activation of the feed-forward layer", choices=ACTIVATIONS)
    gated_mlp: bool | None = opt(
        None, "gate the feed-forward layer (SwiGLU and kin); null = only for silu"
    )
    fused_gate_up: bool = opt(
        False,
        "compute the gate and up projections in one matrix product (dense and shared "
        "experts); checkpoints keep the two matrices",
        acts_when=GATED,
        free=True,
    )
    mlp_activations_limit: float = opt(
        0.0,
        "clamp activation inputs to at most this, and gated values to within it; 0 = no limit",
        ge=0,
    )
    mlp_up_offset: float = opt(
        0.0, "constant added to the up projection: 1 in gpt-oss", acts_when=GATED
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
    init_std_tables: float | None = opt(
        None, "the same of embedding tables and output head; null = init_std", gt=0
    )
    init_scale_residual: bool = opt(
        True, "divide init_std of layers that end in the residual by sqrt(2*n_layers)"
    )

    @property
    def expert_hidden_dim(self) -> int:
        """Width of one expert, with null resolved to that of the dense feed-forward layer."""
        width = self.moe.ffn_hidden_dim
        return self.computed_ffn_hidden_dim if width is None else width

    @property
    def is_long(self) -> bool:
        """Whether blocks have parts after or beside their feed-forward layer."""
        return self.layer_scalar or self.per_layer_input_width > 0 or self.branched

    @property
    def branched(self) -> bool:
        """Whether experts and the dense layer beside them are branches with norms."""
        return self.moe.num_experts > 0 and self.moe.branch_norms

    @property
    def is_rotary(self) -> bool:
        """Whether heads are rotated.

        Recurrent mixers read tokens in order and need no positions.
        """
        return super().is_rotary and not self.mixer.recurrent

    @property
    def rotary_dim(self) -> int:
        """Rotated dimensions of a head."""
        return self.mixer.rotary_dim(self)

    @property
    def is_tempered(self) -> bool:
        """Whether queries are multiplied by a temperature of their positions."""
        read = "temperature_tuning" not in self.mixer.unread
        return read and self.temperature_tuning and self.position != "rope"

    @property
    def adds_values(self) -> bool:
        """Whether value embeddings are added to the values of attention."""
        return self.value_embeddings and "value_embeddings" not in self.mixer.unread

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
