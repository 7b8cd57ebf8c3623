"""The one file that imports torchao (>=0.18,<0.20): many of its modules are private or prototypes.

An import of torchao takes seconds, and only some runs need torchao: each function imports when it
is called.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

from torch import Tensor


class LowBitState(NamedTuple):
    """The modules and the class of moments of 8 bits, 4 bits and fp8, and what quantizes them."""

    bits_8: Any
    bits_4: Any
    fp8: Any
    quantize: Any
    quantize_fp8: Callable[..., tuple[Tensor, Tensor]]


@cache
def low_bit_state() -> LowBitState:
    """Tensor classes of quantized moments, and their tables of values."""
    with _without_warnings():
        from torchao.optim import quant_utils, subclass_4bit, subclass_8bit
        from torchao.optim.subclass_fp8 import OptimStateFp8, quantize_fp8
    return LowBitState(subclass_8bit, subclass_4bit, OptimStateFp8, quant_utils, quantize_fp8)


class Float8(NamedTuple):
    """Parts of Float8Linear: the product and its settings."""

    product: Any
    config: Any
    mm_config: Any


def float8(recipe: str, *, emulate: bool) -> Float8:
    """The product of Float8Linear with the settings of a recipe."""
    from torchao.float8._inductor_patch import _patch_inductor_min_max_codegen
    from torchao.float8.config import Float8LinearConfig
    from torchao.float8.float8_linear import matmul_with_hp_or_float8_args
    from torchao.float8.float8_training_tensor import LinearMMConfig, ScaledMMConfig

    _patch_inductor_min_max_codegen()  # as in torchao's conversion of a model
    config = Float8LinearConfig.from_recipe_name(recipe)
    gemms = (config.gemm_config_output, config.gemm_config_grad_input)
    configs = (
        ScaledMMConfig(emulate, gemm.use_fast_accum, False, config.pad_inner_dim)
        for gemm in (*gemms, config.gemm_config_grad_weight)
    )
    return Float8(matmul_with_hp_or_float8_args, config, LinearMMConfig(*configs))


class Float8Casts(NamedTuple):
    """Parts of Float8Linear's casts: of a scale from the largest value, and with a given scale."""

    scale: Callable[..., Tensor]
    cast: Callable[..., Tensor]
    by_row: Any
    disabled: Any
    roles: Any


def float8_casts() -> Float8Casts:
    """What casts a factor to fp8 in two steps, between which ranks agree on a scale."""
    from torchao.float8.config import ScalingGranularity, ScalingType
    from torchao.float8.float8_training_tensor import GemmInputRole, hp_tensor_and_scale_to_float8
    from torchao.float8.float8_utils import amax_to_scale

    by_row = ScalingGranularity.AXISWISE
    cast = hp_tensor_and_scale_to_float8
    return Float8Casts(amax_to_scale, cast, by_row, ScalingType.DISABLED, GemmInputRole)


class Float8Weight(NamedTuple):
    """The class of a weight in fp8, its role in a product, and the cast to fp8."""

    kind: Any
    role: Any
    saturated: Callable[..., Tensor]


def float8_weight() -> Float8Weight:
    """Parts of a weight that is in fp8 before its product."""
    from torchao.float8.float8_training_tensor import Float8TrainingTensor, GemmInputRole
    from torchao.float8.float8_utils import to_fp8_saturated

    return Float8Weight(Float8TrainingTensor, GemmInputRole.WEIGHT, to_fp8_saturated)


def float8_grouped() -> Callable[..., Tensor]:
    """The product of experts in fp8, with a scale a row."""
    from torchao.prototype.moe_training import _to_fp8_rowwise_then_scaled_grouped_mm

    return partial(_to_fp8_rowwise_then_scaled_grouped_mm, pad_token_groups_for_grouped_mm=False)


def mxfp8_products(*, wgrad_with_hp: bool) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The products of layers and of experts in MXFP8, with the scales of Blackwell."""
    from torchao.prototype.moe_training.mxfp8_grouped_mm import _to_mxfp8_then_scaled_grouped_mm
    from torchao.prototype.moe_training.mxfp8_linear import _to_mxfp8_then_scaled_mm
    from torchao.prototype.mx_formats.config import ScaleCalculationMode
    from torchao.quantization.quantize_.common.kernel_preference import KernelPreference

    common = {
        "kernel_preference": KernelPreference.AUTO,
        "scale_calculation_mode": ScaleCalculationMode.RCEIL,
        "wgrad_with_hp": wgrad_with_hp,
    }
    return (
        partial(_to_mxfp8_then_scaled_mm, **common),
        partial(_to_mxfp8_then_scaled_grouped_mm, **common),
    )


def int8_product() -> Callable[[Tensor, Tensor], Tensor]:
    """The product of two matrices rounded to int8, with a scale a row and a column."""
    from torchao.prototype.quantized_training.int8_mixed_precision import _dynamic_int8_mm

    return _dynamic_int8_mm


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence torchao's warnings of kernels for absent devices."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


class WeightOnly(NamedTuple):
    """A format of stored weights: its entry in config.json, and the tensors stored for a layer's
    weight, given its name, with an entry in the metadata of the file.
    """

    as_dict: dict[str, Any]
    quantize: Callable[[Any, str], tuple[dict[str, Tensor], dict[str, str]]]


def weight_only(how: str) -> WeightOnly:
    """The format of fp8, int8 or nvfp4 weights."""
    from torchao.core.config import config_to_dict
    from torchao.prototype.mx_formats import NVFP4WeightOnlyConfig
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    configs = {"nvfp4": NVFP4WeightOnlyConfig, "fp8": Float8WeightOnlyConfig}
    config = configs.get(how, Int8WeightOnlyConfig)()

    def quantize(layer: Any, name: str) -> tuple[dict[str, Tensor], dict[str, str]]:
        quantize_(layer, config)
        weights: dict[str, Any] = {name: layer.weight.detach()}
        return flatten_tensor_state_dict(weights)

    return WeightOnly(config_to_dict(config), quantize)
