"""A run of a remote store brought to this machine, to continue here."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from forge.config.problems import COMMAND_LINE, refusal
from forge.config.root import Config
from forge.rundir.checkpoints import CheckpointError, newest_usable
from forge.rundir.files import read_object
from forge.rundir.remote.runs import (
    PROVENANCE,
    check_same_run,
    fetch_newest,
    fetch_run,
    listing_of,
    place_of,
    run_id_in,
)
from forge.rundir.remote.store import RemoteError, Store
from forge.rundir.saved_config import is_run, read_plain

log = logging.getLogger(__name__)
RUNS = "runs"


def prepare_store(config: Config) -> bool:
    """Try checkpoint.remote before a run begins, and bring the run here where only the store has
    it. Returns whether a run directory was made. Raises ConfigError.

    A file is written and removed: missing credentials, a missing bucket and a read-only store are
    found now. A run that has no usable checkpoint here gets the newest of the store.
    """
    remote, run = config.checkpoint.remote, config.run
    if remote is None:
        return False
    try_stores([remote])
    try:
        return run.dir is not None and _bring(Path(run.dir).absolute(), config, remote)
    except (RemoteError, CheckpointError) as error:
        raise _refused(f"checkpoint.remote={remote}", error) from None


def try_stores(remotes: Iterable[str]) -> None:
    """Write and remove a file in each store. Raises ConfigError for one that cannot be used."""
    for remote in remotes:
        try:
            Store(remote, attempts=1).probe()
        except RemoteError as error:
            raise _refused(f"checkpoint.remote={remote}", error) from None


def _bring(run_dir: Path, config: Config, remote: str) -> bool:
    store = place_of(run_dir, remote)
    if not is_run(run_dir):
        if run_id_in(store) is None:
            return False
        print(f"{run_dir} is not here; it is brought from {store.address}", flush=True)
        fetch_run(store, run_dir, to_go_on=True)
        return True
    run_id = str(read_object(run_dir / PROVENANCE).get("run_id"))
    check_same_run(store, run_id)
    folder = run_dir / config.checkpoint.dir
    newest, _ = newest_usable(folder, run_id, to_go_on=True)
    with listing_of(store) as listing:
        usable = [s for s in listing.saved if not listing.fault(s, run_id, to_go_on=True)]
        if newest is None and usable:
            print(f"no checkpoint is here; the newest is brought from {store.address}", flush=True)
            fetch_newest(listing, folder, run_id, to_go_on=True)
        elif newest is not None and usable and usable[-1].step > newest.step:
            message = "%s has step %d, newer than step %d in %s, where the run continues"
            log.warning(message, store.address, usable[-1].step, newest.step, folder)
    return False


def run_to_resume(place: str) -> tuple[Path, list[str]]:
    """The directory of a run to resume, and words that its user has said by naming the store.

    place: the address of the run; here it is in runs/NAME, where it is brought if absent. Raises
    ConfigError.
    """
    address = place.rstrip("/")
    run_dir = Path(RUNS, address.rpartition("/")[2])
    try:
        store = Store(address)
        if is_run(run_dir):
            check_same_run(store, str(read_object(run_dir / PROVENANCE).get("run_id")))
        else:
            print(f"{run_dir} is brought from {address}", flush=True)
            fetch_run(store, run_dir.absolute(), to_go_on=True)
        remote = str((read_plain(run_dir).get("checkpoint") or {}).get("remote") or "")
    except (RemoteError, CheckpointError, OSError, ValueError) as error:
        raise _refused(place, error) from None
    is_said = remote and address.startswith(f"{remote.rstrip('/')}/")
    return run_dir, [f"checkpoint.remote={remote}"] if is_said else []


def _refused(key: str, error: Exception) -> Exception:
    if isinstance(error, RemoteError):
        return refusal(key, f"{error.address}: {error.why}.", error.hint, COMMAND_LINE)
    return refusal(key, f"{error}.", "give another run.dir", COMMAND_LINE)
