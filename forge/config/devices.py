"""GPUs by name: what one computes, holds and sends."""

from __future__ import annotations

from typing import NamedTuple

GB, GIB = 10**9, 1 << 30


class Device(NamedTuple):
    """Figures of a data sheet.

    memory: bytes that a driver reports. flops: of dense bf16 matrix products with fp32
    accumulation, a second. bandwidth: bytes a second of its memory. node_link: bytes a second that
    it sends to others of its machine; network: to those of other machines.
    """

    memory: int
    flops: float
    bandwidth: float
    node_link: float
    network: float


DEVICES = {
    # NVIDIA's data sheets, figures with 2:4 sparsity halved; memory as torch says it where it runs
    # out, which is less than the name. Links in one direction: NVLink, or PCIe 4.0 without a
    # bridge; a network card of 400 Gbit/s a GPU, of 200 with an A100, of 100 for a workstation.
    "a100_40gb": Device(int(39.4 * GIB), 312e12, 1555 * GB, 300 * GB, 25 * GB),
    "a100": Device(int(79.2 * GIB), 312e12, 2039 * GB, 300 * GB, 25 * GB),
    "h100": Device(int(79.1 * GIB), 989.4e12, 3350 * GB, 450 * GB, 50 * GB),
    "h200": Device(int(139.8 * GIB), 989.4e12, 4800 * GB, 450 * GB, 50 * GB),
    "b200": Device(int(178.3 * GIB), 2250e12, 8000 * GB, 900 * GB, 50 * GB),
    "l40s": Device(int(44.4 * GIB), 362e12, 864 * GB, 32 * GB, 25 * GB),
    "rtx4090": Device(int(23.6 * GIB), 165.2e12, 1008 * GB, 32 * GB, 12.5 * GB),
}
"""By the name that plan.device has for it."""
