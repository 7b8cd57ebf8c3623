"""What tests of runs read and compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from forge.rundir.checkpoints import WEIGHTS
from forge.rundir.files import read_rows
from forge.training.build import build_loop
from forge.training.build_session import build_session
from forge.training.callback import Callback
from forge.training.checkpoints import tensor_storage
from forge.training.loop import Loop


def built(run_dir: Path) -> Loop:
    """The loop of a run directory, where its last start has left it."""
    return build_loop(build_session(run_dir))


def logged(run_dir: Path, key: str, *, file: str = "metrics.jsonl") -> dict[int, float]:
    """step -> value, of a key in the metrics of a run, or in another of its files of rows."""
    return {row["step"]: row[key] for row in read_rows(run_dir / file) if key in row}


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def weights(model: torch.nn.Module) -> dict[str, Tensor]:
    """A copy of all parameters by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def assert_bit_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]):
    """The same names with the same bits."""
    assert ours.keys() == theirs.keys()
    assert not [name for name in ours if not torch.equal(ours[name], theirs[name])]


def load(folder: Path, **targets: Tensor) -> dict[str, Tensor]:
    """All tensors of a folder, or those asked for into the given ones."""
    tensors = targets or {
        name: torch.empty(what.size, dtype=what.properties.dtype)
        for name, what in tensor_storage.stored_metadata(folder).items()
    }
    tensor_storage.load_tensors(tensors, folder)
    return tensors


def stored(checkpoint: Path, below: str = "") -> dict[str, Tensor]:
    """The tensors of a checkpoint whose stored names begin with `below`, by the rest of it."""
    found = load(checkpoint / WEIGHTS)
    return {k.removeprefix(below): found[k] for k in found if k.startswith(below)}


def step_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step}"


def meta(checkpoint: Path) -> dict[str, Any]:
    """What a checkpoint says of itself, but for the clock and the run's own name."""
    own = {"time", "run_id", "seconds", "versions", "files", "rows"}
    return {
        k: value
        for k, value in read(checkpoint / "meta.json").items()
        if k not in {*own, "checksum", "sha256"}
    }


def folders(run: Path) -> list[str]:
    """The names of all that is in a run's folder of checkpoints."""
    return sorted(p.name for p in (run / "checkpoints").iterdir())


def at_step(loop: Any, step: int | None, act: Any):
    """Let act(loop) happen first of all after update number `step`, or after each."""

    class At(Callback):
        def on_step_end(self, loop, output):
            if step in (None, loop.state.step):
                act(loop)

    loop.callbacks.insert(0, At())


def without_pickle(monkeypatch: pytest.MonkeyPatch):
    """From now on nothing may as much as try to open a pickle."""
    import pickle

    def refuse(*_, **__):
        raise AssertionError("a pickle is opened")

    for module, name in (
        (pickle, "load"),
        (pickle, "loads"),
        (pickle, "Unpickler"),
        (torch, "load"),
    ):
        monkeypatch.setattr(module, name, refuse)
