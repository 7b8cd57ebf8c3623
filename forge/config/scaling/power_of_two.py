"""MaxText's global_parameter_scale: a preset's widths and layers times powers of two.

The split of the exponent over the dimensions is that of MaxText's configs/types.py, in our words.
"""

from __future__ import annotations

from forge.config.field import opt, section
from forge.config.scaling.base import Scaling, Settings

KEY = "scaling.global_parameter_scale"


@section
class PowerOfTwo(Scaling):
    """MaxText's scale: about so many times the parameters of the preset, a power of two."""

    schema_name = "power_of_two"
    global_parameter_scale: int = opt(
        1, "parameters of the blocks, in those of the preset: a power of two", gt=0
    )

    def shape(self, settings: Settings) -> None:
        scale = self.global_parameter_scale
        if settings.lacks_decoder():
            return
        if scale & (scale - 1):
            below, above = 1 << scale.bit_length() - 1, 1 << scale.bit_length()
            message = f"{scale} is no power of two, and widths are doubled."
            settings.refuse(f"{KEY}={scale}", message, f"{KEY}={below} or {KEY}={above}")
            return
        model, exponent = settings.config.model, scale.bit_length() - 1
        doubled, rest = divmod(exponent, 3)
        heads = doubled + (rest > 0)
        width = model.computed_ffn_hidden_dim
        kv_heads, head_dim = model.kv_heads, model.computed_head_dim
        experts = model.expert_hidden_dim
        self._double(settings, "model.head_dim", head_dim, 0)
        self._double(settings, "model.n_heads", model.n_heads, heads)
        self._double(settings, "model.n_kv_heads", kv_heads, heads)
        self._double(settings, "model.ffn_hidden_dim", width, heads)
        if model.is_moe:
            self._double(settings, "model.moe.ffn_hidden_dim", experts, heads)
        self._double(settings, "model.dim", model.dim, doubled + (rest > 1))
        self._double(settings, "model.n_layers", model.n_layers, doubled)

    def _double(self, settings: Settings, key: str, base: int, times: int) -> None:
        """Set an option to its preset's value, doubled so many times."""
        why = f"{base} * 2^{times}, {KEY}={self.global_parameter_scale}"
        settings.set(key, base << times, why)
