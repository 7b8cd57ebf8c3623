"""The end of a run in a remote store: its result and its page."""

from __future__ import annotations

import logging
from pathlib import Path

from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.report.run_page import write_page
from forge.rundir import directory
from forge.rundir.remote.copies import Copies, Retention
from forge.rundir.remote.runs import place_of
from forge.rundir.remote.store import RemoteError
from forge.training.process import say

log = logging.getLogger(__name__)


def send_end(run_dir: Path, config: Config) -> None:
    """Write the run's page, and copy it with result.json and the last rows to checkpoint.remote.

    A store that fails is a warning: the run is complete in its directory.
    """
    section = config.checkpoint
    assert section.remote is not None
    retention = Retention(last=section.keep_last_n, best=section.keep_best, metric="")
    try:
        store = place_of(run_dir, section.remote)
        page = write_page(run_dir)
        run_id = directory.run_id(run_dir)
        Copies(run_dir, run_dir / section.dir, store, run_id, retention).send_files()
        say(f"  {'copied to':<16} {store.address}, with {page.relative_to(run_dir)}")
    except (RemoteError, ConfigError, OSError) as error:
        command = f"python -m forge.upload {directory.short(run_dir)}"
        log.warning("the end of the run is not in the store: %s; %s", error, command)
