"""Tables of tokens that begin with those of a checkpoint and have rows which that does not know."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from torch import nn

from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.tensors import TensorSpec
from forge.config.root import Config
from forge.families.folder import grown, is_folder, places, read
from forge.hf.new_rows import Widened
from forge.rundir.checkpoints import WEIGHTS
from forge.tensors.local import copy_local
from forge.tensors.masters import exact_state
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.damage import checked
from forge.training.checkpoints.merging import PREFIX, Merged


def tables_with_new_rows(
    path: Path,
    specs: Sequence[TensorSpec],
    exclude: tuple[str, ...],
    group: dist.ProcessGroup | None,
) -> list[TensorSpec]:
    """The tables that get new rows, of those that a checkpoint has. exclude: prefixes of what keeps
    its values.
    """
    tables = [one for one in specs if one.new[1] and not one.name.startswith(exclude)]
    if not tables:
        return []
    with checked(path, group):
        stored = tensor_storage.stored(path / WEIGHTS)
    names = {name: tuple(what.size) for name, what in stored.items()}
    return [one for one in tables if one.takes(names.get(PREFIX + one.name, ()))]


def fill_tables(
    path: Path,
    config: Config,
    model: nn.Module,
    tables: Sequence[TensorSpec],
    group: dist.ProcessGroup | None,
) -> None:
    """Fill them, or what this rank has of them, in place. config: of the checkpoint."""
    own = exact_state(model)
    with checked(path, group):
        values = Widened(Merged(path, config), tables)
        for name in (one.name for one in tables if one.name in own):
            copy_local(own[name], values[name])


def of_new_rows(source: Path, section: Model) -> str:
    """What is said of the rows of vocabulary that weights do not know."""
    if not isinstance(section, Decoder):
        return ""
    first, end = section.new_rows
    names = [one.name for one in section.tensors() if one.new[1]]
    number, why = end - first, "those before"
    if is_folder(source):
        rows, files = places(read(source), section)
        added = grown(rows, {name: one.shape for name, one in files.items()}, section)
        names = [row.theirs.name for row in rows if row.ours.new[1]] or list(added)
        if not end:
            number, why = max(added.values(), default=0), "the others"
    if not number:
        return ""
    return f"; {number} new rows of {', '.join(names)}, each the mean of {why}"
