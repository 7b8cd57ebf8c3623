"""Copies of the run in a remote store: checkpoint.remote."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from forge.rundir import directory
from forge.rundir.remote.copies import Copies, Retention
from forge.rundir.remote.runs import place_of
from forge.rundir.remote.store import RemoteError
from forge.training.callback import Callback

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session

log = logging.getLogger(__name__)


class RemoteCopies(Callback):
    """Starts the thread of copies, and at the end waits for the last checkpoint's.

    Stands after the saving callback, whose save at the end is copied too.
    """

    reads_gradients = False

    def __init__(self, session: Session) -> None:
        section, run_dir = session.config.checkpoint, session.run_dir
        assert section.remote is not None
        self.ranks = session.ranks
        retention = Retention(
            last=section.keep_last_n, best=section.keep_best, metric=session.config.eval.metric
        )
        self.copies = Copies(
            run_dir,
            run_dir / section.dir,
            place_of(run_dir, section.remote),
            directory.run_id(run_dir),
            retention,
            rank=session.ranks.rank,
            size=session.ranks.size,
        )

    @classmethod
    def wanted(cls, session: Session) -> bool:
        section = session.config.checkpoint
        return section.enabled and section.remote is not None

    def on_start(self, loop: Loop) -> None:
        """Start on all ranks, or on none: a fault of one is raised by all."""
        fault: RemoteError | None = None
        try:
            self.copies.start(loop.state.step)
        except RemoteError as error:
            fault = error
        faults = [each for each in self.ranks.of_all(fault) if each is not None]
        if faults:
            raise faults[0]

    def on_end(self, loop: Loop) -> None:
        """Wait for the copy. A store that fails is a warning: the run is complete on this disk."""
        with loop.ledger.long_span("checkpoint"), loop.paused():
            try:
                self.copies.finish()
            except RemoteError as error:
                if self.ranks.main:
                    command = f"python -m forge.upload {directory.short(loop.run_dir)}"
                    log.warning("%s; the store lacks the last checkpoint: %s", error, command)

    def close(self) -> None:
        self.copies.stop()
