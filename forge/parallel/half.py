"""Number formats by the names that the `precision` options have for them."""

from __future__ import annotations

import torch

HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = HALF | {"fp32": torch.float32}
