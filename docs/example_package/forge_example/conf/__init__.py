"""The schemas of this package. `hydra.searchpath=[pkg://forge_example.conf]` imports it, so it must
not import torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge.config import register
from forge.config.field import opt
from forge.config.model import Model
from forge.config.objective import Objective


@dataclass(kw_only=True)
class GatedConv(Model):
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
class LabelSmoothing(Objective):
    """Next-token prediction against smoothed targets (arXiv:1512.00567, section 7)."""

    _target_: str = "forge_example.label_smoothing.LabelSmoothing"
    smoothing: float = opt(0.1, "probability that is spread evenly over the vocabulary", ge=0, lt=1)


register("model", "gated_conv", GatedConv)
register("objective", "label_smoothing", LabelSmoothing)
