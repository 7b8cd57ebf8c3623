"""A model with matrices in few bits: the packed matrices, and their filling.

Every part of a packed weight is a parameter without a gradient. tp, ep and FSDP cut the part like
any other parameter: `forge.config.adapters.packed` has the name, shape and cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from forge.adapters.formats import pack_weight, unpack_weight
from forge.config.adapters.packed import AT_ONCE, PARTS
from forge.models.init import Initial
from forge.tensors.local import full, local, owned, select

Read = Callable[[Sequence[Tensor]], Tensor]
"""From indices along each dimension but the last to whole rows of a weight, in any format."""


@dataclass(eq=False)
class Packed:
    """A packed weight of a module. name, shape: of the weight in the whole model."""

    module: nn.Module
    attribute: str
    name: str
    shape: tuple[int, ...]
    how: str

    @property
    def names(self) -> list[str]:
        """Names of the weight's parameters, in the order of PARTS."""
        return [f"{self.name}_{part}" for part in PARTS[self.how]]

    @property
    def attributes(self) -> list[str]:
        """Names of the parameters in the module."""
        return [f"{self.attribute}_{part}" for part in PARTS[self.how]]

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the parts for computation on this rank."""
        return tuple(getattr(self.module, name) for name in self.attributes)

    def weight(self, dtype: torch.dtype) -> Tensor:
        """Return the part of the weight for computation on this rank."""
        return unpack_weight(self.how, self.tensors(), dtype)

    def whole(self) -> Tensor:
        """Return the weight in fp32, with the values of products; a collective."""
        parts = tuple(full(values.detach()) for values in self.parameters().values())
        return unpack_weight(self.how, parts, torch.float32)

    def parameters(self) -> dict[str, Tensor]:
        """Return the packed parts by name, laid out over ranks."""
        registered: Any = self.module._parameters
        return dict(zip(PARTS[self.how], map(registered.get, self.attributes), strict=True))

    @torch.no_grad()
    def fill(self, read: Read) -> None:
        """Round the rows of this rank's shard, some at a time, and store the rank's columns."""
        parameters = self.parameters()
        *stack, rows, _ = owned(parameters["codes"])
        columns = {part: owned(values)[-1] for part, values in parameters.items()}
        flat = {part: local(values).flatten(0, -2) for part, values in parameters.items()}
        start = 0
        for expert in product(*(indices.split(1) for indices in stack)):
            for chunk in rows.split(max(1, AT_ONCE // self.shape[-1])):
                end = start + len(chunk)
                for part, values in pack_weight(
                    read([*expert, chunk]).flatten(0, -2), self.how
                ).items():
                    flat[part][start:end] = select(values, [columns[part]], first=1)
                start = end

    def rows_of(self, values: Tensor) -> Read:
        """Return a reader of whole rows from `values`, the rows requested by `fill`."""
        *mine, _ = owned(self.parameters()["codes"])

        def read(indices: Sequence[Tensor]) -> Tensor:
            pairs = zip(mine, indices, strict=True)
            return select(values, [torch.searchsorted(stored, index) for stored, index in pairs])

        return read


def few_bits(module: nn.Module) -> list[Packed]:
    """Return the packed weights of a module, without submodules."""
    return vars(module).get("few_bits", [])


def packed_in(model: nn.Module) -> list[Packed]:
    """Return all packed weights of a model, or of this rank's stages."""
    return [matrix for module in model.modules() for matrix in few_bits(module)]


def plain_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield all parameters but the parts of packed weights, with formats of their own."""
    parts = {id(values) for matrix in packed_in(model) for values in matrix.parameters().values()}
    yield from (parameter for parameter in model.parameters() if id(parameter) not in parts)


def initial_values(model: Any, name: str, shape: Sequence[int], seed: int) -> Read:
    """Return a reader of the initial values of a weight, as drawn by `forge.models.init`."""
    initial = Initial(name=name, shape=shape, std=model.init_std(name), seed=seed)
    return lambda indices: select(initial.rows(indices[0]), indices[1:], first=1)
