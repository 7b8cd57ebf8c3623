"""The `precision` group: number formats of weights and arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.field import Section, opt


@dataclass(kw_only=True)
class Precision(Section):
    """Number formats of arithmetic; weights, their gradients and optimizer state are fp32, and
    norms, softmax and losses inside.
    """

    mixed_precision: str = opt(
        "bf16",
        "auto = bf16 with CUDA, else fp32; fp16 scales the loss",
        choices=("auto", "bf16", "fp16", "fp32"),
    )
    residual_dtype: str = opt(
        "auto",
        "hidden states between layers; auto = mixed_precision, but fp32 with fp16",
        choices=("auto", "bf16", "fp16", "fp32"),
    )
    matmul_precision: str = opt(
        "high",
        "with mixed_precision=fp32: highest = fp32, high = TF32, medium = bf16",
        choices=("highest", "high", "medium"),
    )
    init_loss_scale: float = opt(65536.0, "first loss scale of fp16; it adapts", gt=0)
