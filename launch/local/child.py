"""A process that a launcher has started: it ends with its parent, and without a sound."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from typing import NoReturn

from forge.config.problems import REFUSED
from forge.launch.local.processes import PARENT
from forge.rundir.outcome import FAILED, ranks


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, also a killed parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        parent = os.environ.pop(PARENT, None)
        if parent is not None and int(parent) != os.getppid():
            sys.exit(128 + signal.SIGTERM)  # it ended before this process could ask


def end_on_interrupt() -> None:
    """End the process on SIGINT without a traceback, until the loop takes signals; also on a SIGINT
    blocked by the parent while Python was starting.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def leave(code: int) -> NoReturn:
    """End this process; a failed rank ends at once: its threads would wait for other ranks."""
    if ranks() > 1 and code in (FAILED, REFUSED):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
