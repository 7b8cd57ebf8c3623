"""Token tables beginning with a checkpoint's rows, followed by new rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from torch import nn

from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.tensors import TensorSpec
from forge.config.root import Config
from forge.families.folder import grown, is_folder, read_folder, stored_rows
from forge.hf.new_rows import Widened
from forge.rundir.checkpoints import WEIGHTS
from forge.tensors.local import copy_local
from forge.tensors.masters import exact_state
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.damage import share_damage
from forge.training.checkpoints.merging import PREFIX, Merged


def tables_with_new_rows(
    path: Path,
    specs: Sequence[TensorSpec],
    exclude: tuple[str, ...],
    group: dist.ProcessGroup | None,
) -> list[TensorSpec]:
    """The checkpoint's tables in need of new rows.

    exclude: prefixes of tensors keeping their values.
    """
    tables = [table for table in specs if table.new[1] and not table.name.startswith(exclude)]
    if not tables:
        return []
    with share_damage(path, group):
        stored = tensor_storage.stored_metadata(path / WEIGHTS)
    names = {name: tuple(meta.size) for name, meta in stored.items()}
    return [table for table in tables if table.takes(names.get(PREFIX + table.name, ()))]


def fill_tables(
    path: Path,
    config: Config,
    model: nn.Module,
    tables: Sequence[TensorSpec],
    group: dist.ProcessGroup | None,
) -> None:
    """Fill the tables, or this rank's shards, in place. config: of the checkpoint."""
    state = exact_state(model)
    with share_damage(path, group):
        values = Widened(Merged(path, config), tables)
        for name in (table.name for table in tables if table.name in state):
            copy_local(state[name], values[name])


def of_new_rows(source: Path, section: Model) -> str:
    """Describe the vocabulary rows absent from the weights."""
    if not isinstance(section, Decoder):
        return ""
    first, end = section.new_rows
    names = [spec.name for spec in section.tensors() if spec.new[1]]
    number, why = end - first, "those before"
    if is_folder(source):
        rows, files = stored_rows(read_folder(source), section)
        added = grown(rows, {name: entry.shape for name, entry in files.items()}, section)
        names = [row.theirs.name for row in rows if row.ours.new[1]] or list(added)
        if not end:
            number, why = max(added.values(), default=0), "the others"
    if not number:
        return ""
    return f"; {number} new rows of {', '.join(names)}, each the mean of {why}"
