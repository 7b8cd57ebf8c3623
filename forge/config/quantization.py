"""The `quantization` group: number formats of matrix products in the blocks."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from typing import ClassVar

from omegaconf import MISSING

from forge.config.field import Section, opt, section
from forge.config.model.decoder import Decoder
from forge.config.model.tensors import EXPERT, HEAD, MATRIX, TensorSpec

PARTS = ("attention", "feed_forward", "experts", "shared_experts")
FP8_RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
PRODUCTS = ("output", "grad_input", "grad_weight")


@section
class Quantization(Section):
    """Base of every way to multiply; weights, their names and checkpoints are those of none.

    on_cuda: the format of precision.mixed_precision that it needs there; "" = any. capability: the
    least of a GPU. multiple: of which both sides of a matrix must be. cut: whether tp may cut its
    matrices, those of experts excepted. in_products: whether layers multiply otherwise, and not
    weights are other ones.
    zeroes: whether some of the weights are 0 between updates.
    """

    in_products: ClassVar[bool] = False
    zeroes: ClassVar[bool] = False
    on_cuda: ClassVar[str] = ""
    capability: ClassVar[tuple[int, int]] = (0, 0)
    multiple: ClassVar[int] = 1
    cut: ClassVar[bool] = True

    _target_: str = MISSING

    def takes(self, tensor: TensorSpec, model: Decoder) -> bool:
        """Whether this tensor is multiplied in the section's numbers."""
        return False

    def chosen(self, model: Decoder) -> list[TensorSpec]:
        """The matrices multiplied in the section's numbers."""
        return [tensor for tensor in model.tensors() if self.takes(tensor, model)]

    @property
    def gathers_in_fp8(self) -> bool:
        """Whether FSDP gathers the weights of products in fp8."""
        return False

    @property
    def scales_agreed(self) -> tuple[str, bool]:
        """The recipe of scales that tp ranks agree on, "" = none, and whether it is emulated."""
        return "", False

    def gathered_in_fp8(self, tensor: TensorSpec, model: Decoder) -> bool:
        """Whether FSDP gathers this parameter in fp8."""
        return False

    def gathered_bytes(
        self, tensor: TensorSpec, shape: tuple[int, ...], *, model: Decoder, width: int
    ) -> int:
        """Bytes of a gathered parameter. width: bytes of a number in matrix products."""
        return math.prod(shape) * (1 if self.gathered_in_fp8(tensor, model) else width)

    def zeroed_bytes(
        self, tensor: TensorSpec, shape: tuple[int, ...], *, model: Decoder, width: int
    ) -> int:
        """Bytes beside a weight with zeros. width: bytes of a number of the weight."""
        return 0


@section
class NoQuantization(Quantization):
    """Products in the numbers of precision.mixed_precision."""

    schema_name = "none"
    _target_: str = "forge.quantization.products.Products"


@section
class Quantized(Quantization):
    """Which matrices are multiplied in other numbers; routers, norms and embeddings never are."""

    in_products: ClassVar[bool] = True
    multiple: ClassVar[int] = 16
    cut: ClassVar[bool] = False

    parts: list[str] = opt(list(PARTS), "layers whose matrices are quantised", choices=PARTS)
    include_head: bool = opt(False, "quantise the output head too")
    min_dim: int = opt(128, "leave out matrices with a shorter side", gt=0)
    exclude: list[str] = opt([], "leave out parameters whose names match: ['*.attention.wo.*']")
    plain_first_layers: int = opt(0, "number of first blocks to leave out", ge=0)
    plain_last_layers: int = opt(0, "number of last blocks to leave out", ge=0)
    in_evaluation: bool = opt(False, "quantise evaluation and samples in the loop too")

    def takes(self, tensor: TensorSpec, model: Decoder) -> bool:
        sides = tensor.shape[-2:]
        if min(sides) < self.min_dim or any(side % self.multiple for side in sides):
            return False
        if any(fnmatchcase(tensor.name, pattern) for pattern in self.exclude):
            return False
        if tensor.role == HEAD:
            return self.include_head
        part = tensor.part.replace(" ", "_").replace("-", "_")
        if tensor.role not in (MATRIX, EXPERT) or part not in self.parts:
            return False
        layer = int(tensor.name.split(".")[1]) if tensor.name.startswith("blocks.") else 0
        return self.plain_first_layers <= layer < model.n_layers - self.plain_last_layers


@section
class Emulated(Quantized):
    """One whose kernels a device may lack."""

    on_cuda: ClassVar[str] = "bf16"
    cut: ClassVar[bool] = True

    emulate: bool = opt(
        False, "round numbers and multiply in fp32, to study the effect on the loss on any device"
    )


@section
class FP8(Emulated):
    """8-bit floating point with scales that are worked out at each product (arXiv:2209.05433)."""

    schema_name = "fp8"
    capability: ClassVar[tuple[int, int]] = (8, 9)
    _target_: str = "forge.quantization.fp8.FP8"
    recipe: str = opt(
        "tensorwise",
        "scales per tensor, per row, or per row with weight gradients in high precision",
        choices=FP8_RECIPES,
    )
    fp8_all_gather: bool = opt(False, "gather weights in fp8: half the bytes")

    @property
    def gathers_in_fp8(self) -> bool:
        return self.fp8_all_gather

    @property
    def scales_agreed(self) -> tuple[str, bool]:
        return self.recipe, self.emulate

    def gathered_in_fp8(self, tensor: TensorSpec, model: Decoder) -> bool:
        """Whether it is a matrix that is multiplied in fp8; experts are gathered as they are."""
        matrix = tensor.role in (MATRIX, HEAD)
        return self.fp8_all_gather and matrix and self.takes(tensor, model)


@section
class MXFP8(Emulated):
    """fp8 with a scale for each 32 numbers (OCP Microscaling Formats 1.0), for Blackwell."""

    schema_name = "mxfp8"
    capability: ClassVar[tuple[int, int]] = (10, 0)
    multiple: ClassVar[int] = 32
    _target_: str = "forge.quantization.mxfp8.MXFP8"
    wgrad_with_hp: bool = opt(False, "compute weight gradients in high precision")


@section
class Int8(Emulated):
    """Integers of 8 bits with a scale a row; kernels by Triton, also of GPUs without fp8."""

    schema_name = "int8"
    on_cuda: ClassVar[str] = ""
    capability: ClassVar[tuple[int, int]] = (8, 0)
    cut: ClassVar[bool] = False
    _target_: str = "forge.quantization.int8.Int8"
    products: list[str] = opt(list(PRODUCTS), "products that are quantised", choices=PRODUCTS)


@section
class QAT(Quantized):
    """Quantization-aware training: products as they will be of int8 tokens with weights of few bits
    (arXiv:1712.05877), gradients as if nothing was rounded.
    """

    schema_name = "qat"
    multiple: ClassVar[int] = 1
    _target_: str = "forge.quantization.qat.QAT"
    weight_bits: int = opt(4, "bits of a weight", ge=2, le=8)
    group_size: int = opt(32, "weights of a row that share a scale", gt=1)
    quantize_activations: bool = opt(True, "round activations to int8 too, with a scale per token")

    def takes(self, tensor: TensorSpec, model: Decoder) -> bool:
        return super().takes(tensor, model) and tensor.shape[-1] % self.group_size == 0


@section
class Sparse(Quantized):
    """Of each M adjacent weights of a row the N largest, the others 0 (N:M, arXiv:2102.04010): what
    is 0 is trained on as if it was not, and may come back.
    """

    schema_name = "sparse"
    in_products: ClassVar[bool] = False
    zeroes: ClassVar[bool] = True
    multiple: ClassVar[int] = 1
    cut: ClassVar[bool] = True
    _target_: str = "forge.quantization.products.Products"
    weight_sparsity_n: int = opt(2, "non-zero weights in each group of M (N of N:M)", gt=0)
    weight_sparsity_m: int = opt(4, "weights in a group (M of N:M)", gt=1)
    weight_sparsity_update_step: int = opt(
        10, "choose the non-zero weights again every N steps", gt=0
    )
    weight_sparsity_start_step: int = opt(50, "first step with zeroed weights", gt=0)

    def takes(self, tensor: TensorSpec, model: Decoder) -> bool:
        return super().takes(tensor, model) and tensor.shape[-1] % self.weight_sparsity_m == 0

    def zeroed_bytes(
        self, tensor: TensorSpec, shape: tuple[int, ...], *, model: Decoder, width: int
    ) -> int:
        """The values of zeroed weights, and a mask of one byte a weight."""
        return math.prod(shape) * (width + 1) if self.takes(tensor, model) else 0


def matrix_cuts(section: Quantization, model: Decoder, tp: int = 1) -> dict[str, int | None]:
    """Of the modules with weights multiplied in the section's numbers, by name: the dimension that
    tp ranks cut, or None.
    """
    cuts: dict[str, int | None] = {}
    for tensor in section.chosen(model):
        cut = None if tp == 1 or tensor.of_experts else tensor.cut(tp)
        cuts[tensor.name.rpartition(".")[0]] = cut
    return cuts
