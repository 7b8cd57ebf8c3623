"""A search by Optuna in this process, and what its journal has of it then."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from cheap import Here
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from forge.launch.optuna import search as optuna_search
from forge.launch.sweep.expand import without_intervals
from forge.launch.sweep.preflight import Preflight
from forge.plan.world import Devices

CPU = ["run.device=cpu", "eval.enabled=true"]
RATE = "optimizer.lr=tag(log, interval(1e-4, 1e-2))"
DECAY = "optimizer.weight_decay=interval(0, 0.5)"


def flight(typed: Sequence[str], config_dirs: Sequence[str] = ()) -> Preflight:
    """The preflight of a command, on a machine without a GPU."""
    return Preflight(without_intervals(typed), config_dirs, Devices(gpus=0, source="a test"))


def search(*overrides: str, run: Here | None = None, name: str = "x") -> int:
    """Search, and return the exit code."""
    typed = ["sweeper=optuna", f"sweep.name={name}", *CPU, *overrides]
    return optuna_search.run(typed, flight(typed), run or Here())


def study(name: str = "x", root: str = "sweeps") -> optuna.Study:
    """What Optuna itself reads in the journal of a sweep."""
    storage = JournalStorage(JournalFileBackend(f"{root}/{name}/optuna.journal"))
    return optuna.load_study(study_name=name, storage=storage)
