"""Where the ranks of a run meet before there are groups: a store on the main rank's host, and the
word that the main rank gives.
"""

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

SECONDS = 600.0  # that ranks may start apart
LAST_SECONDS = 60.0  # that a main rank which ends at once waits for the others to hear it
SIGN_SECONDS, POLL_SECONDS = 5.0, 1.0  # between signs of life, and at most between looks at them
LEAVE_SECONDS = 10.0  # that a main rank waits for others to leave a run directory that it removes
WORD, HEARD, ALL, ALIVE, TURN, LEFT = (
    f"forge/{name}" for name in ("word", "heard", "all_have_heard", "alive", "turn", "left")
)


@dataclass(frozen=True, kw_only=True)
class Word:
    """What the others are to do: take part in the run of a directory, building what is trusted, or
    end with an exit code.
    """

    run_dir: str = ""
    trust: list[str] = field(default_factory=list)
    code: int | None = None


class Meeting:
    """This rank among RANK and WORLD_SIZE at MASTER_ADDR and MASTER_PORT; torch is imported once it
    is needed.

    Under torchrun the store is torchrun's own, otherwise the main rank has it.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.word = Word()
        self._told = False
        self._turns = 0
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The store, once all ranks are there. Raises ValueError when they do not come."""
        if self._store is None:
            self._store = _rendezvous(self.seconds)
        return self._store

    def tell(self, word: Word) -> None:
        """The main rank's word, once; before an end it waits until the others have heard it."""
        if self._told:
            return
        self.word, self._told = word, True
        self.store.set(WORD, json.dumps(asdict(word)))
        if word.code is not None:
            with suppress(Exception):  # who has not come by now finds nobody
                self.store.wait([ALL], timedelta(seconds=LAST_SECONDS))

    def hear(self) -> Word:
        """What the main rank says, once it does."""
        self.word = word = Word(**json.loads(self.store.get(WORD)))
        if self.store.add(HEARD, 1) == int(os.environ["WORLD_SIZE"]) - 1:
            self.store.set(ALL, "")
        return word

    def leave(self) -> None:
        """Another rank says that it is done with the run directory."""
        with suppress(Exception):
            if self.store.add(LEFT, 1) == int(os.environ["WORLD_SIZE"]) - 1:
                self.store.set(f"{LEFT}/all", "")

    def alone(self) -> None:
        """The main rank waits until the others have left, some seconds at most."""
        with suppress(Exception):
            self.store.wait([f"{LEFT}/all"], timedelta(seconds=LEAVE_SECONDS))

    def missing(self, step: int, timeout: timedelta) -> list[int]:
        """The ranks that have not asked this for the step within the timeout; all ask, for each
        step once.
        """
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store.set(f"{ALIVE}/of/{rank}", str(step))
        if self.store.add(f"{ALIVE}/at/{step}", 1) == size:
            self.store.set(f"{ALIVE}/all_at/{step}", "")
        try:
            self.store.wait([f"{ALIVE}/all_at/{step}"], timeout)
            return []
        except RuntimeError:
            return [other for other in range(size) if self._last(other) < step]

    @contextmanager
    def main_first(self, patience: timedelta) -> Iterator[None]:
        """The main rank goes through, then the others, and then each waits for all: as long as it
        takes, while who works is alive.

        Raises ConnectionError when no rank has shown a sign of life for `patience`, DistError when
        one has failed.
        """
        self._turns += 1
        turn, rank, size = (
            f"{TURN}/{self._turns}",
            int(os.environ["RANK"]),
            int(os.environ["WORLD_SIZE"]),
        )
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
        if self.store.add(f"{turn}/through", 1) == size:
            self.store.set(f"{turn}/all", "")
        self._pass(turn, "all", patience, range(size))

    @contextmanager
    def _signs_of_life(self, turn: str, every: float) -> Iterator[None]:
        """A thread counts up as long as this rank works."""
        done = threading.Event()

        def show() -> None:
            with suppress(Exception):  # of a store that is gone: whoever waits notices it, too
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
        """Wait until a gate opens. It is looked at again and again: the store warns on the terminal
        of each wait that is in vain.
        """
        signs, heard, longest = (
            -1,
            time.monotonic(),
            min(POLL_SECONDS, patience.total_seconds() / 4),
        )
        pause = longest / 64
        while not self.store.check([f"{turn}/{gate}"]):
            if (now := self.store.add(f"{turn}/signs", 0)) != signs:
                signs, heard = now, time.monotonic()
            elif time.monotonic() - heard > patience.total_seconds():
                silent = [
                    rank for rank in expected if not self.store.check([f"{turn}/through/{rank}"])
                ]
                raise ConnectionError(_silent(silent, patience.total_seconds()))
            time.sleep(pause)
            pause = min(2 * pause, longest)
        if failed := self.store.get(f"{turn}/{gate}").decode():
            from torch.distributed import DistError  # pyright: ignore[reportPrivateImportUsage]

            raise DistError(f"rank {failed} has failed")

    def _last(self, rank: int) -> int:
        """The last step for which a rank has asked who is missing."""
        key = f"{ALIVE}/of/{rank}"
        return int(self.store.get(key)) if self.store.check([key]) else -1


def _silent(ranks: list[int], seconds: float) -> str:
    which = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
    where = ", ".join(f"logs/rank_{rank}.log" for rank in ranks[:8])
    return f"no sign of life from {which} before the first step within parallel.nccl_timeout_sec={seconds:g}; see {where}"


def _rendezvous(seconds: float) -> Store:
    import torch.distributed as dist

    try:
        return next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=seconds))))[0]  # pyright: ignore[reportPrivateImportUsage]
    except RuntimeError as error:
        address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        if "EADDRINUSE" in str(error):
            what = f"MASTER_PORT={port}: another process has this port on {address}"
            raise ValueError(f"{what}; give a free one: MASTER_PORT=<port>") from error
        rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
        what = f"rank {rank} of {size} did not meet the others at MASTER_ADDR={address} MASTER_PORT={port} within {seconds:g} s"
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"{what}; see that all have started, and that that host can be reached: {reason}"
        ) from error
