"""Activation checkpointing (arXiv:1604.06174): recompute a block's activations in backward."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from forge.models.experts import Experts
from forge.parallel.modules import blocks_of, layers_of, mix_in, mix_in_each

aten, c10d = torch.ops.aten, torch.ops._c10d_functional

SAVED_BY_SELECTIVE = [
    # Linear layers: most of a block's FLOPs.
    aten.mm.default,
    aten.addmm.default,
    # Attention: its FLOPs grow with seq^2, its output only with seq.
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.higher_order.flex_attention,
    # Experts: most of the FLOPs of a block that has them.
    aten._grouped_mm.default,
    torch.ops.forge.looped_mm.default,
    # The end of a layer under tensor parallelism, with and without sequence parallel.
    c10d.reduce_scatter_tensor.default,
    c10d.all_reduce.default,
]
"""Not kept, because cheap to repeat or as large as what is saved: norms, activations, rotations,
casts, all-gathers, and bmm (the math kernel's scores, whose memory grows with seq^2, and experts
with a capacity).
"""


def recompute(model: nn.Module, mode: str, *, every: int = 1, layers: bool = False) -> None:
    """Make blocks keep less for backward, in place; parameter names stay.

    mode: none; full = keep a block's input only; selective = keep the results of SAVED_BY_SELECTIVE
    too. every: only the first of each so many blocks. layers: with selective, recompute each layer
    of a block for itself, and of a mixture its experts and its shared ones. Needed where FSDP
    gathers experts inside the block: in the second run it does so differently, which torch takes
    for another computation (torch 2.13).
    """
    assert mode in ("none", "full", "selective"), mode
    if mode == "none":
        return
    for block in blocks_of(model)[::every]:
        recomputed = any(isinstance(module, Recomputed) for module in block.modules())
        assert not recomputed, "already checkpointed"
        apart = layers and mode == "selective"
        if apart:
            mix_in_each(block, {Experts: RecomputedExperts})
        for module in layers_of(block, mixtures=False) if apart else [block]:
            mix_in(module, Recomputed if mode == "full" else RecomputedSelectively)


# Nothing in a block draws random numbers, so there is no generator state to keep.
_run_again = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
_run_again_selectively = functools.partial(
    _run_again,
    context_fn=functools.partial(create_selective_checkpoint_contexts, SAVED_BY_SELECTIVE),
)


class Recomputed(nn.Module):
    """Mixin of a block: forward keeps the inputs and runs again in backward."""

    checkpoint: Any = staticmethod(_run_again)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.checkpoint(super().forward, *args, **kwargs)


class RecomputedSelectively(Recomputed):
    """The same, but the results of costly operations are kept."""

    checkpoint: Any = staticmethod(_run_again_selectively)


class RecomputedExperts(RecomputedSelectively):
    """The same for experts, which have two entry points."""

    def equal(self, x: Tensor) -> Tensor:
        return self.checkpoint(super().equal, x)  # type: ignore[misc]
