"""Ranks on this machine: start them, pass signals on, wait for all, leave none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from forge.launch.directory import ERROR

FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def start(run_dir: Path) -> int:
    """Run the one rank of a run directory as a process of its own and return its exit code.

    The terminal is the worker's: it shows progress and errors itself. Ctrl-C reaches it directly; other
    signals are passed on, when this is called where Python can take them: in the main thread.
    """
    command = [sys.executable, "-m", "forge.worker", str(run_dir)]
    worker = subprocess.Popen(command, env={**os.environ, "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"})
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
