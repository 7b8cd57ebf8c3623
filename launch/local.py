"""Ranks on this machine: start them, pass signals on, wait for all, leave none behind."""

from __future__ import annotations

import os
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

from forge.launch.directory import ERROR

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
FAILED, REFUSED = 1, 2  # exit codes of a worker: something went wrong, and the user's mistake
GRACE = 5.0  # seconds that ranks have to end once one of them has failed
PARENT = "FORGE_PARENT"  # tells a worker the process that started it


def search_path() -> str:
    """PYTHONPATH of a worker: where this process imports from, beyond Python's own folders, so that a user's package is found there too."""
    library = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own = [os.path.join(path, "") for path in (*library, *site.getsitepackages(), site.getusersitepackages())]
    added = [os.path.abspath(path) for path in sys.path if path and not path.endswith(".zip")]
    return os.pathsep.join(path for path in added if not os.path.join(path, "").startswith(tuple(own)))


def start(run_dir: Path, ranks: int = 1) -> int:
    """Run the ranks of a run directory as processes of their own and return the exit code of the first that failed, or 0.

    The terminal is the main rank's: it shows progress and errors itself. Ctrl-C reaches them directly; other
    signals are passed on, when this is called where Python can take them: in the main thread. When a rank ends badly the others
    have GRACE seconds to end too; then they are killed.
    """
    (run_dir / ERROR).unlink(missing_ok=True)
    command = [sys.executable, "-m", "forge.worker", str(run_dir)]
    common = {**os.environ, "PYTHONPATH": search_path(), PARENT: str(os.getpid()), "WORLD_SIZE": str(ranks)}
    if ranks > 1:
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    workers = [subprocess.Popen(command, env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(ranks)]
    previous = {}

    def pass_on(number: int, _: Any) -> None:
        for worker in workers:
            worker.send_signal(number)

    try:
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, pass_on) for number in FORWARDED}
            previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        rank, code = _wait(workers)
    finally:
        for worker in workers:
            worker.kill()
        for number, handler in previous.items():
            signal.signal(number, handler)
    if code < 0:
        name = signal.Signals(-code).name
        if not (run_dir / ERROR).exists():
            hint = " (out of memory? lower train.batch_size)" if name == "SIGKILL" else ""
            which = "the worker" if ranks == 1 else f"rank {rank} of {ranks}"
            print(f"{which} was ended by {name}{hint}; its run directory is {run_dir}", file=sys.stderr)
        return 128 - code
    return code


def _wait(workers: list[subprocess.Popen[bytes]]) -> tuple[int, int]:
    """The first rank that ended badly, with its code; (0, 0) when all ended well."""
    first, deadline = (0, 0), float("inf")
    while any(worker.poll() is None for worker in workers):
        for rank, worker in enumerate(workers):
            if first[1] == 0 and worker.poll():
                first, deadline = (rank, worker.poll() or 0), time.monotonic() + GRACE
        if time.monotonic() > deadline:
            for worker in workers:
                worker.kill()
        if len(workers) == 1:
            workers[0].wait()
        time.sleep(0.02 if len(workers) > 1 else 0)
    bad = [(rank, worker.returncode) for rank, worker in enumerate(workers) if worker.returncode]
    return first if first[1] else (bad[0] if bad else (0, 0))


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
