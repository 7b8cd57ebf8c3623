"""The layouts that are compared with one device in bf16."""

from __future__ import annotations

from dataclasses import dataclass

from parity_cases import layout_of


@dataclass(frozen=True, kw_only=True)
class InBf16:
    """A layout in bf16, against one device in bf16. both: overrides of both sides."""

    name: str
    layout: str
    model: str = "llama"
    both: str = ""


FP32_HEAD = "model.logits_dot_in_fp32=true"
FP32_BETWEEN = "precision.residual_dtype=fp32"
EACH = "parallel.reduce_gradients=micro_batch"
BF16_CASES = [
    InBf16(name=name, layout=layout_of(layout), **rest)
    for name, layout, rest in (
        ("fsdp2", "dp_shard=2", {}),
        ("fsdp2, tied", "dp_shard=2", {"model": "llama, tied"}),
        ("ddp2, each micro-batch reduced", f"ddp batch=2 {EACH}", {}),
        ("fsdp2, reduced in bf16", "dp_shard=2 precision.reduce_dtype=bf16", {}),
        ("ddp2, reduced in bf16", "ddp precision.reduce_dtype=bf16", {}),
        ("fsdp2, two reduced in bf16", "dp_shard=2 batch=2 precision.reduce_dtype=bf16", {}),
        ("tp2", "tp=2", {}),
        ("cp2", "cp=2", {}),
        ("pp2", "pp2", {}),
        ("fsdp2, gpt2", "dp_shard=2", {"model": "gpt2"}),
        ("tp2, gpt2", "tp=2", {"model": "gpt2"}),
        ("fsdp2, fp32 between layers", "dp_shard=2", {"both": FP32_BETWEEN}),
        ("tp2, fp32 between layers", "tp=2", {"both": FP32_BETWEEN}),
        ("fsdp2, logits by fp32", "dp_shard=2", {"both": FP32_HEAD}),
        ("tp2, logits by fp32", "tp=2", {"both": FP32_HEAD}),
        ("pp2, logits by fp32, chunked", "pp2 chunked", {"both": FP32_HEAD}),
        ("pp2, fp32 between layers", "pp2", {"both": FP32_BETWEEN}),
        ("fsdp2, nanochat", "dp_shard=2", {"model": "nanochat"}),
        ("tp2, nanochat", "tp=2", {"model": "nanochat"}),
        (
            "fsdp2, nanochat, fp32 between layers",
            "dp_shard=2",
            {"model": "nanochat", "both": FP32_BETWEEN},
        ),
    )
]
