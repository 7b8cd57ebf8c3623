"""The checkpoints of a run as files: which are there, which can be used, and why not. Nothing here
imports torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from forge.config.eval import HIGHER_IS_BETTER
from forge.rundir.stored import BEST, fields_of, is_run, newest, read_json, read_yaml

FORMAT = 2
META, CONFIG, TOKENIZER, WEIGHTS = "meta.json", "config.yaml", "tokenizer", "weights"
OF_META = {
    "time": str,
    "reason": str,
    "run_id": str,
    "step": int,
    "metrics": dict,
    "files": dict,
    "train": dict,
    "rows": dict,
}


class CheckpointError(ValueError):
    """A checkpoint that cannot be used: which, why, and what to do."""


class NoneLeft(CheckpointError):
    """A run that cannot go on, since none of its checkpoints can be used."""


@dataclass(frozen=True)
class Saved:
    """One `step_N` directory."""

    path: Path

    @property
    def step(self) -> int:
        """The step in its name; -1 for another name."""
        match = re.fullmatch(r"step_(\d+)", self.path.name)
        return int(match[1]) if match else -1

    @cached_property
    def meta(self) -> dict[str, Any]:
        """What it says of itself; empty when it cannot be read."""
        try:
            return fields_of(read_json(self.path / META), OF_META)
        except (OSError, ValueError):
            return {}

    def fault(self, run_id: str | None = None, *, to_go_on: bool = False) -> str | None:
        """Why it cannot be used, in one sentence, or None. run_id: it must be of this run.
        to_go_on: for training to go on from it.
        """
        if not self.path.is_dir():
            return "there is no such directory"
        if not (self.path / META).is_file():
            return f"it is torn: it has no {META}, which is written last"
        if not self.meta:
            return f"its {META} cannot be read"
        if self.meta.get("format") != FORMAT:
            newer = isinstance(self.meta.get("format"), int) and self.meta["format"] > FORMAT
            advice = "; a newer version of forge wrote it" if newer else ""
            return f"it has checkpoint format {self.meta.get('format')}, and this version reads format {FORMAT}{advice}"
        if run_id is not None and self.meta.get("run_id") != run_id:
            return "it is of another run; checkpoint.resume_from takes one on purpose"
        if to_go_on and self.meta.get("weights_only"):
            return "it holds the weights alone (checkpoint.last=weights), which checkpoint.init_from takes"
        return self._files_fault()

    def _files_fault(self) -> str | None:
        for name, wanted in self.meta.get("files", {}).items():
            file = self.path / name
            if not file.is_file():
                return f"it is torn: {name} is missing"
            if file.stat().st_size != wanted:
                return f"it is torn: {name} has {file.stat().st_size} bytes of {wanted}"
        return None

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())


def saved_folder(run_dir: Path) -> Path:
    """Where a run keeps its checkpoints. Raises CheckpointError when its config cannot be read."""
    try:
        return run_dir / read_yaml(newest(run_dir))["checkpoint"]["dir"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{newest(run_dir)} cannot be read: {next(iter(str(error).splitlines()), 'no details')}"
        ) from error


def listed(folder: Path) -> list[Saved]:
    """Every `step_N` directory of a folder, complete or not, oldest first."""
    found = [Saved(path) for path in folder.glob("step_*") if path.is_dir()]
    return sorted((saved for saved in found if saved.step >= 0), key=lambda saved: saved.step)


def newest_usable(
    folder: Path, run_id: str | None = None, *, to_go_on: bool = False
) -> tuple[Saved | None, list[tuple[Saved, str]]]:
    """The newest checkpoint that can be used, and those newer than it, each with the reason that it
    cannot.
    """
    skipped = []
    for saved in reversed(listed(folder)):
        fault = saved.fault(run_id, to_go_on=to_go_on)
        if fault is None:
            return saved, skipped
        skipped.append((saved, fault))
    return None, skipped


def find(
    path: Path, *, name: str = "", to_go_on: bool = False
) -> tuple[Saved, list[tuple[Saved, str]]]:
    """The checkpoint that `path` means: itself, or the newest usable one of a run or of a folder of
    them; and those skipped.

    RUN/best means the best one of a run. to_go_on: for training to go on from it, and not for its
    weights alone. Raises CheckpointError when there is none, its message beginning with `name`.
    """
    if path.name == BEST and not path.exists():
        return _best(path.parent, name), []
    if (path / META).is_file() or Saved(path).step >= 0:
        fault = Saved(path).fault(to_go_on=to_go_on)
        if fault is not None:
            raise CheckpointError(f"{name}{path} cannot be used: {fault}; take another checkpoint")
        return Saved(path), []
    found, skipped = newest_usable(_folder(path), to_go_on=to_go_on)
    if found is not None:
        return found, skipped
    what = "there is no complete checkpoint" if path.is_dir() else "there is no such directory"
    reasons = "".join(f"; {saved.path.name}: {fault}" for saved, fault in skipped)
    raise CheckpointError(
        f"{name}{path}: {what}{reasons}; give a step_N directory, or a run that has one"
    )


def best_of(saved: list[Saved]) -> Saved | None:
    """The best of these that can be used, by the eval.metric of the newest; None where none was
    evaluated.
    """
    usable = [one for one in saved if one.fault() is None]
    metric = usable[-1].meta.get("best_by") if usable else None
    return next(iter(best(usable, metric, 1)), None) if isinstance(metric, str) else None


def _best(path: Path, name: str) -> Saved:
    found = best_of(listed(_folder(path)))
    if found is None:
        raise CheckpointError(
            f"{name}{path / BEST}: {path} has no checkpoint that was evaluated; python -m forge.checkpoints lists them"
        )
    return found


def _folder(path: Path) -> Path:
    """Where the checkpoints of a run are, or the folder of them that is given."""
    return saved_folder(path) if is_run(path) else path


def file_sizes(path: Path) -> dict[str, int]:
    """The size of every file below a directory, by relative name."""
    return {
        str(file.relative_to(path)): file.stat().st_size
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def best(saved: list[Saved], metric: str, count: int) -> list[Saved]:
    """The `count` best by a metric of the evaluation at their step, best first; those without one
    do not count.
    """
    scored = [
        (value, one)
        for one in saved
        if (value := one.meta.get("metrics", {}).get(metric)) is not None
    ]
    scored.sort(key=lambda pair: pair[0], reverse=metric in HIGHER_IS_BETTER)
    return [one for _, one in scored[:count]]
