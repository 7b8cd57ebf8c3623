"""Stochastic rounding to bf16 with the same bits on any layout and after any resume."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from forge.tensors.counter_rng import hashed, rng_keys
from forge.tensors.local import local, owned
from forge.tensors.masters import master

Noise = tuple[Tensor, Tensor, list[Tensor]]
"""Noise of an update of a parameter: two keys, int32 without dimensions, and for each dimension of
the parameter a tensor of int32 summands of a value's index.
"""


@dataclass(kw_only=True)
class Rounding:
    """Writes updated weights back to parameters in bf16.

    names: of the parameters. stochastic: round at random to either neighbour; else to the nearest.
    A parameter with a master is rounded from the master, to the nearest.
    """

    names: dict[Tensor, str]
    stochastic: bool
    seed: int
    places: dict[Tensor, list[Tensor]] = field(default_factory=dict)

    def noise(self, parameter: Tensor, number: int) -> Noise | None:
        """Make the noise of update `number` of a parameter; None = round to the nearest."""
        if not self.stochastic or master(parameter) is not parameter:
            return None
        if parameter not in self.places:
            self.places[parameter] = _index_summands(parameter)
        key = f"{self.seed}/rounding/{number}/{self.names[parameter]}"
        first, second = rng_keys(key).unbind()
        return first, second, self.places[parameter]

    def write(self, parameter: Tensor, values: Tensor, number: int) -> None:
        """Write fp32 values to this rank's part of a parameter."""
        noise = self.noise(parameter, number)
        local(parameter).copy_(values if noise is None else stochastic(values, noise))


def stochastic(values: Tensor, noise: Noise) -> Tensor:
    """Round fp32 values to values of bf16, in fp32: up with the probability of the distance from
    below.

    16 bits of noise are added to the 16 bits missing from bf16, and carry into the upper bits, as
    in torchao; the noise is a hash of the weight's index in the whole parameter.
    """
    first, second, offsets = noise
    index = offsets[0] if offsets else torch.zeros_like(values, dtype=torch.int32)
    for offset in offsets[1:]:
        index = index + offset
    bits = (values.view(torch.int32) + (hashed(index, first, second) & 0xFFFF)) & -0x10000
    # A carry or the mask could turn a NaN into infinity or a number.
    return torch.where(values.isfinite(), bits.view(torch.float32), values)


def _index_summands(parameter: Tensor) -> list[Tensor]:
    """Summands of a weight's index in the whole parameter, modulo 2^32, along each dimension of
    this rank's part.
    """
    offsets, step = [], 1
    for dim, index in reversed(list(enumerate(owned(parameter)))):
        # Wrapped into int32: the hash needs indices modulo 2^32 alone.
        wrapped = (index * step + (1 << 31)) % (1 << 32) - (1 << 31)
        shape = [1] * parameter.ndim
        shape[dim] = len(index)
        offsets.append(wrapped.to(torch.int32).view(shape).to(local(parameter).device))
        step = step * parameter.shape[dim] % (1 << 32)
    return offsets
