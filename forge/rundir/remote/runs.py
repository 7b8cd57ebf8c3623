"""A run in a remote store: its files by the names they have in the run directory, and checkpoints.

`checkpoints/step_N/meta.json` is uploaded last: without it, or with a file of another size than it
names, a checkpoint is no checkpoint.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forge.rundir.checkpoints import (
    META,
    WEIGHTS,
    NoCheckpoint,
    Saved,
    Skipped,
    best_checkpoints,
    saved_folder,
)
from forge.rundir.files import sync, write_json
from forge.rundir.remote.store import RemoteError, Store
from forge.rundir.saved_config import CONFIG, is_new
from forge.rundir.tensor_sums import tensor_damage

log = logging.getLogger(__name__)
CHECKPOINTS, PROVENANCE, PLACE = "checkpoints", "provenance.json", "remote.json"
POINTS = "points"  # of a sweep
SCRATCH = "partial"


def remote_name(run_dir: Path) -> str:
    """The name of a run below checkpoint.remote; of a point of a sweep with the sweep's name."""
    parts = run_dir.parts
    return "/".join(parts[-3:] if parts[-2:-1] == (POINTS,) else parts[-1:])


def place_of(run_dir: Path, remote: str) -> Store:
    """The store of a run's copy, kept when the run directory was brought here by another name."""
    try:
        address = str(json.loads((run_dir / PLACE).read_text(encoding="utf-8"))["address"])
    except (OSError, ValueError, KeyError, TypeError):
        address = ""
    remote = remote.rstrip("/")
    if not address.startswith(f"{remote}/"):
        address = f"{remote}/{remote_name(run_dir)}"
    return Store(address)


def note_place(run_dir: Path, store: Store) -> None:
    write_json(run_dir / PLACE, {"address": store.address})


def run_id_in(store: Store) -> str | None:
    """The id of the run in a store; None without a run."""
    content = store.read(PROVENANCE)
    try:
        return None if content is None else str(json.loads(content)["run_id"])
    except (ValueError, KeyError, TypeError):
        hint = "Give another run.dir, or remove what is there"
        raise RemoteError(f"{store.address}/{PROVENANCE}", "it is damaged", hint) from None


def check_same_run(store: Store, run_id: str) -> None:
    """Raise RemoteError where the store has another run by this name."""
    other = run_id_in(store)
    if other not in (None, run_id):
        hint = "Give another run.dir, or another checkpoint.remote"
        raise RemoteError(store.address, "another run of this name is there", hint)


class Listing:
    """The checkpoints below a folder of a store, without their tensors.

    folder: on this machine, with a copy of each meta.json.
    """

    def __init__(self, store: Store, folder: Path, below: str = CHECKPOINTS) -> None:
        self.store, self.folder, self.below = store, folder, f"{below}/" if below else ""
        self.files: dict[Saved, dict[str, int]] = {}
        for name, (size, _) in store.files(below).items():
            step, _, file = name.removeprefix(self.below).partition("/")
            saved = Saved(folder / step)
            if saved.step >= 0 and file:
                self.files.setdefault(saved, {})[file] = size
        for saved in [saved for saved, files in self.files.items() if META in files]:
            content = store.read(f"{self.below}{saved.path.name}/{META}")
            if content is not None:
                saved.path.mkdir(parents=True, exist_ok=True)
                (saved.path / META).write_bytes(content)
        self.saved = sorted(self.files, key=lambda saved: saved.step)

    def fault(self, saved: Saved, run_id: str | None = None, *, to_go_on: bool = False) -> str:
        """The reason against a checkpoint, or ""."""
        files = self.files[saved]
        if META not in files or not saved.path.is_dir():
            return f"it is torn: it has no {META}, which is written last"
        if not saved.meta:
            return f"its {META} is damaged"
        for name, expected in saved.meta.get("files", {}).items():
            if (size := files.get(name)) is None:
                return f"it is torn: {name} is missing"
            if size != expected:
                return f"it is torn: {name} has {size} bytes of {expected}"
        if run_id is not None and saved.meta.get("run_id") != run_id:
            return "it is of another run"
        if to_go_on and saved.meta.get("weights_only"):
            return "it holds the weights alone"
        return ""

    def usable(self) -> list[Saved]:
        return [saved for saved in self.saved if not self.fault(saved)]

    def names(self, saved: Saved) -> list[str]:
        """The files of a checkpoint, meta.json first: they are removed in this order."""
        names = sorted(self.files[saved], key=lambda name: (name != META, name))
        return [f"{self.below}{saved.path.name}/{name}" for name in names]

    def fetch(self, saved: Saved, folder: Path) -> str:
        """Download a checkpoint into a folder, as step_N; the fault of what has come, or "".

        All bytes are checked: sizes, hashes of small files, sums of tensors.
        """
        scratch = folder / f".{saved.path.name}.{SCRATCH}"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        part = self.store.below(f"{self.below}{saved.path.name}")
        try:
            part.download(saved.meta["files"], scratch)
            shutil.copyfile(saved.path / META, scratch / META)
            fault = Saved(scratch).fault() or tensor_damage(scratch / WEIGHTS)
            if fault:
                return fault.replace(str(scratch), part.address)
            for path in scratch.rglob("*"):
                sync(path)
            shutil.rmtree(folder / saved.path.name, ignore_errors=True)  # an unusable one
            scratch.rename(folder / saved.path.name)
            sync(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        return ""


@contextmanager
def listing_of(store: Store, below: str = CHECKPOINTS) -> Iterator[Listing]:
    """The checkpoints of a store, with a folder for their meta.json that is removed again."""
    with tempfile.TemporaryDirectory(prefix="forge_remote_") as folder:
        yield Listing(store, Path(folder), below)


def fetch_newest(
    listing: Listing, folder: Path, run_id: str | None = None, *, to_go_on: bool = False
) -> Saved | None:
    """Download the newest checkpoint that is whole, into a folder; None where there is none.

    Others are skipped with a warning; uploads that were broken off count as none. A checkpoint
    that is here already is not fetched again. Raises NoneLeft where all are damaged.
    """
    skipped: Skipped = []
    for saved in reversed(listing.saved):
        here = Saved(folder / saved.path.name)
        fault = listing.fault(saved, run_id, to_go_on=to_go_on)
        if not fault and not (here.meta == saved.meta and here.fault() is None):
            fault = listing.fetch(saved, folder)
        if not fault:
            return here
        skipped.append((saved, fault))
        name = f"{listing.store.address}/{listing.below}{saved.path.name}"
        log.warning("%s is skipped: %s", name, fault)
    if any(META in listing.files[saved] for saved, _ in skipped):
        faults = "; ".join(f"{saved.path.name}: {fault}" for saved, fault in skipped)
        raise NoCheckpoint(
            f"{listing.store.address} has checkpoints and none can be used ({faults})"
        )
    return None


def fetch_best(listing: Listing, folder: Path) -> Saved | None:
    """Download the best checkpoint by the evaluation of the run; None where none is known."""
    usable = listing.usable()
    metric = usable[-1].meta.get("best_by") if usable else None
    best = next(iter(best_checkpoints(usable, metric, 1)), None) if metric else None
    if best is None:
        return None
    if fault := listing.fetch(best, folder):
        name = f"{listing.store.address}/{listing.below}{best.path.name}"
        raise RemoteError(name, fault, "Take another checkpoint")
    return Saved(folder / best.path.name)


def fetch_run(store: Store, run_dir: Path, *, best: bool = False, to_go_on: bool = False) -> None:
    """Bring a run of a store here, with its newest or best checkpoint; complete or not at all.

    Raises RemoteError where there is none, or another directory is in the way.
    """
    files = [name for name in store.files() if not name.startswith(f"{CHECKPOINTS}/")]
    if CONFIG not in files:
        raise RemoteError(store.address, f"there is no run: it has no {CONFIG}", "Correct the name")
    if not is_new(run_dir):
        hint = "Remove it, or go where it is not in the way"
        raise RemoteError(store.address, f"{run_dir} is there, and is not this run", hint)
    scratch = run_dir.with_name(f".{run_dir.name}.{SCRATCH}")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        store.download(files, scratch)
        note_place(scratch, store)
        folder = saved_folder(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        with listing_of(store) as listing:
            if not best or not fetch_best(listing, folder):
                fetch_newest(listing, folder, to_go_on=to_go_on)
        shutil.rmtree(run_dir, ignore_errors=True)  # empty, or half made
        scratch.rename(run_dir)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
