"""Vectors that scale features (IA3, arXiv:2205.05638)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from forge.adapters.adapter import Adapted, Adapter, decoder_of
from forge.config.adapters.adapter import adapter_prefix
from forge.config.adapters.ia3 import IA3 as IA3Section
from forge.config.model.tensors import TensorSpec
from forge.models.mixin import mix_in


class IA3(Adapter):
    """Vectors for the features of layers: ia3_scales [out], or [in] for scaled inputs."""

    section: IA3Section

    def inject(self, model: nn.Module) -> None:
        decoder = decoder_of(model)
        added = list(self.section.added(decoder.table.values()))
        for spec in added:
            path, _, name = spec.name.rpartition(".")
            empty = torch.empty(spec.shape, device="meta")
            model.get_submodule(path).register_parameter(name, nn.Parameter(empty))
        decoder.table |= {spec.name: spec for spec in added}

    def activate(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        for spec in self._targets(model):
            if layer := modules.get(adapter_prefix(spec)):  # otherwise of another stage
                on_input = self.section.scales_input(spec)
                mix_in(layer, ScaledLinear, scales_input=on_input, adapter_is_on=True)

    def _targets(self, model: nn.Module) -> Iterator[TensorSpec]:
        yield from (spec for spec in decoder_of(model).table.values() if self.section.has(spec))


class ScaledLinear(Adapted):
    """Mixin of nn.Linear: `scales * (W x + bias)`, or `W (scales * x) + bias`."""

    scales_input: bool
    ia3_scales: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not self.adapter_is_on:
            return super().forward(x)
        if self.scales_input:
            return super().forward(x * self.ia3_scales.to(x.dtype))
        y = super().forward(x)
        return y * self.ia3_scales.to(y.dtype)


def scaled_weight(values: Tensor, scales: Tensor, *, scales_input: bool) -> Tensor:
    """Return a matrix [out, in], or a bias [out], of an equal layer without an adapter."""
    wide = torch.promote_types(values.dtype, torch.float32)
    factor = scales.to(wide)
    if not scales_input and values.dim() > 1:
        factor = factor.unsqueeze(1)
    return (values.to(wide) * factor).to(values.dtype)
