"""LoRA beside a base in few bits (QLoRA, arXiv:2305.14314)."""

from __future__ import annotations

import torch
from torch import nn

from forge.adapters.lora import LoRA
from forge.adapters.packed_layers import pack_weights
from forge.config.adapters.qlora import QLoRA as QLoRASection
from forge.models.decoder import Decoder


class QLoRA(LoRA):
    """Parameters of a packed weight: its name and, for each part of it, `_codes` and so on."""

    section: QLoRASection

    def pack(self, model: nn.Module, dtype: torch.dtype) -> None:
        assert isinstance(model, Decoder), model
        own = [one for one in model.section.tensors() if self.section.packs(one)]
        pack_weights(model, own, self.section.how, dtype)
