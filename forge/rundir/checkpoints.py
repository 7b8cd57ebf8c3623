"""The checkpoints of a run as files: the list, the usable checkpoints, and the faults of others."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from forge.config.objectives.base import is_higher_better
from forge.rundir.files import read_object
from forge.rundir.saved_config import is_run, read_plain

log = logging.getLogger(__name__)
FORMAT = 2
META, TOKENIZER, WEIGHTS = "meta.json", "tokenizer", "weights"
CHECKSUM, HASHES = "checksum", "sha256"  # in meta.json: of its other keys, and of small files
OTHER_TOKENIZER = "it was trained with another tokenizer, so its token ids mean something else here"
OPTIONAL = type(None)
KINDS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("time", "reason", "run_id"), (str, OPTIONAL)),
    **dict.fromkeys(("files", "metrics", "train", "data", "loader", "rows"), (dict,)),
    **dict.fromkeys(("base", "scaler"), (dict, OPTIONAL)),
    **dict.fromkeys(("step", "format"), (int,)),
    "seconds": (int, float),
    "best_by": (str, OPTIONAL),
    "higher_is_better": (bool,),
    "weights_only": (bool,),
}
"""Types of the values in meta.json, by key; any key may be absent."""
NUMBERS = {"files": (int,), "rows": (int,), "metrics": (int, float, OPTIONAL)}
"""Types of the numbers in the dicts of numbers by name."""
BEST = "best"  # in a path, in place of a step: the best checkpoint of a run


class CheckpointError(ValueError):
    """An unusable checkpoint: the path, the reason, and what to do."""


class NoCheckpoint(CheckpointError):
    """A run without a usable checkpoint to resume from."""


class Damaged(CheckpointError):
    """A checkpoint with tensors found damaged while being read.

    path: of the checkpoint. fault: in the form of `Saved.fault`.
    """

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path} cannot be used: {fault}; take another checkpoint")
        self.path, self.fault = path, fault


@dataclass(frozen=True)
class Saved:
    """A `step_N` directory."""

    path: Path

    @property
    def step(self) -> int:
        match = re.fullmatch(r"step_(\d+)", self.path.name)
        return int(match[1]) if match else -1

    @property
    def meta(self) -> dict[str, Any]:
        """The content of meta.json; empty when unreadable or changed since saved."""
        return self._meta[0]

    @cached_property
    def _meta(self) -> tuple[dict[str, Any], str]:
        """The content of meta.json and its fault.

        Another format may be sealed otherwise; a file from before the seal is taken unchecked.
        """
        try:
            meta = read_object(self.path / META)
        except (OSError, ValueError):
            return {}, f"its {META} cannot be read"
        if not all(_is_of_kind(key, value) for key, value in meta.items()):
            return {}, f"its {META} cannot be read"
        is_sealed = bool({CHECKSUM, HASHES} & set(meta)) and meta.get("format") == FORMAT
        if is_sealed and meta.get(CHECKSUM) != _checksum(meta):
            return {}, f"its {META} is damaged: its bytes are not those that were saved"
        return meta, ""

    def fault(self, run_id: str | None = None, *, to_go_on: bool = False) -> str | None:
        """The reason against using the checkpoint, in a sentence, or None.

        run_id: the checkpoint must be of this run. to_go_on: weights alone are not enough.
        """
        if not self.path.is_dir():
            return "there is no such directory"
        if not (self.path / META).is_file():
            return f"it is torn: it has no {META}, which is written last"
        if not self.meta:
            return self._meta[1] or f"its {META} cannot be read"
        if (format := self.meta.get("format")) != FORMAT:
            newer = isinstance(format, int) and format > FORMAT
            advice = "; a newer version of forge wrote it" if newer else ""
            readable = f"this version reads format {FORMAT}{advice}"
            return f"it has checkpoint format {format}, and {readable}"
        if run_id is not None and self.meta.get("run_id") != run_id:
            return "it is of another run; checkpoint.resume_from takes one on purpose"
        if to_go_on and self.meta.get("weights_only"):
            takes = "checkpoint.init_from takes"
            return f"it holds the weights alone (checkpoint.last=weights), which {takes}"
        for name, expected in self.meta.get("files", {}).items():
            file = self.path / name
            if not file.is_file():
                return f"it is torn: {name} is missing"
            if (size := file.stat().st_size) != expected:
                return f"it is torn: {name} has {size} bytes of {expected}"
        for name, expected in self.meta.get(HASHES, {}).items():
            try:
                is_same = _hash(self.path / name) == expected
            except OSError as error:
                return f"its {name} cannot be read: {error.strerror or error}"
            if not is_same:
                return f"it is damaged: the bytes of {name} are not those that were saved"
        return None

    @property
    def size(self) -> int:
        return sum(file_sizes(self.path).values())


Skipped = list[tuple[Saved, str]]
"""Checkpoints skipped, each with the reason."""
T = TypeVar("T")


class SkippedCheckpoints:
    """Checkpoints that a command cannot use.

    damaged: by path, faults found while tensors were read, invisible to a look at the files.
    """

    def __init__(self) -> None:
        self.damaged: dict[Path, str] = {}
        self._warned: set[Path] = set()

    def warn(self, skipped: Skipped) -> None:
        """Log each with its reason, once."""
        for saved, fault in skipped:
            if saved.path not in self._warned:
                log.warning("%s is skipped: %s", saved.path, fault)
                self._warned.add(saved.path)


def saved_folder(run_dir: Path) -> Path:
    """The folder of a run's checkpoints. Raises CheckpointError when the run's config is
    unreadable.
    """
    try:
        return run_dir / read_plain(run_dir)["checkpoint"]["dir"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(str(error)) from None


def list_checkpoints(folder: Path) -> list[Saved]:
    """Every `step_N` directory of a folder, complete or not, oldest first."""
    folders = [Saved(path) for path in folder.glob("step_*") if path.is_dir()]
    return sorted((saved for saved in folders if saved.step >= 0), key=lambda saved: saved.step)


def newest_usable(
    folder: Path,
    run_id: str | None = None,
    *,
    to_go_on: bool = False,
    damaged: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[Saved | None, Skipped]:
    """The newest checkpoint without a `fault`, and the newer checkpoints with their faults.

    damaged: faults known from reading tensors.
    """
    skipped = []
    for saved in reversed(list_checkpoints(folder)):
        fault = damaged.get(saved.path) or saved.fault(run_id, to_go_on=to_go_on)
        if fault is None:
            return saved, skipped
        skipped.append((saved, fault))
    return None, skipped


def find_checkpoint(
    path: Path,
    *,
    name: str = "",
    to_go_on: bool = False,
    damaged: Mapping[Path, str] = MappingProxyType({}),
) -> tuple[Saved, Skipped]:
    """The checkpoint meant by a path, and the checkpoints skipped.

    A path means a checkpoint itself, the newest usable checkpoint of a run or folder, or the best
    checkpoint for RUN/best. Raises CheckpointError when none exists; `name` begins the message.
    damaged: as in `newest_usable`.
    """
    if path.name == BEST and not path.exists():
        best = best_of(list_checkpoints(_folder(path.parent)))
        if best is None:
            raise CheckpointError(
                f"{name}{path}: {path.parent} has no checkpoint that was evaluated; "
                "python -m forge.checkpoints lists them"
            )
        if fault := damaged.get(best.path):
            raise CheckpointError(f"{name}{path}: {Damaged(best.path, fault)}")
        return best, []
    if (path / META).is_file() or Saved(path).step >= 0:
        fault = damaged.get(path) or Saved(path).fault(to_go_on=to_go_on)
        if fault is not None:
            raise CheckpointError(f"{name}{path} cannot be used: {fault}; take another checkpoint")
        return Saved(path), []
    checkpoint, skipped = newest_usable(_folder(path), to_go_on=to_go_on, damaged=damaged)
    if checkpoint is None:
        message = (
            "there is no complete checkpoint" if path.is_dir() else "there is no such directory"
        )
        reasons = "".join(f"; {saved.path.name}: {fault}" for saved, fault in skipped)
        hint = "give a step_N directory, or a run that has one"
        raise CheckpointError(f"{name}{path}: {message}{reasons}; {hint}")
    return checkpoint, skipped


def read_checkpoint(path: Path, read: Callable[[Saved], T]) -> T:
    """Read, by `read`, the checkpoint meant by a path, see `find_checkpoint`.

    A checkpoint found damaged while being read is skipped with a warning, like other unusable
    checkpoints; CheckpointError for a damaged checkpoint named by the path.
    """
    passed = SkippedCheckpoints()
    while True:
        saved, skipped = find_checkpoint(path, damaged=passed.damaged)
        passed.warn(skipped)
        try:
            return read(saved)
        except Damaged as error:
            if error.path != saved.path:
                raise  # the damage is in the base of its adapters
            passed.damaged[saved.path] = error.fault


def best_of(saved: list[Saved]) -> Saved | None:
    """The best usable checkpoint, by the eval.metric of the newest, if evaluated."""
    usable = [checkpoint for checkpoint in saved if checkpoint.fault() is None]
    metric = usable[-1].meta.get("best_by") if usable else None
    return next(iter(best_checkpoints(usable, metric, 1)), None) if metric else None


def best_checkpoints(saved: list[Saved], metric: str, count: int) -> list[Saved]:
    """The `count` best checkpoints by a metric of their evaluation, best first."""
    values = {checkpoint: checkpoint.meta.get("metrics", {}).get(metric) for checkpoint in saved}
    scored = [checkpoint for checkpoint in saved if values[checkpoint] is not None]
    declared_higher = any(
        checkpoint.meta.get("best_by") == metric and checkpoint.meta["higher_is_better"]
        for checkpoint in scored
    )
    higher = declared_higher or is_higher_better(metric)
    return sorted(scored, key=values.__getitem__, reverse=higher)[:count]


def file_sizes(path: Path) -> dict[str, int]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


def _is_of_kind(key: str, value: Any) -> bool:
    inside = value.values() if key in NUMBERS and isinstance(value, dict) else ()
    return isinstance(value, KINDS.get(key, (object,))) and all(
        isinstance(number, NUMBERS[key]) for number in inside
    )


def small_hashes(path: Path) -> dict[str, str]:
    """The sha256 of each file except tensors, with checksums in their index."""
    return {name: _hash(path / name) for name in file_sizes(path) if not name.endswith(".bin")}


def sealed(meta: dict[str, Any]) -> dict[str, Any]:
    """The content for meta.json: plain JSON with the checksum of all other keys."""
    plain = json.loads(json.dumps(meta, default=str))
    return plain | {CHECKSUM: _checksum(plain)}


def _checksum(meta: dict[str, Any]) -> str:
    content = {key: value for key, value in meta.items() if key != CHECKSUM}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    about = path.stat()
    return _hash_of(path, about.st_ino, about.st_size, about.st_mtime_ns)


@lru_cache(1024)
def _hash_of(path: Path, *_: int) -> str:
    """Hash a file once for each of its states: a run looks at all checkpoints at every save."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _folder(path: Path) -> Path:
    return saved_folder(path) if is_run(path) else path
