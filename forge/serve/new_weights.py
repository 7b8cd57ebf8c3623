"""Other weights for a model that is served, read from a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from forge.config.problems import listed
from forge.families import folder as folders
from forge.families.shards import FolderError
from forge.hf.read import read_tensor


class WeightReader:
    """Reads folders below a directory into a model; no others.

    allowed: the directory, as named when the server was started.
    """

    def __init__(self, model: Any, allowed: Path) -> None:
        self.model, self.allowed = model, allowed.resolve()

    def path_of(self, folder: str) -> Path:
        """The folder of a request. Raises ValueError for one outside of the directory."""
        path = Path(folder).resolve()
        if not path.is_relative_to(self.allowed) or not path.is_dir():
            raise ValueError(f"folder: it is no folder in {self.allowed}, named by --weights-from")
        return path

    @torch.no_grad()
    def read(self, path: Path) -> int:
        """Replace the weights in place, all or none; returns the number of tensors.

        Raises ValueError for a folder of another model.
        """
        section = self.model.section
        try:
            content = folders.read_folder(path)
            if faults := folders.weight_faults(content, section):
                raise ValueError(f"{path} does not fit the model: {listed(faults)}")
            rows, files = folders.stored_rows(content, section)
            state = self.model.state_dict()
            # All are read before the first is replaced: a torn folder changes nothing.
            values = {row.ours.name: read_tensor(row, files) for row in rows}
        except (FolderError, OSError) as error:
            raise ValueError(str(error)) from None
        for name, tensor in values.items():
            state[name].copy_(tensor)
        return len(values)
