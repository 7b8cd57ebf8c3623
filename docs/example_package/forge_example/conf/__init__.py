"""The schemas of this package. `hydra.searchpath=[pkg://forge_example.conf]` imports it, so it must
not import torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from forge.api import (
    AttentionSection,
    DecoderSection,
    FeedForwardSection,
    ModelSection,
    NextTokenSection,
    ObjectiveSection,
    OptimizerSection,
    TensorSpec,
    linear,
    opt,
    register,
)


@dataclass(kw_only=True)
class GatedConv(ModelSection):
    """Gated causal convolutions (arXiv:1612.08083), each layer reaching twice as far back as the
    one before.
    """

    _target_: str = "forge_example.gated_conv.GatedConv"
    dim: int = opt(128, "width of the residual stream", gt=0)
    n_layers: int = opt(4, "number of convolution blocks", gt=0, le=24)
    kernel_size: int = opt(4, "tokens that each convolution reads", gt=1)

    def flops_per_token(self, seq_len: int) -> int:
        """6 per weight of every convolution and of the output head."""
        return 6 * (
            self.n_layers * self.kernel_size * self.dim * 2 * self.dim + self.vocab_size * self.dim
        )


@dataclass(kw_only=True)
class LabelSmoothing(NextTokenSection):
    """Next-token prediction against smoothed targets (arXiv:1512.00567, section 7)."""

    _target_: str = "forge_example.label_smoothing.LabelSmoothing"
    smoothing: float = opt(0.1, "probability that is spread evenly over the vocabulary", ge=0, lt=1)


@dataclass(kw_only=True)
class Distillation(ObjectiveSection):
    """What a frozen teacher says of the text, learnt from noised text (arXiv:1911.04252)."""

    _target_: str = "forge_example.distillation.Distillation"
    metrics = ("loss", "agreement", "largest_loss")
    higher_is_better = frozenset({"agreement"})
    teacher: str | None = opt(
        None, "a run or a checkpoint of it; null = the initial weights", path=True
    )
    noise: float = opt(0.1, "share of tokens that the student does not see", ge=0, lt=1)

    def frozen_models(self) -> dict[str, str | None]:
        return {"teacher": self.teacher}


@dataclass(kw_only=True)
class GatedAttention(AttentionSection):
    """Attention whose output is gated (arXiv:2505.06708)."""

    _target_: str = "forge_example.gated_attention.GatedAttention"

    def tensors(self, layer: DecoderSection) -> Iterator[TensorSpec]:
        yield from super().tensors(layer)
        width, heads = layer.n_heads * layer.computed_head_dim, layer.n_heads
        yield from linear("w_gate", width, layer.dim, part="attention", tp=0, pieces=heads)


@dataclass(kw_only=True)
class LowRank(FeedForwardSection):
    """A feed-forward layer that begins with a matrix of low rank (arXiv:2407.09835)."""

    _target_: str = "forge_example.low_rank.LowRank"
    rank: int = opt(32, "rank of the first matrix", gt=0)

    def tensors(self, layer: DecoderSection) -> Iterator[TensorSpec]:
        hidden = layer.computed_ffn_hidden_dim
        yield from linear("w_in", self.rank, layer.dim, part="feed-forward")
        yield from linear("w_up", hidden, self.rank, part="feed-forward", tp=0)
        yield from linear("w_down", layer.dim, hidden, part="feed-forward", tp=1, residual=True)


@dataclass(kw_only=True)
class Signum(OptimizerSection):
    """Signum (arXiv:1802.04434)."""

    state_per_weight = 1
    _target_: str = "forge_example.signum.Signum"
    beta: float = opt(0.9, "decay rate of the momentum", ge=0, lt=1)


@dataclass(kw_only=True)
class ScheduleFree(OptimizerSection):
    """Schedule-free SGD (arXiv:2405.15682)."""

    state_per_weight = 2  # z, and y while the weights are x
    _target_: str = "forge_example.schedule_free.ScheduleFree"
    beta: float = opt(0.9, "share of the mean in what is trained", gt=0, lt=1)


register("model", "gated_conv", GatedConv)
register("mixer", "gated", GatedAttention)
register("feed_forward", "low_rank", LowRank)
register("optimizer", "signum", Signum)
register("optimizer", "schedule_free", ScheduleFree)
register("objective", "label_smoothing", LabelSmoothing)
register("objective", "distillation", Distillation)
