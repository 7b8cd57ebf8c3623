"""GPUs that can be planned for without being here."""

from __future__ import annotations

GIB = 1 << 30
DEVICES = {
    "a100_40gb": int(39.4 * GIB),
    "a100": int(79.2 * GIB),
    "h100": int(79.1 * GIB),
    "h200": int(139.8 * GIB),
    "b200": int(178.3 * GIB),
    "l40s": int(44.4 * GIB),
    "rtx4090": int(23.6 * GIB),
}
"""Bytes of memory by the name that plan.device has for a GPU, as torch says them where they run
out: less than what the GPU is called by.
"""
