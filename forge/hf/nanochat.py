"""Values of nanochat's tensors, from forge's and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from forge.config.model.decoder import Decoder
from forge.config.model.tensors import misfits
from forge.config.problems import listed
from forge.families.nanochat import Named, named_tensors
from forge.families.shards import AGAIN, FolderError

COMPILED = "_orig_mod."  # before names of a compiled model
Read = Callable[[str], Tensor]


def turned(weight: Tensor, heads: int) -> Tensor:
    """Negate the second half of each head's rows. weight: [heads * head_dim, dim].

    nanochat rotates by the negative angle. With the second number of each pair negated in queries
    and keys both rotations give the same scores.
    """
    signs = weight.new_ones(heads, 2, 1)
    signs[:, 1] = -1
    return (weight.unflatten(0, (heads, 2, -1)) * signs.unsqueeze(-1)).flatten(0, 2)


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read the tensors of a model_STEP.pt by their names. Raises FolderError."""
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return {name.removeprefix(COMPILED): values for name, values in state.items()}
    except (OSError, RuntimeError, UnpicklingError, AttributeError, EOFError) as error:
        raise FolderError(f"{file} cannot be read: {error}", AGAIN) from None


def from_nanochat(state: Mapping[str, Tensor], section: Decoder, file: Path) -> dict[str, Tensor]:
    """Return forge's tensors by name. Raises FolderError for missing or misfitting tensors."""
    named = list(named_tensors(section))
    shapes = {name: tuple(values.shape) for name, values in state.items()}
    if faults := list(misfits({one.name: one.shape for one in named}, shapes).values()):
        hint = "a checkpoint of nanochat since March 2026, with the meta file written beside it"
        raise FolderError(f"{file} does not fit its meta file: {listed(faults)}", hint)
    ours: dict[str, Tensor] = {}
    for one in named:
        values = state[one.name]
        if one.is_table:
            values = values[: section.vocab_size]
        if one.heads:
            values = turned(values, one.heads)
        parts = values.split(1) if len(one.ours) > 1 else [values]
        ours |= dict(zip(one.ours, parts, strict=True))
    return ours


def to_nanochat(read: Read, section: Decoder, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return nanochat's tensors by name. read: gives forge's by name. dtype: of matrices and
    tables; numbers and vectors stay in fp32.
    """
    return {one.name: _joined(one, read, dtype) for one in named_tensors(section)}


def _joined(one: Named, read: Read, dtype: torch.dtype) -> Tensor:
    parts = [read(name) for name in one.ours]
    values = torch.cat(parts) if len(parts) > 1 else parts[0]
    if one.heads:
        values = turned(values, one.heads)
    is_matrix = values.ndim > 1 and values.shape[0] > 1
    values = values.to(dtype if is_matrix else torch.float32)
    if one.is_table and (missing := one.shape[0] - values.shape[0]):
        values = torch.cat((values, values.new_zeros(missing, values.shape[1])))
    return values.contiguous()
