"""`adapter=qlora`: LoRA beside weights in few bits."""

from __future__ import annotations

from forge.config.adapters.adapter import LoRA, is_added
from forge.config.adapters.packed import BLOCK, made_bytes, packed_bytes
from forge.config.field import opt, section
from forge.config.model.tensors import EXPERT, MATRIX, TensorSpec


@section
class QLoRA(LoRA):
    """LoRA beside a base in few bits, which is made again for each product (arXiv:2305.14314).

    The matrices of blocks whose rows are whole blocks of 64 weights are kept so; embeddings, the
    head, norms, routers, biases and what is trained itself stay as they are.
    """

    schema_name = "qlora"
    _target_: str = "forge.adapters.qlora.QLoRA"

    base_format: str = opt(
        "nf4",
        "format of the base weights: nf4 with a scale per 64 weights, or int8 with a scale per row",
        choices=("nf4", "int8"),
    )
    double_quantization: bool = opt(True, "with nf4: quantise the scales to 8 bits too")

    @property
    def packed_format(self) -> str:
        double = self.base_format == "nf4" and self.double_quantization
        return "nf4_double" if double else self.base_format

    def packs(self, tensor: TensorSpec) -> bool:
        inside = tensor.role in (MATRIX, EXPERT) and tensor.name.startswith("blocks.")
        stays = not is_added(tensor.name) and not self.trains(tensor)
        return inside and stays and tensor.shape[-1] % BLOCK == 0

    def resident_bytes(self, tensor: TensorSpec, shape: tuple[int, ...], *, width: int) -> int:
        if self.packs(tensor):
            return packed_bytes(shape, self.packed_format)
        return super().resident_bytes(tensor, shape, width=width)

    def unpacked_bytes(
        self, tensor: TensorSpec, shape: tuple[int, ...], *, width: int, cuda: bool
    ) -> int:
        by_kernel = cuda and self.base_format == "nf4"
        return made_bytes(shape, width, by_kernel=by_kernel) if self.packs(tensor) else 0
