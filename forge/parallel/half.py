"""The 16-bit number formats by the names that precision.mixed_precision has for them."""

from __future__ import annotations

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
