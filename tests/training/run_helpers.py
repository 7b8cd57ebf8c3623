"""What tests of runs read and compare."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from forge.training.checkpoint import WEIGHTS


def logged(run_dir: Path, key: str) -> dict[int, float]:
    """step -> value, of a key in metrics.jsonl."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
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
    """Every tensor of a checkpoint by its stored name, read by torch.distributed.checkpoint alone."""
    import torch.distributed.checkpoint as dcp

    described = dcp.FileSystemReader(checkpoint / WEIGHTS).read_metadata().state_dict_metadata
    tensors = {key: torch.empty(what.size, dtype=what.properties.dtype) for key, what in described.items()}
    dcp.load(tensors, checkpoint_id=checkpoint / WEIGHTS, no_dist=True)
    return tensors
