"""LoRA beside a base in few bits (QLoRA, arXiv:2305.14314)."""

from __future__ import annotations

import torch
from torch import nn

from forge.adapters.adapter import decoder_of
from forge.adapters.lora import LoRA
from forge.adapters.packed_layers import pack_weights
from forge.config.adapters.qlora import QLoRA as QLoRASection


class QLoRA(LoRA):
    """LoRA beside packed weights.

    Parameters of a packed weight have the weight's name with `_codes` and so on for each part.
    """

    section: QLoRASection

    def pack(self, model: nn.Module, dtype: torch.dtype) -> None:
        weights = [spec for spec in decoder_of(model).section.tensors() if self.section.packs(spec)]
        pack_weights(model, weights, self.section.packed_format, dtype)
