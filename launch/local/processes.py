"""Ranks on this machine: start them, pass signals on, wait for all, leave none after."""

from __future__ import annotations

import os
import random
import signal
import site
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Protocol

from forge.launch.local import threads
from forge.rundir import outcome
from forge.rundir.outcome import ERROR
from forge.rundir.process_folders import remove_left
from forge.rundir.wall_clock import ledger, starts

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
GRACE = 5.0  # seconds for ranks to end after the failure of a rank
PARENT = "FORGE_PARENT"  # variable with a worker's starting process


def search_path() -> str:
    """PYTHONPATH of a worker: this process's import folders, without Python's own folders."""
    library = [os.path.dirname(os.__file__), *site.getsitepackages(), site.getusersitepackages()]
    prefixes = tuple(os.path.join(path, "") for path in library)
    added = [os.path.abspath(path) for path in sys.path if path and not path.endswith(".zip")]
    importable = [path for path in added if not os.path.join(path, "").startswith(prefixes)]
    return os.pathsep.join(dict.fromkeys(importable))


def stop_signals() -> list[int]:
    """The signals stopping a run: no ignored signal, such as SIGHUP under nohup, but SIGINT always:
    a shell ignores SIGINT for background commands of a script.
    """
    return [
        number
        for number in STOPPING
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGINT
    ]


@contextmanager
def signals_taken(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle the signals stopping a run, in the main thread: Python takes signals nowhere else."""
    main = threading.current_thread() is threading.main_thread()
    previous_handlers = {
        number: signal.signal(number, handler) for number in stop_signals() if main
    }
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)


class Ranks:
    """The ranks of a run directory, as separate processes.

    When a rank fails, the others have GRACE seconds to end before the kill. The output of a rank
    goes to its log; the output of the main rank goes to the terminal, or to `output`.
    """

    def __init__(
        self,
        run_dir: Path,
        ranks: int = 1,
        *,
        module: str = "forge.worker",
        output: Path | None = None,
        environ: Mapping[str, str] | None = None,
        at_a_time: int = 1,
        trust: Sequence[str] = (),
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        apart: bool = False,
        cause: str = starts.COMMAND,
    ) -> None:
        """module: the module run by a rank, with the run directory and `trust` as arguments.
        environ: further variables. at_a_time: number of similar runs sharing the cores. say: takes
        the cause of a failure, unless printed by the main rank. apart: interrupts of this process,
        such as Ctrl-C in its terminal, do not reach the ranks. cause: of this start, for the
        ledger.
        """
        self.run_dir, self.say = run_dir, say
        self.passed_on: set[int] = set()
        self._first, self._deadline, self._noted = 0, float("inf"), False
        self._workers: list[subprocess.Popen[bytes]] = []
        self.killed: list[int] = []  # ranks ended by a signal, as the first failure was seen
        (run_dir / ERROR).unlink(missing_ok=True)
        # A blocked interrupt is inherited: a rank takes it only once Python has started.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            added = {**(environ or {}), starts.LAUNCHED: f"{time.time()} {cause}"}
            for rank, variables in enumerate(_environments(ranks, added, at_a_time)):
                command = [sys.executable, "-m", module, str(run_dir), *trust]
                log = rank_log(run_dir, rank) if rank else output
                self._workers.append(_started(command, variables, log, apart))
        except BaseException:
            self.kill()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)

    @property
    def pid(self) -> int:
        return self._workers[0].pid

    def poll(self) -> int | None:
        """The exit code of the first failed rank, or 0, once all ranks have ended."""
        codes = [worker.poll() for worker in self._workers]
        failed = [rank for rank, code in enumerate(codes) if code]
        if failed and self._first == 0:
            self._first = codes[failed[0]] or 0
            # SIGABRT is torch's, at a rank that waited in vain for another.
            ignored = {-number for number in (*self.passed_on, signal.SIGABRT)}
            self.killed = [r for r in failed if (codes[r] or 0) < 0 and codes[r] not in ignored]
            self._report(failed[0], self._first)
        if None not in codes:
            remove_left()  # files of a killed rank
            self._note_exit()
            return 128 - self._first if self._first < 0 else self._first
        if time.monotonic() > self._deadline:
            for worker in self._workers:
                worker.kill()
        return None

    def _note_exit(self) -> None:
        if not self._noted and (self.run_dir / ledger.RECORD).exists():
            self._noted = True
            starts.note_exit(self.run_dir, self._first)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.02)
        return code

    def _report(self, rank: int, code: int) -> None:
        """Report the cause of the end, unless reported by the main rank, and give the other ranks
        time to end.
        """
        ranks, asked = len(self._workers), -code in self.passed_on
        self._deadline = time.monotonic() + (0.0 if asked else GRACE)
        text = outcome.killed_by(self.run_dir, -code, rank=rank, ranks=ranks) if code < 0 else ""
        if text and ranks > 1 and not asked:
            name = signal.Signals(-code).name
            with suppress(OSError):
                outcome.record_failure(
                    self.run_dir, rank=rank, kind=name, message=text, said=text, code=128 - code
                )
        if reason := outcome.failure(self.run_dir):
            by_main_rank = (
                reason.get("rank") == 0 and reason.get("type") not in signal.Signals.__members__
            )
            text = "" if by_main_rank else reason.get("said")
        if text:
            self.say(text)

    def pass_on(self, number: int) -> None:
        self.passed_on.add(number)
        for worker in self._workers:
            worker.send_signal(number)

    def kill(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()


class Attended(Protocol):
    """Ranks, started once or again and again."""

    def wait(self) -> int: ...

    def pass_on(self, number: int) -> None: ...

    def kill(self) -> None: ...


def start(
    run_dir: Path,
    ranks: int = 1,
    *,
    module: str = "forge.worker",
    trust: Sequence[str] = (),
    begun: Callable[[], Attended] | None = None,
) -> int:
    """Run the ranks of a run directory, and pass signals on; the exit code as in `Ranks.poll`.

    begun: starts the ranks, where these are more than `Ranks`.
    """
    running = begun() if begun else Ranks(run_dir, ranks, module=module, trust=trust)
    try:
        with signals_taken(lambda number, _: running.pass_on(number)):
            return running.wait()
    finally:
        running.kill()


def _environments(ranks: int, added: Mapping[str, str], at_a_time: int) -> list[dict[str, str]]:
    """The variables of each rank, without variables of a torchrun around this process."""
    inherited = os.environ.items()
    common = {name: value for name, value in inherited if not name.startswith("TORCHELASTIC_")}
    common |= added
    common |= threads.shared(ranks * at_a_time, common)
    common |= {"PYTHONPATH": search_path(), PARENT: str(os.getpid()), "WORLD_SIZE": str(ranks)}
    if ranks > 1:
        common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def _started(
    command: Sequence[str], environ: dict[str, str], file: Path | None, apart: bool
) -> subprocess.Popen[bytes]:
    group = 0 if apart else None
    start = partial(subprocess.Popen[bytes], command, env=environ, process_group=group)
    if file is None:
        return start()
    nothing = subprocess.DEVNULL
    try:
        file.parent.mkdir(exist_ok=True)
        with file.open("ab") as log:
            return start(stdin=nothing, stdout=log, stderr=log)
    except OSError:  # the rank itself warns of it
        return start(stdin=nothing, stdout=nothing, stderr=nothing)


def rank_log(run_dir: Path, rank: int) -> Path:
    return run_dir / "logs" / f"rank_{rank}.log"


def free_port() -> int:
    """A free TCP port, below the ports given to connections by Linux: such a port could be taken
    while the main rank, the later listener, still imports torch.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
