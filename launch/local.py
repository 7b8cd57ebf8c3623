"""Ranks on this machine: start them, pass signals on, wait for all, leave none behind."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

from forge.launch.directory import ERROR

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FAILED, REFUSED = 1, 2  # exit codes of a worker: something went wrong, and the user's mistake
PARENT = "FORGE_PARENT"  # tells a worker the process that started it


def search_path() -> str:
    """PYTHONPATH of a worker: where this process imports from, beyond Python's own folders, so that a user's package is found there too."""
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own = [os.path.join(path, "") for path in (*library, *site.getsitepackages(), site.getusersitepackages())]
    added = [os.path.abspath(path) for path in sys.path if path and not path.endswith(".zip")]
    return os.pathsep.join(path for path in added if not os.path.join(path, "").startswith(tuple(own)))


def start(run_dir: Path) -> int:
    """Run the one rank of a run directory as a process of its own and return its exit code.

    The terminal is the worker's: it shows progress and errors itself. Ctrl-C reaches it directly; other
    signals are passed on, when this is called where Python can take them: in the main thread.
    """
    command = [sys.executable, "-m", "forge.worker", str(run_dir)]
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    worker = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": search_path(), PARENT: str(os.getpid()), **ranks})
    previous = {}
    try:
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, lambda n, _: worker.send_signal(n)) for number in FORWARDED}
            previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = worker.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if code < 0:
        name = signal.Signals(-code).name
        if not (run_dir / ERROR).exists():
            hint = " (out of memory? lower train.batch_size)" if name == "SIGKILL" else ""
            print(f"the worker was ended by {name}{hint}; its run directory is {run_dir}", file=sys.stderr)
        return 128 - code
    return code
