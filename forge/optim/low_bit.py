"""AdamW with moments of 8 or 4 bits a weight, by torchao."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from forge.config.optimizers.low_bit import CODES_IN_BYTE, AdamWLowBit, low_bit_block
from forge.optim.adam import AdamUpdates
from forge.optim.adam_update import Quantize
from forge.optim.elementwise import count_of, zeros_of
from forge.tensors.local import cut_dim, local, owned
from forge.tensors.torchao_adapter import low_bit_state

MOMENTS = {"exp_avg": True, "exp_avg_sq": False}  # whether a moment has a sign
DTYPES = {"8bit": torch.uint8, "4bit": torch.uint8, "fp8": torch.float8_e4m3fn}


class LowBitAdamW(AdamUpdates):
    """torchao's AdamW8bit, AdamW4bit and AdamWFp8 (arXiv:2110.02861, arXiv:2309.01507): torchao's
    quantization of moments, stored as codes and scales in plain tensors.

    A scale belongs to a block of a row, so that codes and scales are cut as the parameter is, and
    found by the parameter's name; a block of torchao's own may continue in the next row.
    Moments are in fp32 for parameters of a single dimension or less than 4096 values, and for rows
    that do not divide into equal blocks of 32 or more on every rank.
    """

    def __init__(self, params: Iterable[Any], section: AdamWLowBit) -> None:
        super().__init__(params, section)
        self.format = section.state_format

    def initial(self, group: dict[str, Any], parameter: Tensor) -> dict[str, Tensor]:
        state = {"step": count_of(parameter)}
        for name in MOMENTS:
            if self.block(parameter):
                codes, scale = self._room(parameter)
                state |= _laid_out(parameter, name, codes.zero_(), scale.zero_())
            else:
                state[name] = zeros_of(parameter)
        return state

    def moments(self, parameter: Tensor) -> tuple[Tensor, Tensor, Quantize | None]:
        state, shape = self.state[parameter], local(parameter).shape
        first, second = (self._moment(state, name, shape) for name in MOMENTS)
        return first, second, quantizer(self.format) if self.block(parameter) else None

    def loaded(self, parameter: Tensor, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take the saved codes where blocks of rows are equal, else quantize the saved values
        again.
        """
        found = super().loaded(parameter, found)
        state = {"step": found["step"]}
        for name, signed in MOMENTS.items():
            if name in found:
                state |= self._kept(parameter, name, local(found[name]).float())
                continue
            codes, scale = found[f"{name}.codes"], found[f"{name}.scale"]
            length, columns = parameter.shape[-1], _columns(parameter)
            block, packed = length // scale.shape[-1], length // codes.shape[-1]
            kind = _kind_of(codes.dtype, packed)
            codes, scale = local(codes), local(scale)
            if kind == self.format and block == self.block(parameter):
                own_codes = _of_columns(codes, columns, packed)
                own_scale = _of_columns(scale, columns, block)
                state |= _laid_out(parameter, name, own_codes, own_scale)
            else:
                values = _of_columns(_unscaled(kind, codes, signed), columns, 1)
                scales = _of_columns(scale.repeat_interleave(block, -1), columns, 1)
                state |= self._kept(parameter, name, values * scales)
        return state

    def block(self, parameter: Tensor) -> int:
        """Number of values of a row that share a scale, equal on all ranks; 0 = moments in fp32."""
        if parameter.ndim < 2:
            return 0
        length, remainder = divmod(parameter.shape[-1], _cuts(parameter))
        if remainder:
            return 0
        full_block = low_bit_block(tuple(parameter.shape), self.format)
        return low_bit_block((parameter.numel(), length), self.format) if full_block else 0

    def _room(self, parameter: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate the codes and scales of this rank's part of a parameter."""
        local_values, blocks = local(parameter), local(parameter).shape[-1] // self.block(parameter)
        length = local_values.shape[-1] // CODES_IN_BYTE[self.format]
        codes = local_values.new_empty(*local_values.shape[:-1], length, dtype=DTYPES[self.format])
        return codes, local_values.new_empty(*local_values.shape[:-1], blocks, dtype=torch.float32)

    def _kept(self, parameter: Tensor, name: str, values: Tensor) -> dict[str, Tensor]:
        """Make the state of this rank's values of a moment."""
        if not self.block(parameter):
            return {name: _as_parameter(parameter, values, parameter.shape[-1])}
        codes, scale = self._room(parameter)
        state = _laid_out(parameter, name, codes, scale)
        if values.numel():
            self._moment(state, name, values.shape).copy_(values)
        return state

    def _moment(self, state: dict[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
        """Wrap the stored codes and scales of a moment in torchao's tensor class."""
        if name in state:
            return local(state[name])
        codes, scale = local(state[f"{name}.codes"]), local(state[f"{name}.scale"]).view(-1)
        if self.format == "fp8":
            return low_bit_state().fp8(codes, scale, torch.float32)
        signed = MOMENTS[name]
        qmap = _qmap(self.format, signed, codes.device)
        if self.format == "4bit":
            of_4 = low_bit_state().bits_4.OptimState4bit
            return of_4(codes.view(-1), scale, qmap, signed, shape, torch.float32)
        of_8 = low_bit_state().bits_8.OptimState8bit
        return of_8(codes, scale, qmap, signed, torch.float32)


@cache
def quantizer(kind: str) -> Quantize:
    """Function of (moment, new values) to codes and scales, as torchao computes both in `copy_`."""
    state = low_bit_state()
    utils, to_fp8 = state.quantize, state.quantize_fp8

    def to_8bit(moment: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        scaled, scale = utils.scale_tensor(values, moment.block_size)
        return utils.quantize_8bit_with_qmap(scaled, moment.qmap), scale

    def to_4bit(moment: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        scaled, scale = utils.scale_tensor(values.view(-1), moment.block_size)
        codes = utils.quantize_4bit_with_qmap(scaled, moment.qmap)
        return (codes[::2] << 4) | codes[1::2], scale

    def to_8bit_float(moment: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        return to_fp8(values, moment.block_size)

    return {"8bit": to_8bit, "4bit": to_4bit, "fp8": to_8bit_float}[kind]


@cache
def _qmap(kind: str, signed: bool, device: torch.device) -> Tensor:
    """The values of the codes, relative to the largest value of the block."""
    state = low_bit_state()
    module = {"8bit": state.bits_8, "4bit": state.bits_4}[kind]
    values = module.get_qmap_signed() if signed else module.get_qmap_unsigned()
    return torch.tensor(values, dtype=torch.float32, device=device)


def _unscaled(kind: str, codes: Tensor, signed: bool) -> Tensor:
    if kind == "fp8":
        return codes.float()
    if kind == "4bit":
        codes = torch.stack([codes >> 4, codes & 0b1111], -1).flatten(-2)
    return _qmap(kind, signed, codes.device)[codes.int()]


def _laid_out(parameter: Tensor, name: str, codes: Tensor, scale: Tensor) -> dict[str, Tensor]:
    """Make the state of this rank's codes and scales."""
    return {
        f"{name}.{key}": _as_parameter(parameter, value, value.shape[-1] * _cuts(parameter))
        for key, value in (("codes", codes), ("scale", scale))
    }


def _as_parameter(parameter: Tensor, values: Tensor, length: int) -> Tensor:
    """Make a tensor with rows of `length`, cut over ranks as the parameter is."""
    values = values.contiguous()
    if not isinstance(parameter, DTensor):
        return values
    shape = torch.Size((*parameter.shape[:-1], length))
    # Shape and stride are given, since rows may be cut unevenly, and checked by no collective.
    stride, layout = torch.empty(shape, device="meta").stride(), parameter.placements
    return DTensor.from_local(
        values, parameter.device_mesh, layout, run_check=False, shape=shape, stride=stride
    )


def _columns(parameter: Tensor) -> range:
    """The range of this rank's values in a row."""
    indices = owned(parameter)[-1]
    return range(int(indices[0]), int(indices[-1]) + 1) if len(indices) else range(0)


def _cuts(parameter: Tensor) -> int:
    """Number of parts of each row of a parameter."""
    if not isinstance(parameter, DTensor):
        return 1
    placements, last = enumerate(parameter.placements), parameter.ndim - 1
    sizes = [
        parameter.device_mesh.size(axis)
        for axis, placement in placements
        if cut_dim(placement) == last
    ]
    return math.prod(sizes)


def _kind_of(dtype: torch.dtype, packed: int) -> str:
    """The format of codes."""
    is_of = {(DTYPES[kind], CODES_IN_BYTE[kind]): kind for kind in DTYPES}
    return is_of[dtype, packed]


def _of_columns(values: Tensor, columns: range, each: int) -> Tensor:
    """Cut rows with an entry for `each` columns down to `columns`, if longer."""
    if values.shape[-1] * each == len(columns):
        return values
    return values[..., columns.start // each : columns.stop // each]
