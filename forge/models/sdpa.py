"""Causal scaled dot-product attention with the kernel that `model.sdpa_backend` names."""

from __future__ import annotations

import torch
import torch.nn.attention.bias  # lets the compiler trace can_use_flash_attention
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
BEHIND = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)
"""Tried in turn where the named kernel does not take a call, as cuDNN's of a single key (torch
2.11).
"""
CPU_BACKENDS = ("flash", "math")
HALF_ONLY_ON_GPU = ("flash", "cudnn")


def causal_attention(q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
    """q: [batch, heads, seq, head_dim] over k, v: [batch, kv_heads, past + seq, head_dim].

    Query i sees keys 0 to past + i; k and v may have fewer heads (GQA, arXiv:2305.13245). Several
    queries after a past get a GPU's flash kernel where it fits and `backend` allows it, else a mask
    and the kernel that torch chooses, whatever `backend` is.
    """
    seq, keys = q.shape[2], k.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if 1 < seq < keys:
        if backend in ("auto", "flash") and _flash_after_a_past(q, k, v):
            # Unlike that of scaled_dot_product_attention, its is_causal ends at the last key. The
            # compiler cannot trace torch.nn.attention.bias.causal_lower_right, which uses it.
            return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, is_causal=True)[0]
        mask = torch.ones(seq, keys, dtype=torch.bool, device=q.device).tril(keys - seq)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)
    is_causal = seq == keys
    if backend == "auto":
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)
    check_backend(backend, q.device.type, q.dtype)
    named = BACKENDS[backend]
    others = [other for other in BEHIND if other != named and backend != "math"]  # which takes all
    with sdpa_kernel([named, *others], set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=grouped)


def _flash_after_a_past(q: Tensor, k: Tensor, v: Tensor) -> bool:
    if not q.is_cuda or q.shape[-1] % 8:
        return False
    return can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, q.shape[1] != k.shape[1]))


def check_backend(backend: str, device_type: str, dtype: torch.dtype) -> None:
    """Raises ValueError where torch has no such kernel, instead of its 'No viable backend'."""
    half = dtype in (torch.float16, torch.bfloat16)
    if device_type == "cpu" and backend not in CPU_BACKENDS:
        what = "torch has no such kernel on a CPU; use auto, flash or math"
    elif device_type == "cuda" and backend in HALF_ONLY_ON_GPU and not half:
        what = f"this kernel takes bf16 or fp16, not {dtype}; use auto, efficient or math"
    else:
        return
    raise ValueError(f"model.sdpa_backend={backend!r}: {what}")
