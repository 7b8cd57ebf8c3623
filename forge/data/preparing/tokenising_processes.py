"""Pool of processes for tokenising a corpus."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from forge.rundir.process_folders import share_folder


@contextmanager
def processes_for(processes: int) -> Iterator[ProcessPoolExecutor | None]:
    """A pool of `processes` tokenising processes; None for one: the calling process."""
    if processes == 1:
        yield None
        return
    share_folder()
    # The threads of the tokenizers library do not survive a fork of this process.
    ways = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in ways else "spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_begin)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Limit a process to one tokenising thread, and to the life of its parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
