"""Causal scaled dot-product attention with the kernel named by `model.sdpa_backend`."""

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
from forge.models.head import soft_cap

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
"""Devices with wrong kernels: for tensors not contiguous
(https://github.com/pytorch/pytorch/issues/181133), and in 16 bits for causal masks
(https://github.com/pytorch/pytorch/issues/195910).
"""
HALF_ONLY_ON_GPU = ("flash", "cudnn")
CUDNN_FIRST = "cudnn_first"
"""The meaning of `auto` where cuDNN's kernel is the fastest; other kernels take the calls refused
by cuDNN.
"""
CUDNN_IS_FASTEST = ((9, 0), (10, 0))
"""Compute capabilities of Hopper and Blackwell: 1.7 to 2.3 times the speed of FlashAttention-2, a
kernel slower on both than on Ampere (https://github.com/huggingface/transformers/pull/48163).
"""
WITH_FLASH = ("auto", "flash", CUDNN_FIRST)
HALF = (torch.float16, torch.bfloat16)
ALIGNED = 8  # kernels of a GPU need widths of heads that are multiples of 8


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    backend: str,
    *,
    window: int = 0,
    chunk: int = 0,
    scale: float | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
    seen: Seen | None = None,
) -> Tensor:
    """q: [batch, heads, seq, head_dim] over k, v: [batch, kv_heads, past + seq, head_dim].

    Query i sees keys 0 to past + i, or the last `window` of these keys, or the keys of the query's
    run of `chunk` keys; k and v may have fewer heads (GQA, arXiv:2305.13245), and v another width,
    also the result's. scale: of the scores; null = 1 / sqrt(head_dim). cap: a soft cap of scores; 0
    = none. sinks: [heads], scores that take part in the softmax of each query of a head, and add
    nothing. seen: the keys seen by each query instead, window included, as a summand of scores, 0
    or -inf: [batch, 1, seq, keys]; or as blocks of whole rows.

    Several queries after a past get a GPU's flash kernel where possible and allowed by `backend`,
    else a mask and torch's choice of kernel, whatever `backend` is; likewise a window. Scores with
    a cap are written out.
    """
    options: dict[str, Any] = {"scale": scale, "cap": cap, "sinks": sinks}
    if isinstance(seen, BlockMask):
        return attend_in_blocks(q, k, v, seen, **options)
    if q.device.type in WRITTEN_OUT and backend != "auto":
        check_backend(backend, q.device.type, q.dtype)
    seq, keys = q.shape[2], k.shape[2]
    if seen is not None:
        return _softmax(q, k, v, backend, seen=seen.to(q.dtype), **options)
    if 0 < chunk < keys:
        if seq == keys:
            return _by_chunks(q, k, v, chunk, backend, options)
        first = (keys - seq) // chunk * chunk  # the first key that any query sees
        k, v, keys = k[:, :, first:], v[:, :, first:], keys - first
        if keys > chunk:
            return _softmax(q, k, v, seen=_band(q, keys, chunk=chunk), **options)
    if 0 < window < keys:
        if seq == keys and seq % window == 0:
            return _block_by_block(q, k, v, window, options)
        first = max(keys - seq - window + 1, 0)  # the first key that any query sees
        k, v, keys = k[:, :, first:], v[:, :, first:], keys - first
        return _softmax(q, k, v, seen=_band(q, keys, window), **options)
    return _over_all_keys(q, k, v, backend, options)


def _over_all_keys(
    q: Tensor, k: Tensor, v: Tensor, backend: str, options: dict[str, Any]
) -> Tensor:
    """Attend to keys 0 to past + i from query i. options: scale, cap and sinks."""
    seq, keys = q.shape[2], k.shape[2]
    plain = not options["cap"] and options["sinks"] is None
    plain = plain and q.device.type not in WRITTEN_OUT
    narrower = q.shape[-1] - v.shape[-1]
    by_flash = backend in WITH_FLASH and not (v.is_cuda and v.dtype not in HALF)
    if plain and narrower > 0 and by_flash:
        wide = F.pad(v, (0, narrower))  # flash kernels take values as wide as keys
        return _over_all_keys(q, k, wide, backend, options)[..., :-narrower]
    if 1 < seq < keys:
        if plain and backend in WITH_FLASH and _flash_after_a_past(q, k, v):
            # The kernel's is_causal ends at the last key; scaled_dot_product_attention's begins at
            # the first. The compiler cannot trace its public form, causal_lower_right of
            # torch.nn.attention.bias.
            flash = torch.ops.aten._scaled_dot_product_flash_attention
            return flash(q, k, v, is_causal=True, scale=options["scale"])[0]
        return _softmax(q, k, v, seen=_band(q, keys), **options)
    return _softmax(q, k, v, backend, causal=seq == keys, **options)


def _softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    backend: str = "auto",
    *,
    seen: Tensor | None = None,
    causal: bool = False,
    scale: float | None,
    cap: float,
    sinks: Tensor | None,
) -> Tensor:
    """Choose between a kernel, a sink and the written-out softmax. seen: bool, or a summand of
    scores. causal: queries and keys are of the same tokens. With neither every query sees all keys.
    """
    if cap or q.device.type in WRITTEN_OUT:
        seen = _band(q, k.shape[2]) if causal else seen
        return written_out(q, k, v, seen=seen, scale=scale, cap=cap, sinks=sinks)
    if sinks is not None:
        return _with_sinks(q, k, v, sinks, scale or q.shape[-1] ** -0.5, backend, seen, causal)
    options: dict[str, Any] = {"enable_gqa": q.shape[1] != k.shape[1], "scale": scale}
    if seen is None:
        return _by_backend(q, k, v, backend, is_causal=causal, **options)
    if options["enable_gqa"] and q.is_cuda:
        # No fused kernel takes a mask and fewer key heads.
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        options["enable_gqa"] = False
    return _by_backend(q, k, v, backend, attn_mask=seen, **options)


def _with_sinks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor,
    scale: float,
    backend: str,
    seen: Tensor | None,
    causal: bool,
) -> Tensor:
    """Attend with an extra first key for the sink, for any kernel: a further dimension of queries
    and keys gives the sink's score, and the sink's value is zeros.
    """
    width, of_values, extra_width = q.shape[-1], v.shape[-1], ALIGNED if q.is_cuda else 1
    scores = (sinks / scale).to(q.dtype).view(1, -1, 1, 1).expand(*q.shape[:3], 1)
    q = F.pad(torch.cat((q, scores), -1), (0, extra_width - 1, int(causal), 0))
    sink = F.pad(k.new_ones(*k.shape[:2], 1, 1), (width, extra_width - 1))
    k = torch.cat((sink, F.pad(k, (0, extra_width))), 2)
    v = F.pad(v, (0, k.shape[-1] - of_values, 1, 0))
    if seen is not None:
        seen = F.pad(seen, (1, 0), value=1.0 if seen.dtype == torch.bool else 0.0)
    options: dict[str, Any] = {"scale": scale, "cap": 0.0, "sinks": None}
    heads = _softmax(q, k, v, backend, seen=seen, causal=causal, **options)
    return heads[:, :, int(causal) :, :of_values]  # causal: the sink is a token before all others


def written_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seen: Tensor | None = None,
    scale: float | None = None,
    cap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend by matrix products and a softmax; without `seen` every query sees all keys. seen:
    bool, or a summand of scores. Scores with a cap or sinks are fp32 at least.
    """
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if cap or sinks is not None:
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if cap:
        scores = soft_cap(scores, cap)
    if seen is not None and seen.dtype == torch.bool:
        scores = scores.masked_fill(~seen, -torch.inf)
    elif seen is not None:
        scores = scores + seen
    if sinks is None:
        return scores.softmax(-1).to(v.dtype) @ v
    sink_scores = sinks.to(scores.dtype).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat((sink_scores, scores), -1).softmax(-1)[..., 1:].to(v.dtype) @ v


def _by_backend(q: Tensor, k: Tensor, v: Tensor, backend: str, **more: Any) -> Tensor:
    if backend == "auto" or (backend == CUDNN_FIRST and "attn_mask" in more):
        return F.scaled_dot_product_attention(q, k, v, **more)
    kernel = BACKENDS["cudnn" if backend == CUDNN_FIRST else backend]
    if backend != CUDNN_FIRST:
        check_backend(backend, q.device.type, q.dtype)
    # The math kernel takes every call.
    fallbacks = [other for other in BEHIND if other != kernel and backend != "math"]
    with sdpa_kernel([kernel, *fallbacks], set_priority=True):
        return F.scaled_dot_product_attention(q, k, v, **more)


def _band(q: Tensor, keys: int, window: int = 0, chunk: int = 0) -> Tensor:
    """The bool mask of the last queries over `keys` keys: [seq, keys]."""
    seq = q.shape[2]
    seen = torch.ones(seq, keys, dtype=torch.bool, device=q.device).tril(keys - seq)
    if chunk:
        runs = torch.arange(keys, device=q.device) // chunk
        return seen & (runs[keys - seq :, None] == runs)
    return seen.triu(keys - seq - window + 1) if window else seen


def _by_chunks(
    q: Tensor, k: Tensor, v: Tensor, chunk: int, backend: str, how: dict[str, Any]
) -> Tensor:
    """Attend within each run of `chunk` tokens, and within the shorter last run."""
    full_length = q.shape[2] // chunk * chunk

    def runs(x: Tensor) -> Tensor:
        """Cut whole runs out of x: [batch * runs, heads, chunk, dim]."""
        return x[:, :, :full_length].unflatten(2, (-1, chunk)).transpose(1, 2).flatten(0, 1)

    first = _softmax(runs(q), runs(k), runs(v), backend, causal=True, **how)
    first = first.unflatten(0, (len(q), -1)).transpose(1, 2).flatten(2, 3)
    if full_length == q.shape[2]:
        return first
    # Copied: a view would keep all of q, k and v for backward.
    tail = [x[:, :, full_length:].contiguous() for x in (q, k, v)]
    last = _softmax(tail[0], tail[1], tail[2], backend, causal=True, **how)
    return torch.cat((first, last), 2)


def _block_by_block(q: Tensor, k: Tensor, v: Tensor, window: int, how: dict[str, Any]) -> Tensor:
    """Attend by blocks of `window` queries over the keys of the same and the previous block: time
    and memory grow with seq * window.
    """

    def blocks(x: Tensor) -> Tensor:
        return x.unflatten(2, (-1, window)).transpose(1, 2)  # [batch, blocks, heads, window, dim]

    def two(x: Tensor) -> Tensor:
        return torch.cat((blocks(x)[:, :-1], blocks(x)[:, 1:]), 3).flatten(0, 1)

    # Copied: a view would keep all of q, k and v for backward.
    first_block = [x[:, :, :window].contiguous() for x in (q, k, v)]
    first = _softmax(first_block[0], first_block[1], first_block[2], causal=True, **how)
    queries = blocks(q)[:, 1:]
    seen = _band(first, 2 * window, window)
    later_blocks = _softmax(queries.flatten(0, 1), two(k), two(v), seen=seen, **how)
    later_blocks = later_blocks.unflatten(0, queries.shape[:2]).transpose(1, 2).flatten(2, 3)
    return torch.cat((first, later_blocks), 2)


def _flash_after_a_past(q: Tensor, k: Tensor, v: Tensor) -> bool:
    if not q.is_cuda or q.shape[-1] % ALIGNED:
        return False
    return can_use_flash_attention(SDPAParams(q, k, v, None, 0.0, False, q.shape[1] != k.shape[1]))


def on_device(backend: str, capability: tuple[int, int]) -> str:
    """Resolve `auto` on a GPU of a compute capability; other backends are returned unchanged.

    cuDNN's kernel is not deterministic: with deterministic algorithms torch chooses.
    """
    fastest = capability in CUDNN_IS_FASTEST and not torch.are_deterministic_algorithms_enabled()
    return CUDNN_FIRST if backend == "auto" and fastest else backend


def check_backend(backend: str, device_type: str, dtype: torch.dtype) -> None:
    """Raises ValueError where torch lacks the kernel, instead of torch's 'No viable backend'."""
    if device_type == "cpu" and backend not in CPU_BACKENDS:
        message = "torch has no such kernel on a CPU; use auto, flash or math"
    elif device_type == "mps" and backend != "math":
        message = "on an Apple GPU attention is written out; use auto or math"
    elif device_type == "cuda" and backend in HALF_ONLY_ON_GPU and dtype not in HALF:
        message = f"this kernel takes bf16 or fp16, not {dtype}; use auto, efficient or math"
    else:
        return
    raise ValueError(f"model.sdpa_backend={backend!r}: {message}")
