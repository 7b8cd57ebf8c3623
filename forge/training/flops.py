"""The peak of a GPU, the reference of model FLOPs utilisation."""

from __future__ import annotations

import re

# Dense bf16 matrix FLOP/s with fp32 accumulation, by the name a driver reports; figures with 2:4
# sparsity are halved. None: a variant with another figure than its namesake.
PEAK_BF16_FLOPS: dict[str, float | None] = {
    "A100": 312e12,  # NVIDIA A100 data sheet
    "H100": 989.4e12,  # NVIDIA H100 architecture white paper, SXM5
    "H100 PCIe": 756e12,  # the same
    "H100 NVL": 835.5e12,  # NVIDIA H100 data sheet, 1671 sparse
    "GH200": 989.4e12,  # NVIDIA GH200 data sheet, 1979 sparse
    "H200": 989.4e12,  # NVIDIA H200 data sheet, SXM, 1979 sparse
    "H200 NVL": 835.5e12,  # the same, 1671 sparse
    "B200": 2250e12,  # NVIDIA HGX B200 data sheet, 4.5 PFLOP/s sparse
    "GB200": 2500e12,  # NVIDIA GB200 NVL72 data sheet, 5 PFLOP/s sparse a GPU
    "L40S": 362e12,  # NVIDIA L40S data sheet
    "RTX 4090": 165.2e12,  # NVIDIA Ada GPU architecture white paper
    "RTX 4090 D": None,
    "RTX 4090 Laptop": None,
    "RTX 5090": 209.5e12,  # NVIDIA RTX Blackwell GPU architecture white paper
    "RTX 5090 D": None,
    "RTX 5090 Laptop": None,
    "MI300X": 1307.4e12,  # AMD Instinct MI300X data sheet
}


def peak_flops(device_name: str) -> float | None:
    """Peak dense bf16 FLOP/s of one device by name; None if unknown.

    The longest table name occurring as whole words wins, so "H100 PCIe" is no "H100". A MIG slice
    has an unknown share of the device's peak.
    """
    if re.search(r"\bMIG\b", device_name):
        return None
    matches = [
        name
        for name in PEAK_BF16_FLOPS
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", device_name, re.IGNORECASE)
    ]
    return PEAK_BF16_FLOPS[max(matches, key=len)] if matches else None
