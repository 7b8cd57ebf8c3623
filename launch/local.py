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
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from forge.launch import failure
from forge.launch.directory import ERROR

Worker = subprocess.Popen[bytes]

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


def start(run_dir: Path, ranks: int = 1, *, module: str = "forge.worker") -> int:
    """Run the ranks of a run directory as processes of their own and return the exit code of the one that failed first, or 0.

    The terminal is the main rank's: it shows progress and errors itself; what any other says goes to its log, and is shown when that
    one is why the run fails. Ctrl-C reaches all directly; other signals are passed on, when this is called where Python can take
    them: in the main thread. When a rank ends badly the others have GRACE seconds to end too; then they are killed.
    module: what a rank runs, with the run directory as its argument.
    """
    (run_dir / ERROR).unlink(missing_ok=True)
    workers: list[Worker] = []
    previous: dict[int, Any] = {}
    passed_on: set[int] = set()

    def pass_on(number: int, _: Any) -> None:
        passed_on.add(number)
        for worker in workers:
            worker.send_signal(number)

    try:
        workers += [_rank(run_dir, rank, environ, module) for rank, environ in enumerate(_environments(ranks))]
        if threading.current_thread() is threading.main_thread():
            previous = {number: signal.signal(number, pass_on) for number in FORWARDED}
            previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = _wait(workers, lambda rank, code: _report(run_dir, rank, ranks, code, passed_on))
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _environments(ranks: int) -> list[dict[str, str]]:
    """What each rank is told; nothing of another launcher that may have started this process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC_")}
    common = {**inherited, "PYTHONPATH": search_path(), PARENT: str(os.getpid()), "WORLD_SIZE": str(ranks)}
    if ranks > 1:
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _rank(run_dir: Path, rank: int, environ: dict[str, str], module: str) -> Worker:
    command = [sys.executable, "-m", module, str(run_dir)]
    if rank == 0:
        return subprocess.Popen(command, env=environ)
    with ExitStack() as opened:
        try:
            log_file(run_dir, rank).parent.mkdir(exist_ok=True)
            log = opened.enter_context(log_file(run_dir, rank).open("ab"))
        except OSError:
            log = subprocess.DEVNULL  # the rank itself warns of it
        return subprocess.Popen(command, env=environ, stdout=log, stderr=log)


def log_file(run_dir: Path, rank: int) -> Path:
    """Where the log of a rank is."""
    return run_dir / "logs" / f"rank_{rank}.log"


def _wait(workers: list[Worker], report: Callable[[int, int], float]) -> int:
    """The code of the first rank that ended badly; 0 when all ended well. report: told of it at once; gives the seconds for the others."""
    first, deadline = 0, float("inf")
    while True:
        running = [worker.poll() is None for worker in workers]  # all are asked each time: a rank that died is seen whichever it is
        for rank, worker in enumerate(workers):
            if first == 0 and worker.returncode:
                first = worker.returncode
                deadline = time.monotonic() + report(rank, first)
        if not any(running):
            return first
        if time.monotonic() > deadline:
            for worker in workers:
                worker.kill()
        if len(workers) == 1:
            workers[0].wait()
        else:
            time.sleep(0.02)


def _report(run_dir: Path, rank: int, ranks: int, code: int, passed_on: set[int]) -> float:
    """Say what ended the run, unless the main rank has, which has the terminal too; returns the seconds that the others have to end."""
    said = failure.ended_by(run_dir, -code, rank=rank, ranks=ranks) if code < 0 else None
    asked = -code in passed_on
    if said and ranks > 1 and not asked:
        with suppress(OSError):
            failure.record(run_dir, rank=rank, kind=signal.Signals(-code).name, message=said, said=said, code=128 - code)
    reason = failure.recorded(run_dir)
    if reason is not None:
        own = reason.get("rank") == 0 and reason.get("type") not in signal.Signals.__members__
        said = None if own else reason.get("said")
    if said:
        print(said, file=sys.stderr, flush=True)
    return 0.0 if asked else GRACE


def free_port() -> int:
    """A TCP port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
