"""Where the ranks of a run meet before there are groups: a store on the main rank's host, and the word that the main rank gives."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

SECONDS = 600.0  # that ranks may start apart
LAST_SECONDS = 60.0  # that a main rank which ends at once waits for the others to hear it
WORD, HEARD, ALL, ALIVE = "forge/word", "forge/heard", "forge/all_have_heard", "forge/alive"


@dataclass(frozen=True, kw_only=True)
class Word:
    """What the others are to do: take part in the run of a directory, building what is trusted, or end with an exit code."""

    run_dir: str = ""
    trust: list[str] = field(default_factory=list)
    code: int | None = None


class Meeting:
    """This rank among RANK and WORLD_SIZE at MASTER_ADDR and MASTER_PORT; torch is imported once it is needed.

    Under torchrun the store is torchrun's own, otherwise the main rank has it.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.word = Word()
        self._told = False
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

    def missing(self, step: int, timeout: timedelta) -> list[int]:
        """The ranks that have not asked this for the step within the timeout; all ask, for each step once."""
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store.set(f"{ALIVE}/of/{rank}", str(step))
        if self.store.add(f"{ALIVE}/at/{step}", 1) == size:
            self.store.set(f"{ALIVE}/all_at/{step}", "")
        try:
            self.store.wait([f"{ALIVE}/all_at/{step}"], timeout)
            return []
        except RuntimeError:
            return [other for other in range(size) if self._last(other) < step]

    def _last(self, rank: int) -> int:
        """The last step for which a rank has asked who is missing."""
        key = f"{ALIVE}/of/{rank}"
        return int(self.store.get(key)) if self.store.check([key]) else -1


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
        raise ValueError(f"{what}; see that all have started, and that that host can be reached: {reason}") from error
