"""Copies a run into a remote store while it trains: each rank the files that it has written."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from forge.rundir.checkpoints import (
    META,
    Saved,
    best_checkpoints,
    list_checkpoints,
)
from forge.rundir.files import read_object, write_json
from forge.rundir.remote.runs import CHECKPOINTS, Listing, check_same_run, listing_of, note_place
from forge.rundir.remote.store import RemoteError, Store

log = logging.getLogger(__name__)
POLL = 1.0  # seconds between looks at the folder of checkpoints
PATIENCE = 3600.0  # seconds for the parts of other ranks
LONGEST_PAUSE = 300.0  # seconds after a store could not be used
LINKED, BEGUN, ENDED = ".copied", "begun.json", ".copies_ended"
LARGEST_FILE = 1 << 28  # bytes of a file that is copied beside the checkpoints
NOT_COPIED = {"run.lock", "weights", "export", "alive"}
OF_RANK = re.compile(r"weights/rank_(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Retention:
    """The checkpoints that a store keeps, as checkpoint.keep_last_n and keep_best say."""

    last: int
    best: int
    metric: str

    def surplus(self, saved: list[Saved]) -> list[Saved]:
        if not self.last:
            return []
        keep = saved[-self.last :] + best_checkpoints(saved, self.metric, self.best)
        return [checkpoint for checkpoint in saved if checkpoint not in keep]


class Copies:
    """Copies the newest complete checkpoint, and with it the files of the run, in a thread.

    Where saves come faster than a store takes them, those in between are left out. A checkpoint is
    held by hard links while it is copied, so that the retention of the run cannot take it away.
    Rank 0 copies all but the tensors of other ranks, waits for these, and uploads meta.json last.
    The ranks see each other's progress in a folder beside the checkpoints, which all of them see.
    A store that fails is tried again, and training continues.
    """

    def __init__(
        self,
        run_dir: Path,
        folder: Path,
        store: Store,
        run_id: str,
        retention: Retention,
        *,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self.run_dir, self.folder, self.store, self.run_id = run_dir, folder, store, run_id
        self.retention, self.rank, self.size = retention, rank, size
        self.linked = folder / LINKED
        self.fault: RemoteError | None = None
        self._sent: dict[str, tuple[int, int]] = {}  # files of the run: size and time of change
        self._copied: dict[int, tuple[object, object]] = {}  # by step: time of the save, checksum
        self._state: object = None  # of the folder of checkpoints, at the last look
        self._begun: object = None  # of another rank's part: the save that was copied last
        self._ending, self._awake = threading.Event(), threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, name="remote", daemon=True)

    def start(self, step: int) -> None:
        """Begin to copy. Rank 0 first removes what the store has of later steps, which are made
        again, and what is torn. Raises RemoteError for a store that cannot be used.
        """
        if self.rank == 0:
            check_same_run(self.store, self.run_id)
            shutil.rmtree(self.linked, ignore_errors=True)
            (self.folder / ENDED).unlink(missing_ok=True)
            note_place(self.run_dir, self.store)
            with listing_of(self.store) as listing:
                local_saves = {saved.step: saved.meta for saved in list_checkpoints(self.folder)}
                for saved in listing.saved:
                    if listing.fault(saved, self.run_id) or saved.step > step:
                        self.store.remove(listing.names(saved))
                    elif local_saves.get(saved.step, {}).get("time") == saved.meta.get("time"):
                        self._copied[saved.step] = _identity(saved)
            self.send_files()
        self._thread.start()

    def finish(self) -> None:
        """Copy the newest checkpoint and the files of the run, and end, on all ranks.

        Raises RemoteError on rank 0 where the store lacks them.
        """
        ended = self.folder / ENDED
        if self.rank:  # rank 0 may wait for this rank's part
            deadline = time.monotonic() + PATIENCE
            while not ended.exists() and time.monotonic() < deadline:
                time.sleep(POLL / 10)
        self._ending.set()
        self._awake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self.rank == 0:
            ended.touch()
        if self.fault is not None:
            raise self.fault

    def stop(self) -> None:
        """End without a further copy, after a failure of the run."""
        self._stopped.set()
        self._ending.set()
        self._awake.set()

    def _work(self) -> None:
        pause = POLL
        while True:
            last = self._ending.is_set()
            if self._stopped.is_set():
                return
            try:
                self._look()
                if last and self.rank == 0:
                    self.send_files()
                self.fault, pause = None, POLL
            except RemoteError as error:
                if self.fault is None:
                    log.warning("%s; training continues, and the copy is tried again", error)
                self.fault, pause = error, min(2 * pause, LONGEST_PAUSE)
            except (OSError, ValueError, KeyError) as error:  # of this machine's files
                log.warning("%s cannot be copied: %s", self.folder, error)
            if last:
                return
            self._awake.wait(pause)

    def _look(self) -> None:
        if self.rank:
            self._copy_part()
            return
        saves = list_checkpoints(self.folder)
        state = [(saved.step, _changed_at(saved)) for saved in saves]
        if state == self._state:
            return
        newest = next((s for s in reversed(saves) if s.fault(self.run_id) is None), None)
        if newest is not None:
            self._bring_up_to_date(newest)
        self._state = state

    def _bring_up_to_date(self, newest: Saved) -> None:
        copied, identity = self._copied.get(newest.step), _identity(newest)
        if copied is None or copied[0] != identity[0]:
            self._copy(newest)
        elif copied != identity:  # metrics of an evaluation were added
            self.store.write(_name(newest, META), (newest.path / META).read_bytes())
            self._copied[newest.step] = identity

    def _copy(self, saved: Saved) -> None:
        """Copy a checkpoint, in the role of rank 0."""
        held = self._hold(saved)
        if held is None:
            return  # removed meanwhile: a newer one is there
        try:
            with listing_of(self.store) as listing:
                self._remove(listing, [s for s in listing.saved if s.step == saved.step])
            write_json(self.linked / BEGUN, {"step": saved.step, "attempt": secrets.token_hex(8)})
            files = held.meta["files"]
            names = [name for name in files if self._owner(name) == 0]
            self.store.upload({_name(saved, name): held.path / name for name in names})
            self.send_files()
            others = {self._owner(name) for name in files} - {0}
            self._wait_for(others)
            self.store.upload({_name(saved, META): held.path / META})
            with listing_of(self.store) as listing:
                if fault := listing.fault(Saved(listing.folder / saved.path.name), self.run_id):
                    hint = "It is copied again"
                    raise RemoteError(f"{self.store.address}/{_name(saved, '')}", fault, hint)
                self._copied[saved.step] = _identity(held)
                self._remove(listing, self.retention.surplus(listing.usable()))
        finally:
            shutil.rmtree(self.linked, ignore_errors=True)

    def _copy_part(self) -> None:
        """Copy this rank's files of the checkpoint that rank 0 copies."""
        try:
            begun = read_object(self.linked / BEGUN)
        except (OSError, ValueError):
            return
        step = int(begun["step"])
        if begun == self._begun:
            return
        held = Saved(self.linked / f"step_{step}")
        fault = ""
        try:
            names = [n for n in held.meta["files"] if self._owner(n) == self.rank]
            self.store.upload({_name(held, name): held.path / name for name in names})
        except (RemoteError, OSError) as error:
            fault = str(error)
        self._begun = begun
        if self.linked.is_dir():
            write_json(self.linked / f"rank_{self.rank}.json", {"fault": fault})

    def _wait_for(self, ranks: set[int]) -> None:
        """Wait for the parts of other ranks. Raises RemoteError for a part that failed."""
        deadline = time.monotonic() + PATIENCE
        missing = sorted(ranks)
        while missing:
            for rank in list(missing):
                file = self.linked / f"rank_{rank}.json"
                if file.is_file():
                    missing.remove(rank)
                    if fault := read_object(file)["fault"]:
                        raise RemoteError(self.store.address, f"rank {rank}: {fault}", "")
            if self._stopped.is_set():
                raise RemoteError(self.store.address, "the run has failed meanwhile", "")
            if missing and time.monotonic() > deadline:
                why = f"rank {missing[0]} has not copied its part within {PATIENCE:.0f} s"
                raise RemoteError(self.store.address, why, "It is tried again", lasting=False)
            time.sleep(0.05 if missing else 0)

    def _owner(self, name: str) -> int:
        """The rank that copies a file of a checkpoint."""
        match = OF_RANK.match(name)
        return int(match[1]) % self.size if match else 0

    def _hold(self, saved: Saved) -> Saved | None:
        """A second tree of hard links to a checkpoint; None where it is removed meanwhile."""
        target = self.linked / saved.path.name
        shutil.rmtree(self.linked, ignore_errors=True)
        try:
            shutil.copytree(saved.path, target, copy_function=_link)
        except (OSError, shutil.Error):
            if saved.path.exists():
                raise
            return None
        held = Saved(target)
        return held if held.fault(self.run_id) is None else None

    def _remove(self, listing: Listing, checkpoints: list[Saved]) -> None:
        for saved in checkpoints:
            self.store.remove(listing.names(saved))
            self._copied.pop(saved.step, None)

    def copy_now(self) -> int:
        """Copy the newest checkpoint and the files of the run, without a thread; its step, 0 for
        none. Raises RemoteError.
        """
        check_same_run(self.store, self.run_id)
        note_place(self.run_dir, self.store)
        with listing_of(self.store) as listing:
            self._copied = {saved.step: _identity(saved) for saved in listing.usable()}
        self._look()
        self.send_files()
        return max(self._copied, default=0)

    def send_files(self) -> None:
        """Copy the files of the run that have changed, config.yaml last: it makes a run."""
        changed: dict[str, Path] = {}
        for path in run_files(self.run_dir, self.folder):
            about, name = path.stat(), str(path.relative_to(self.run_dir))
            state = (about.st_size, about.st_mtime_ns)
            if self._sent.get(name) != state and about.st_size <= LARGEST_FILE:
                changed[name] = path
                self._sent[name] = state
        configs = {name: path for name, path in changed.items() if name == "config.yaml"}
        try:
            self.store.upload({name: changed[name] for name in changed.keys() - configs.keys()})
            self.store.upload(configs)
        except RemoteError:
            for name in changed:
                self._sent.pop(name, None)
            raise


def run_files(run_dir: Path, folder: Path) -> list[Path]:
    """The files of a run without its checkpoints, weights for others, locks and hidden files."""
    files: list[Path] = []
    for place, folders, names in os.walk(run_dir):
        parent = Path(place)
        hidden = NOT_COPIED if parent == run_dir else ()
        copied = [name for name in names if name[0] != "." and name not in hidden]
        folders[:] = [
            name
            for name in folders
            if parent / name != folder and name[0] != "." and name not in hidden
        ]
        files += [parent / name for name in copied]
    return [path for path in files if path.is_file() and not path.is_symlink()]


def _changed_at(saved: Saved) -> int:
    """The time of change of a meta.json; 0 without the file."""
    try:
        return (saved.path / META).stat().st_mtime_ns
    except OSError:
        return 0


def _identity(saved: Saved) -> tuple[object, object]:
    """The time of a save, and the checksum of its meta.json."""
    return saved.meta.get("time"), saved.meta.get("checksum")


def _name(saved: Saved, file: str) -> str:
    return f"{CHECKPOINTS}/{saved.path.name}/{file}".rstrip("/")


def _link(source: str, target: str) -> None:
    """A hard link; a copy where the file system has none."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)
