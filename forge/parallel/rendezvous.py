"""Where the ranks of a run find each other: a store on the main rank's host, before any group."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

SECONDS = 600.0  # between the starts of the first and the last rank, at most
END_SECONDS = 60.0  # of a main rank that ends at once, until others have received the end
SIGN_SECONDS, POLL_SECONDS = 5.0, 1.0  # between signs of life, and at most between two polls
LEAVE_SECONDS = 10.0  # of a main rank, until others have left a run directory to be removed
COMMAND, RECEIVED, ALL, ALIVE, TURN, LEFT = (
    f"forge/{name}" for name in ("command", "received", "all_received", "alive", "turn", "left")
)


@dataclass(frozen=True, kw_only=True)
class Command:
    """The command for other ranks: work on the run of a directory, or end with an exit code.

    trust: prefixes of allowed targets. imports: directories for their import.
    """

    run_dir: str = ""
    trust: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    code: int | None = None


class Rendezvous:
    """This rank among the others, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

    Under torchrun the store is torchrun's own, otherwise the main rank has the store. Imports torch
    at the first use of the store.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.command = Command()
        self._sent = False
        self._turns = 0
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store, once all ranks are present. Raises ValueError when ranks do not come."""
        if self._store is None:
            self._store = _connect(self.seconds)
        return self._store

    def send(self, command: Command) -> None:
        """Send a command from the main rank to all others; only the first command counts.

        A command with an exit code returns when all ranks have received the command.
        """
        if self._sent:
            return
        self.command, self._sent = command, True
        self.store.set(COMMAND, json.dumps(asdict(command)))
        if command.code is not None:
            with suppress(Exception):  # a rank that has not come by now finds nobody
                self.store.wait([ALL], timedelta(seconds=END_SECONDS))

    def receive(self) -> Command:
        """The main rank's command, once sent."""
        self.command = Command(**json.loads(self.store.get(COMMAND)))
        if self.store.add(RECEIVED, 1) == _world_size() - 1:
            self.store.set(ALL, "")
        return self.command

    def leave(self) -> None:
        with suppress(Exception):
            if self.store.add(LEFT, 1) == _world_size() - 1:
                self.store.set(f"{LEFT}/all", "")

    def wait_until_left(self) -> None:
        """The main rank waits, LEAVE_SECONDS at most, until all others have left."""
        with suppress(Exception):
            self.store.wait([f"{LEFT}/all"], timedelta(seconds=LEAVE_SECONDS))

    def missing(self, step: int, timeout: timedelta) -> list[int]:
        """The ranks that do not call `missing` within the timeout. All ranks call, once a step."""
        self.store.set(f"{ALIVE}/of/{_rank()}", str(step))
        if self.store.add(f"{ALIVE}/at/{step}", 1) == _world_size():
            self.store.set(f"{ALIVE}/all_at/{step}", "")
        try:
            self.store.wait([f"{ALIVE}/all_at/{step}"], timeout)
            return []
        except RuntimeError:
            return [other for other in range(_world_size()) if self._last_step(other) < step]

    @contextmanager
    def main_first(self, patience: timedelta) -> Iterator[None]:
        """Let the main rank go through, then the others; each then waits until all are through.

        Any time passes while working ranks are alive. Raises ConnectionError after `patience`
        without a sign of life, DistError when a rank has failed.
        """
        self._turns += 1
        turn, rank = f"{TURN}/{self._turns}", _rank()
        if rank:
            self._pass(turn, "main", patience, [0])
        try:
            with self._signs_of_life(turn, min(SIGN_SECONDS, patience.total_seconds() / 4)):
                yield
        except BaseException:
            with suppress(Exception):
                self.store.set(f"{turn}/{'all' if rank else 'main'}", str(rank))
            raise
        self.store.set(f"{turn}/through/{rank}", "")
        if rank == 0:
            self.store.set(f"{turn}/main", "")
        if self.store.add(f"{turn}/through", 1) == _world_size():
            self.store.set(f"{turn}/all", "")
        self._pass(turn, "all", patience, range(_world_size()))

    @contextmanager
    def _signs_of_life(self, turn: str, every: float) -> Iterator[None]:
        done = threading.Event()

        def show() -> None:
            with suppress(Exception):  # the store is gone: the ranks that wait notice it too
                self.store.add(f"{turn}/signs", 1)
                while not done.wait(every):
                    self.store.add(f"{turn}/signs", 1)

        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _pass(self, turn: str, gate: str, patience: timedelta, expected: Iterable[int]) -> None:
        """Poll until a gate opens: store.wait would warn on the terminal at each timeout."""
        seconds = patience.total_seconds()
        signs, last_sign, longest = -1, time.monotonic(), min(POLL_SECONDS, seconds / 4)
        pause = longest / 64
        while not self.store.check([f"{turn}/{gate}"]):
            if (now := self.store.add(f"{turn}/signs", 0)) != signs:
                signs, last_sign = now, time.monotonic()
            elif time.monotonic() - last_sign > seconds:
                silent = [
                    rank for rank in expected if not self.store.check([f"{turn}/through/{rank}"])
                ]
                raise ConnectionError(no_sign_of_life(silent, "before the first step", seconds))
            time.sleep(pause)
            pause = min(2 * pause, longest)
        if failed := self.store.get(f"{turn}/{gate}").decode():
            from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]

            raise DistError(f"rank {failed} has failed")

    def _last_step(self, rank: int) -> int:
        key = f"{ALIVE}/of/{rank}"
        return int(self.store.get(key)) if self.store.check([key]) else -1


def no_sign_of_life(ranks: list[int], when: str, seconds: float) -> str:
    which = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    logs = ", ".join(f"logs/rank_{rank}.log" for rank in ranks[:8])
    within = f"within parallel.nccl_timeout_sec={seconds:g}"
    return f"no sign of life from {which} {when} {within}; see {logs}"


def _rank() -> int:
    return int(os.environ["RANK"])


def _world_size() -> int:
    return int(os.environ["WORLD_SIZE"])


def _of_this_restart(store: Store) -> Store:
    """A part of torchrun's store for this restart: the store has the keys of earlier ones too."""
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or restarts == "0":
        return store
    import torch.distributed as dist

    prefix = f"forge/restart_{restarts}"
    return dist.PrefixStore(prefix, store)  # pyright: ignore[reportPrivateImportUsage]


def _connect(seconds: float) -> Store:
    import torch.distributed as dist

    try:
        stores = dist.rendezvous(  # pyright: ignore[reportPrivateImportUsage]
            "env://", timeout=timedelta(seconds=seconds)
        )
        return _of_this_restart(next(iter(stores))[0])
    except RuntimeError as error:
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        if "EADDRINUSE" in str(error):
            message = f"MASTER_PORT={port}: another process has this port on {address}"
            raise ValueError(f"{message}; give a free one: MASTER_PORT=<port>") from error
        where = f"MASTER_ADDR={address} MASTER_PORT={port} within {seconds:g} s"
        message = f"rank {_rank()} of {_world_size()} did not meet the others at {where}"
        reason = str(error).partition("\n")[0]
        hint = "see that all have started, and that that host can be reached"
        raise ValueError(f"{message}; {hint}: {reason}") from error
