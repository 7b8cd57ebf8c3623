"""Stacks of all threads of a rank, in RUN/stacks: on request, from time to time, and by the C side
of faulthandler where Python cannot run.
"""

from __future__ import annotations

import faulthandler
import os
import time
from contextlib import suppress
from pathlib import Path

STACKS, REQUEST = "stacks", "stacks_asked_for"


class Stacks:
    """The file with a rank's stacks; absent at the end if nothing was written.

    interval: seconds between two dumps, 0 = none but on request.
    """

    def __init__(self, run_dir: Path, rank: int, *, frozen: float, interval: float = 0.0) -> None:
        """frozen: seconds without `look` after which faulthandler writes by itself."""
        self.file = run_dir / STACKS / f"rank_{rank}.txt"
        self.request = run_dir / "alive" / REQUEST
        self.frozen, self.interval = frozen, interval
        self.descriptor, self.answered, self.dumped = -1, 0.0, time.monotonic()
        with suppress(OSError):
            self.file.parent.mkdir(exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self.descriptor = os.open(self.file, flags, 0o644)

    def ask(self) -> None:
        """Ask all ranks for their stacks."""
        with suppress(OSError):
            self.request.touch()

    def look(self) -> None:
        """Write the stacks if a rank has asked for them, or if it is time to."""
        if self.descriptor < 0:
            return
        asked = 0.0
        with suppress(OSError):
            asked = self.request.stat().st_mtime
        due = self.interval > 0 and time.monotonic() - self.dumped >= self.interval
        if asked > self.answered or due:
            self.answered, self.dumped = asked, time.monotonic()
            os.write(self.descriptor, f"\n{time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
            faulthandler.dump_traceback(self.descriptor, all_threads=True)
        # Written by a thread of C, unless this function is called again in time.
        faulthandler.dump_traceback_later(self.frozen, file=self.descriptor)

    def close(self) -> None:
        """Remove an empty file, and the folder with the last one."""
        if self.descriptor < 0:
            return
        faulthandler.cancel_dump_traceback_later()
        empty = os.fstat(self.descriptor).st_size == 0
        os.close(self.descriptor)
        self.descriptor = -1
        with suppress(OSError):
            if empty:
                self.file.unlink()
            self.request.unlink(missing_ok=True)
            self.file.parent.rmdir()
