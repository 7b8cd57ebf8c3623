"""The frozen models of an objective, such as a reference or a teacher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forge.config.model.decoder import Decoder
from forge.config.root import Config
from forge.families.folder import is_folder, read_folder
from forge.rundir.saved_config import load_config, newest


def models_beside(config: Config) -> Iterator[Decoder]:
    """Yield the frozen models; the trained model stands in for unreadable ones."""
    for source in config.objective.frozen_models().values():
        model = config.decoder
        with suppress(OSError, ValueError, TypeError, KeyError):  # its build reports the fault
            if source and is_folder(source):
                model = read_folder(Path(source)).section
            elif source and Path(source).is_dir():
                model = load_config(newest(Path(source)), trust=config.run.trust).decoder
        yield from [model] if model is not None else []
