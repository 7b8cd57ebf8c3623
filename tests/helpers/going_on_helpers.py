"""Runs taken up as the verbs do it, up to where a worker would start."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from forge import cli
from forge.compose.portable import portable
from forge.config.changes import Change
from forge.config.rule import put
from forge.resolve.resolve import resolve
from forge.resume import overrides_of
from forge.rundir import directory, files, saved_config
from forge.rundir.saved_config import newest

RUN = (
    "run.dir=run",
    "model.dim=64",
    "model.n_heads=4",
    "train.max_steps=40",
    "scheduler.warmup_steps=4",
)
"""A small run in run/."""


def take(*overrides: str, config_dirs: tuple[str, ...] = ()) -> tuple[Path, list[Change]]:
    """What `forge.train` does with these overrides before it starts ranks."""
    composition, resolution = cli.resolved(overrides, config_dirs)
    return directory.prepare_directory(
        resolution, overrides=portable(composition.overrides, config_dirs, resolution.config)
    )


def resume(run: Path | str, *typed: str) -> tuple[Path, list[Change]]:
    """What `forge.resume` does."""
    return take(*overrides_of(Path(run), typed))


def alter(run: Path, **values: Any) -> list[Change]:
    """What `resume` does with other values, without composing, which takes most of its time; a key
    is written train__max_steps.
    """
    config = copy.deepcopy(
        saved_config.load_config(newest(run), trust=values.get("run__trust", ()))
    )
    config.thaw()
    for key, value in {"run__dir": str(run), **values}.items():
        put(config, key.replace("__", "."), value)
    return directory.continue_run(run, resolve(config), overrides=directory.own_overrides(run))


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def content(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes, but for the lock, which says who looked last."""
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and p.name != "run.lock"
    }


def end(
    run: Path, *, status: str = "finished", reason: str = "end", config: str = "config.yaml"
) -> None:
    """The result that a worker leaves."""
    result = {"status": status, "reason": reason, "step": 7, "tokens": 1, "config": config}
    objective = {"name": "train/loss", "value": None}
    files.write_json(run / "result.json", {**result, "metrics": {}, "objective": objective})
