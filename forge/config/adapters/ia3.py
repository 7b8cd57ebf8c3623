"""`adapter=ia3`: vectors that scale the outputs or inputs of some matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from forge.config.adapters.adapter import SCALES, Adapter, adapter_name, is_target
from forge.config.field import opt, section
from forge.config.model.activations import Numbers
from forge.config.model.tensors import MATRIX, NORM, TensorSpec


@section
class IA3(Adapter):
    """One number for each feature that keys, values and the hidden layer of feed-forward have, by
    which it is multiplied (arXiv:2205.05638).
    """

    schema_name = "ia3"
    active: ClassVar[bool] = True
    _target_: str = "forge.adapters.ia3.IA3"

    target_modules: list[str] = opt(
        ["wk", "wv", "w_down"],
        "matrices to scale, named as for adapter=lora; never of experts",
    )
    feedforward_modules: list[str] = opt(
        ["w_down"], "target_modules whose input is scaled; the others' output is"
    )

    def has(self, tensor: TensorSpec) -> bool:
        """Whether a vector stands beside a parameter."""
        plain = tensor.role == MATRIX and tensor.name.endswith(".weight")
        return plain and any(is_target(word, tensor) for word in self.target_modules)

    def scales_input(self, tensor: TensorSpec) -> bool:
        """Whether the vector of a parameter scales the input."""
        return any(is_target(word, tensor) for word in self.feedforward_modules)

    def added(self, tensors: Iterable[TensorSpec]) -> Iterator[TensorSpec]:
        for tensor in tensors:
            if self.has(tensor):
                dim = 1 if self.scales_input(tensor) else 0
                cut = tensor.tp == dim
                yield TensorSpec(
                    name=adapter_name(tensor, SCALES),
                    shape=(tensor.shape[dim],),
                    role=NORM,
                    part=tensor.part,
                    initial=1.0,
                    tp=0 if cut else None,
                    pieces=tensor.pieces if cut else 0,
                )

    def trains(self, tensor: TensorSpec) -> bool:
        return False

    def reads_input(self, tensor: TensorSpec) -> bool:
        return self.has(tensor) and self.scales_input(tensor)

    def kept_bytes(self, tensor: TensorSpec, numbers: Numbers, rows: float) -> float:
        """Bytes of the outputs scaled by a vector."""
        scales_output = self.has(tensor) and not self.scales_input(tensor)
        return numbers.width * tensor.on_rank(numbers.tp)[0] if scales_output else 0.0
