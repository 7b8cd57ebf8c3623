"""Causal scaled dot-product attention with the kernel that `model.sdpa_backend` names."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.attention.bias  # lets the compiler trace can_use_flash_attention
import torch.nn.functional as F
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask

from forge.models.documents import Seen, attend_in_blocks

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
WRITTEN_OUT = ("mps",)
"""Devices whose kernels do not give what they should: of tensors that are not contiguous
(https://github.com/pytorch/pytorch/issues/181133), and in 16 bits of causal masks
(https://github.com/pytorch/pytorch/issues/195910).
"""
HALF_ONLY_ON_GPU = ("flash", "cudnn")
HALF = (torch.float16, torch.bfloat16)


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    backend: str,
    *,
    window: int = 0,
    scale: float | None = None,
    seen: Seen | None = None,
) -> Tensor:
    """q: [batch, heads, seq, head_dim] over k, v: [batch, kv_heads, past + seq, head_dim].

    Query i sees keys 0 to past + i, or the last `window` of these; k and v may have fewer heads
    (GQA, arXiv:2305.13245), and v a width of its own, which is the result's. scale: of the scores;
    null = 1 / sqrt(head_dim). seen: says instead which keys each query sees, the window too, by
    what is added to scores, 0 or -inf: [batch, 1, seq, keys]; or by blocks of whole rows.

    Several queries after a past get a GPU's flash kernel where it fits and `backend` allows it,
    else a mask and the kernel that torch chooses, whatever `backend` is; so does a window.
    """
    if isinstance(seen, BlockMask):
        return attend_in_blocks(q, k, v, seen, scale)
    if q.device.type in WRITTEN_OUT:
        if backend != "auto":
            check_backend(backend, q.device.type, q.dtype)
        seen = _band(q, k.shape[2], window) if seen is None else seen
        return written_out(q, k, v, seen=seen, scale=scale)
    seq, keys = q.shape[2], k.shape[2]
    more: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1], "scale": scale}
    masked = seen is not None or 0 < window < keys
    if masked and more["enable_gqa"] and q.is_cuda:
        # No fused kernel takes a mask and fewer key heads.
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        more["enable_gqa"] = False
    if seen is not None:
        return _by_backend(q, k, v, backend, attn_mask=seen.to(q.dtype), **more)
    if masked:
        if seq == keys and seq % window == 0:
            return _block_by_block(q, k, v, window, more)
        first = max(keys - seq - window + 1, 0)  # the first key that any query sees
        k, v, keys = k[:, :, first:], v[:, :, first:], keys - first
        return F.scaled_dot_product_attention(q, k, v, attn_mask=_band(q, keys, window), **more)
    narrower = q.shape[-1] - v.shape[-1]
    if narrower > 0 and backend in ("auto", "flash") and not (v.is_cuda and v.dtype not in HALF):
        wide = F.pad(v, (0, narrower))  # flash kernels take values as wide as keys
        return causal_attention(q, k, wide, backend, scale=scale)[..., :-narrower]
    if 1 < seq < keys:
        if backend in ("auto", "flash") and _flash_after_a_past(q, k, v):
            # Unlike that of scaled_dot_product_attention, its is_causal ends at the last key. The
            # compiler cannot trace torch.nn.attention.bias.causal_lower_right, which uses it.
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            return flash(q, k, v, is_causal=True, scale=scale)[0]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=_band(q, keys), **more)
    return _by_backend(q, k, v, backend, is_causal=seq == keys, **more)


def written_out(
    q: Tensor, k: Tensor, v: Tensor, *, seen: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """The same by matrix products and a softmax; without `seen` every query sees all keys. seen:
    where a query sees a key, or what is added to scores.
    """
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if seen is not None and seen.dtype == torch.bool:
        scores = scores.masked_fill(~seen, -torch.inf)
    elif seen is not None:
        scores = scores + seen
    return scores.softmax(-1) @ v


def _by_backend(q: Tensor, k: Tensor, v: Tensor, backend: str, **more: Any) -> Tensor:
    if backend == "auto":
        return F.scaled_dot_product_attention(q, k, v, **more)
    check_backend(backend, q.device.type, q.dtype)
    named = BACKENDS[backend]
    others = [other for other in BEHIND if other != named and backend != "math"]  # which takes all
    with sdpa_kernel([named, *others], set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, **more)


def _band(q: Tensor, keys: int, window: int = 0) -> Tensor:
    """Which of `keys` keys the queries, which are the last, see: [seq, keys]."""
    seq = q.shape[2]
    seen = torch.ones(seq, keys, dtype=torch.bool, device=q.device).tril(keys - seq)
    return seen.triu(keys - seq - window + 1) if window else seen


def _block_by_block(q: Tensor, k: Tensor, v: Tensor, window: int, more: dict[str, Any]) -> Tensor:
    """Blocks of `window` queries over their own keys and those of the block before, so that time
    and memory grow with seq * window.
    """

    def blocks(x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, window)).transpose(1, 2)  # [batch, blocks, heads, window, dim]

    def two(x: Tensor) -> Tensor:
        return torch.cat((blocks(x)[:, :-1], blocks(x)[:, 1:]), 3).flatten(0, 1)

    own = [x[:, :, :window].contiguous() for x in (q, k, v)]  # else all of each is kept
    first = F.scaled_dot_product_attention(own[0], own[1], own[2], is_causal=True, **more)
    queries = blocks(q)[:, 1:]
    rest = F.scaled_dot_product_attention(
        queries.flatten(0, 1), two(k), two(v), attn_mask=_band(first, 2 * window, window), **more
    )
    rest = rest.unflatten(0, queries.shape[:2]).transpose(1, 2).flatten(2, 3)
    return torch.cat((first, rest), 2)


def _flash_after_a_past(q: Tensor, k: Tensor, v: Tensor) -> bool:
    if not q.is_cuda or q.shape[-1] % 8:
        return False
    return can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, q.shape[1] != k.shape[1]))


def check_backend(backend: str, device_type: str, dtype: torch.dtype) -> None:
    """Raises ValueError where torch has no such kernel, instead of its 'No viable backend'."""
    if device_type == "cpu" and backend not in CPU_BACKENDS:
        what = "torch has no such kernel on a CPU; use auto, flash or math"
    elif device_type == "mps" and backend != "math":
        what = "on an Apple GPU attention is written out; use auto or math"
    elif device_type == "cuda" and backend in HALF_ONLY_ON_GPU and dtype not in HALF:
        what = f"this kernel takes bf16 or fp16, not {dtype}; use auto, efficient or math"
    else:
        return
    raise ValueError(f"model.sdpa_backend={backend!r}: {what}")
