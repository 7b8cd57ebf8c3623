"""Two run directories: what of their last checkpoints, metrics, samples and results is the same, to
the bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge.rundir.checkpoints import META, WEIGHTS, list_checkpoints
from forge.rundir.history import METRICS
from forge.rundir.progress import SAMPLES
from forge.training.checkpoints import tensor_storage

SPEED = {"tokens_per_second"}
CLOCK = {"time", "seconds", "run_id", "versions", "rows", "files", "checksum", "sha256"}
"""What a checkpoint says of the hour, the machine and its own directory."""
TOLERANCE = 1e-6


def compare(
    ours: Path, theirs: Path, *, exact: bool = True, tidy: bool = True
) -> tuple[list[str], list[str]]:
    """What is the same and what differs, a line each.

    exact: to the bit; otherwise the losses by TOLERANCE. tidy: the same checkpoints are there, and
    nothing half written or removed.
    """
    same: list[str] = []
    different: list[str] = []
    for good, line in [
        *(_bits(ours, theirs) if exact else _losses(ours, theirs)),
        *(_folders(ours, theirs) if tidy else ()),
    ]:
        (same if good else different).append(line)
    return same, different


def tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its stored name."""
    folder = checkpoint / WEIGHTS
    wanted = {
        key: torch.empty(what.size, dtype=what.properties.dtype)
        for key, what in tensor_storage.stored_metadata(folder).items()
    }
    tensor_storage.load_tensors(wanted, folder)
    return wanted


def _bits(ours: Path, theirs: Path) -> Iterator[tuple[bool, str]]:
    a, b = (list_checkpoints(path / "checkpoints")[-1].path for path in (ours, theirs))
    yield a.name == b.name, f"last checkpoint: {a.name} and {b.name}"
    left, right = tensors(a), tensors(b)
    wrong = sorted(
        name for name in left.keys() | right.keys() if not _equal(left.get(name), right.get(name))
    )
    total = sum(tensor.numel() for tensor in left.values())
    yield (
        not wrong,
        f"{len(left)} tensors of weights and optimizer state, {total:,} numbers"
        + (f": {', '.join(wrong[:5])}" if wrong else ""),
    )
    left, right = (_without(json.loads((path / META).read_text()), CLOCK) for path in (a, b))
    wrong = [name for name in left.keys() | right.keys() if left.get(name) != right.get(name)]
    yield (
        not wrong,
        "counters and state of the callbacks in the checkpoint"
        + (f": {', '.join(wrong)}" if wrong else ""),
    )
    for name in (METRICS, SAMPLES):
        left, right = ((path / name).read_bytes() for path in (ours, theirs))
        yield left == right, f"{name}, {len(left):,} bytes, {left.count(chr(10).encode())} rows"
    left, right = (json.loads((path / "result.json").read_text()) for path in (ours, theirs))
    for result in (left, right):
        result["metrics"] = _without(result["metrics"], SPEED)
        result.pop("goodput", None)
    yield left == right, "result.json but for the speed"


def _losses(ours: Path, theirs: Path) -> Iterator[tuple[bool, str]]:
    for key in ("train/loss", "eval/loss"):
        left, right = (_values(path, key) for path in (ours, theirs))
        steps = left.keys() == right.keys()
        worst = (
            max(abs(left[step] - right[step]) / abs(left[step]) for step in left)
            if steps
            else math.inf
        )
        yield (
            steps and worst <= TOLERANCE,
            f"{key} of {len(left)} rows: largest relative difference {worst:.1e}",
        )


def _folders(ours: Path, theirs: Path) -> Iterator[tuple[bool, str]]:
    left, right = (
        sorted(path.name for path in (run / "checkpoints").iterdir()) for run in (ours, theirs)
    )
    yield left == right, f"checkpoints that are kept: {', '.join(right)}"


def _values(run_dir: Path, key: str) -> dict[int, float]:
    rows = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
    return {row["step"]: row[key] for row in rows if key in row}


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.dtype == b.dtype and torch.equal(a, b)


def _without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
