"""Mixins of layers with matrices in few bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from forge.adapters.packed import Packed, few_bits
from forge.adapters.products import EqualGroupsProduct, GroupedProduct, Linear
from forge.config.adapters.packed import PARTS, packed_tensors
from forge.config.model.tensors import TensorSpec
from forge.models.experts import Experts
from forge.models.mixin import mix_in

CODES = {"nf4": torch.uint8, "nf4_double": torch.uint8, "int8": torch.int8}


class _Stacked:
    """A packed stack of experts, in the place of the stack's tensor."""

    def __init__(self, packed: Packed) -> None:
        self.packed = packed

    @property
    def shape(self) -> torch.Size:
        """Shape of the stack on this rank."""
        codes = self.packed.tensors()[0]
        values = codes.shape[-1] * self.packed.shape[-1] // _width(self.packed)
        return torch.Size((*codes.shape[:-1], values))


def _width(packed: Packed) -> int:
    """Return the number of codes of a whole row."""
    return packed.shape[-1] // PARTS[packed.how]["codes"].weights


class PackedLinear(nn.Module):
    """Mixin of nn.Linear. weight_dtype: format of the unpacked weight."""

    few_bits: list[Packed]
    weight_dtype: torch.dtype
    bias: Tensor | None

    @property
    def weight(self) -> Tensor:
        """This rank's part of the weight, unpacked."""
        return self.few_bits[0].weight(self.weight_dtype)

    def forward(self, x: Tensor) -> Tensor:
        matrix = self.few_bits[0]
        y: Tensor = Linear.apply(x, matrix.how, *matrix.tensors())
        return y if self.bias is None else y + self.bias


class PackedExperts(nn.Module):
    """Mixin of experts with some or all matrices packed."""

    few_bits: list[Packed]
    weight_dtype: torch.dtype

    def multiply(self, x: Tensor, counts: Tensor) -> Callable[[Tensor, Any], Tensor]:
        plain, grouped = super().multiply(x, counts), self._grouped(x)  # type: ignore[misc]

        def product_with(rows: Tensor, weight: Any) -> Tensor:
            if not isinstance(weight, _Stacked):
                return plain(rows, weight)
            matrix = weight.packed
            return GroupedProduct.apply(rows, counts, grouped, matrix.how, *matrix.tensors())

        return product_with

    def multiply_equal(self, x: Tensor, weight: Any) -> Tensor:
        if not isinstance(weight, _Stacked):
            return super().multiply_equal(x, weight)  # type: ignore[misc]
        return EqualGroupsProduct.apply(x, weight.packed.how, *weight.packed.tensors())


def pack_weights(model: Any, weights: Iterable[TensorSpec], how: str, dtype: torch.dtype) -> None:
    """Keep weights of a model, or of a stage of the model, in few bits.

    The model on the meta device is changed in place. dtype: of products.
    """
    modules = dict(model.named_modules())
    for spec in weights:
        path, _, attribute = spec.name.rpartition(".")
        module = modules.get(path)
        if module is None:
            continue  # of another stage
        first = not isinstance(module, PackedLinear | PackedExperts)
        if first:
            mixin = PackedExperts if isinstance(module, Experts) else PackedLinear
            mix_in(module, mixin, few_bits=[], weight_dtype=dtype)
        matrix = Packed(module, attribute, spec.name, tuple(spec.shape), how)
        few_bits(module).append(matrix)
        del module._parameters[attribute]
        if isinstance(module, Experts):
            setattr(module, attribute, _Stacked(matrix))
        for part in packed_tensors(spec, how):
            kind = torch.float32 if part.bytes == 4 else CODES[how]
            values = torch.empty(part.spec.shape, dtype=kind, device="meta")
            name = f"{attribute}_{part.part}"
            module.register_parameter(name, nn.Parameter(values, requires_grad=False))
            model.table[part.spec.name] = part.spec
