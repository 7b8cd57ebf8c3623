"""Arcee's AFM: Llama with squared ReLU and no gate."""

from __future__ import annotations

from typing import Any, ClassVar

from forge.families.each.llama import Llama
from forge.families.keys import Keys


class Arcee(Llama):
    model_type = "arcee"
    architecture = "ArceeForCausalLM"
    absent: ClassVar[dict[str, Any]] = {"hidden_act": "relu2", "rms_norm_eps": 1e-5}

    def options(self, keys: Keys) -> dict[str, Any]:
        return super().options(keys) | {"gated_mlp": False}
