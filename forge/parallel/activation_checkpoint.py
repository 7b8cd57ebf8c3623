"""Activation checkpointing: recompute a block's activations in backward instead of keeping them
(arXiv:1604.06174).
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from forge.models.attention import Attention
from forge.models.experts import Experts
from forge.models.feed_forward import FeedForward
from forge.parallel.modules import blocks_of, mix_in

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

SAVED_BY_SELECTIVE = [
    aten.mm.default,  # a linear layer: most of a block's FLOPs
    aten.addmm.default,  # a linear layer with bias: the same
    # attention: FLOPs grow with seq^2, its output only with seq
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,  # the same, by another kernel
    aten._scaled_dot_product_cudnn_attention.default,  # the same
    aten._scaled_dot_product_flash_attention_for_cpu.default,  # the same, and the one a CPU has
    aten._grouped_mm.default,  # experts: most of a block's FLOPs that has them
    torch.ops.forge.looped_mm.default,  # the same, by a loop
    # what ends a layer under tensor parallelism: to run it again is to send it again
    c10d.reduce_scatter_tensor.default,
    c10d.all_reduce.default,  # the same, without sequence parallel
]
"""Not here: bmm, the math kernel's scores, whose memory grows with seq^2, and experts with a
capacity; norms, activations, rotations,
casts: cheap to repeat; all-gathers: what they give is as large as what is saved by not keeping it.
"""


def recompute(model: nn.Module, mode: str, *, every: int = 1, layers: bool = False) -> None:
    """Make each block keep less for backward, in place: none; full = its input only; selective =
    SAVED_BY_SELECTIVE too.

    every: only the first of each so many blocks. layers: where selective, recompute attention,
    experts and shared experts of a block apart, and keep what is around them. Where FSDP gathers
    experts by themselves it does so inside of the block, and not in the same way when that runs
    again, which torch's selective recompute takes for another computation (torch 2.13). Only the
    class of a block changes, so parameter names stay, and copies of the model run their own
    weights.
    """
    if mode not in ("none", "full", "selective"):
        raise ValueError(
            f"train.activation_checkpointing={mode!r}: must be none, full or selective"
        )
    if mode == "none":
        return
    for block in blocks_of(model)[::every]:
        assert not any(isinstance(module, Recomputed) for module in block.modules()), (
            "the blocks are checkpointed already"
        )
        if mode == "selective" and layers:
            for layer in [
                module
                for module in block.modules()
                if isinstance(module, Attention | Experts | FeedForward)
            ]:
                mix_in(
                    layer,
                    RecomputedExperts if isinstance(layer, Experts) else RecomputedSelectively,
                )
        else:
            mix_in(block, Recomputed if mode == "full" else RecomputedSelectively)


# Nothing in a block draws random numbers, so there is no generator state to keep.
_run_again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
_run_again_selectively = functools.partial(
    _run_again,
    context_fn=functools.partial(create_selective_checkpoint_contexts, SAVED_BY_SELECTIVE),
)


class Recomputed(nn.Module):
    """Mixin before a block's own class: forward keeps the inputs and runs again in backward."""

    checkpoint: Any = staticmethod(_run_again)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the block's own forward returns."""
        return self.checkpoint(super().forward, *args, **kwargs)


class RecomputedSelectively(Recomputed):
    """The same, but costly operations are not run again."""

    checkpoint: Any = staticmethod(_run_again_selectively)


class RecomputedExperts(RecomputedSelectively):
    """The same of experts, which have two ways in."""

    def equal(self, x: Tensor) -> Tensor:
        """As the experts' own."""
        return self.checkpoint(super().equal, x)  # type: ignore[misc]
