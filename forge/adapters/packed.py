"""A model whose matrices are kept in few bits: what stands in place of them, and how it is filled.

Each part that is kept of a weight is a parameter of its own, without a gradient, which tp, ep and
FSDP cut as they do any other: `forge.config.adapters.packed` has its name, shape and cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from forge.adapters.formats import pack, weight_of
from forge.config.adapters.packed import AT_ONCE, PARTS
from forge.models.init import Initial
from forge.tensors.local import full, local, owned, select

Read = Callable[[Sequence[Tensor]], Tensor]
"""Indices along each dimension but the last -> these rows of a weight, whole, in any format."""


@dataclass(eq=False)
class Packed:
    """What stands in place of a weight. name, shape: of the weight in the whole model."""

    module: nn.Module
    attribute: str
    name: str
    shape: tuple[int, ...]
    how: str

    @property
    def names(self) -> list[str]:
        """Of the parameters that keep it, in the order of PARTS."""
        return [f"{self.name}_{part}" for part in PARTS[self.how]]

    @property
    def attributes(self) -> list[str]:
        """Their names in the module."""
        return [f"{self.attribute}_{part}" for part in PARTS[self.how]]

    def tensors(self) -> tuple[Tensor, ...]:
        """What this rank computes with."""
        return tuple(getattr(self.module, name) for name in self.attributes)

    def weight(self, dtype: torch.dtype) -> Tensor:
        """The part of the weight that this rank computes with."""
        return weight_of(self.how, self.tensors(), dtype)

    def whole(self) -> Tensor:
        """The weight in fp32, as products have it; a collective."""
        parts = tuple(full(values.detach()) for values in self.parameters().values())
        return weight_of(self.how, parts, torch.float32)

    def parameters(self) -> dict[str, Tensor]:
        """What is kept, by part, laid out over ranks."""
        found: Any = self.module._parameters
        return dict(zip(PARTS[self.how], map(found.get, self.attributes), strict=True))

    @torch.no_grad()
    def fill(self, read: Read) -> None:
        """Round the rows of which this rank has something, some at a time, and keep its part."""
        own = self.parameters()
        *stack, rows, _ = owned(own["codes"])
        columns = {part: owned(values)[-1] for part, values in own.items()}
        flat = {part: local(values).flatten(0, -2) for part, values in own.items()}
        start = 0
        for expert in product(*(one.split(1) for one in stack)):
            for some in rows.split(max(1, AT_ONCE // self.shape[-1])):
                end = start + len(some)
                for part, values in pack(read([*expert, some]).flatten(0, -2), self.how).items():
                    flat[part][start:end] = select(values, [columns[part]], first=1)
                start = end

    def rows_of(self, values: Tensor) -> Read:
        """Reads whole rows, of which these are all that `fill` asks for."""
        *mine, _ = owned(self.parameters()["codes"])

        def read(indices: Sequence[Tensor]) -> Tensor:
            pairs = zip(mine, indices, strict=True)
            return select(values, [torch.searchsorted(own, one) for own, one in pairs])

        return read


def few_bits(module: nn.Module) -> list[Packed]:
    """What a module keeps so of its own weights."""
    return vars(module).get("few_bits", [])


def packed_in(model: nn.Module) -> list[Packed]:
    """All that is packed of a model, or of this rank's stages."""
    return [one for module in model.modules() for one in few_bits(module)]


def plain_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """All parameters but those that keep weights in few bits, whose formats are their own."""
    parts = {id(values) for one in packed_in(model) for values in one.parameters().values()}
    yield from (one for one in model.parameters() if id(one) not in parts)


def drawn(model: Any, name: str, shape: Sequence[int], seed: int) -> Read:
    """Reads the initial values of a weight, as `forge.models.init` draws them."""
    initial = Initial(name=name, shape=shape, std=model.init_std(name), seed=seed)
    return lambda indices: select(initial.rows(indices[0]), indices[1:], first=1)
