"""What tests of runs read and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tensor_folders import load
from torch import Tensor

from forge.rundir.checkpoints import WEIGHTS
from forge.rundir.files import read_rows


def logged(run_dir: Path, key: str, *, file: str = "metrics.jsonl") -> dict[int, float]:
    """step -> value, of a key in the metrics of a run, or in another of its files of rows."""
    lines = read_rows(run_dir / file)
    return {line["step"]: line[key] for line in lines if key in line}


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_bit_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """The same names with the same bits."""
    assert ours.keys() == theirs.keys()
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different


def stored(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its stored name."""
    return load(checkpoint / WEIGHTS)


def meta(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, but for what depends on the clock and on the run's own
    name.
    """
    content = json.loads((checkpoint / "meta.json").read_text())
    return {
        key: value
        for key, value in content.items()
        if key not in {"time", "run_id", "seconds", "versions", "files", "rows"}
    }


def folders(run: Path) -> list[str]:
    """The names of all that is in a run's folder of checkpoints."""
    return sorted(p.name for p in (run / "checkpoints").iterdir())
