"""Signals that stop a run: finish the step, save, end."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from typing import Any

from forge.launch.local.processes import stop_signals
from forge.launch.slurm.task import Noted
from forge.parallel.ranks import Ranks
from forge.training.callback import Callback, LoopView


class Signals(Callback):
    """Ends the run on a signal, on all ranks after the same step.

    SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2. A second signal, or a stop longer than `timeout`
    seconds, ends the process at once. Signals within a second count as one: a signal to a process
    group reaches a rank directly and again through the launcher. A rank waiting for a lost rank
    runs no Python. Therefore a thread watches the clock, and reads signals from a socket written by
    Python.
    """

    SAME_SECONDS = 1.0

    def __init__(self, timeout: float, ranks: Ranks | None = None, *, saves: bool = True) -> None:
        """saves: whether the run saves at its end, for the message."""
        self.timeout, self.ranks, self.saves = timeout, ranks or Ranks(), saves
        self.received: int | None = None
        self.previous: dict[int, Any] = {}
        self.previous_file = -1
        self.writer: socket.socket | None = None
        self.watcher: threading.Thread | None = None

    def on_start(self, loop: LoopView) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)
        self.previous_file = signal.set_wakeup_fd(self.writer.fileno(), warn_on_full_buffer=False)
        self.watcher = threading.Thread(target=self._watch, args=(reader,), daemon=True)
        self.watcher.start()
        self.previous = {number: signal.signal(number, self._handle) for number in stop_signals()}
        for number, earlier in self.previous.items():
            if isinstance(earlier, Noted) and earlier.number is not None:
                signal.raise_signal(number)

    def requested(self, loop: LoopView) -> int:
        return 0 if loop.interrupted else self.received or 0

    def interrupted(self, loop: LoopView) -> bool:
        """Whether any rank has received a signal; all ranks ask at the same point."""
        if not loop.interrupted and (number := self.ranks.largest(self.received or 0)[0]):
            self.act(loop, number)
        return loop.interrupted

    def act(self, loop: LoopView, number: int) -> None:
        if not loop.interrupted:
            name = signal.Signals(number).name
            if self.ranks.main and self.received is None:
                then = "saving" if self.saves else "ending"
                _say(f"{name} at another rank: {then} after this step")
            loop.interrupt(name)

    def close(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if self.writer is not None:
            signal.set_wakeup_fd(self.previous_file)
            # Ends the thread; closing alone fails while a loader process has the socket too.
            self.writer.shutdown(socket.SHUT_RDWR)
            self.writer.close()
        if self.watcher is not None:
            # The thread refers to the ranks; freeing process groups as Python ends would abort.
            self.watcher.join()

    def _handle(self, number: int, frame: Any) -> None:
        self.received = self.received or number

    def _watch(self, reader: socket.socket) -> None:
        """Report the first signal; end the process at a later one, or after the time for a stop."""
        first, began = 0, 0.0
        with reader:
            while True:
                remaining = max(began + self.timeout - time.monotonic(), 0.001)
                reader.settimeout(remaining if first else None)
                try:
                    received = reader.recv(1)
                except TimeoutError:
                    limit = f"train.shutdown_timeout_sec={self.timeout:g}"
                    _say(f"the stop took longer than {limit}; ended where it was")
                    # Not sys.exit: the main thread may be inside a collective.
                    os._exit(128 + first)
                if not received:
                    return
                number = received[0]
                if number not in self.previous:
                    continue
                if not first:
                    first, began = number, time.monotonic()
                    if self.ranks.main:
                        name = signal.Signals(number).name
                        then = "saving" if self.saves else "ending; nothing is saved"
                        _say(f"{name}: finishing this step, then {then}; once more ends at once")
                elif time.monotonic() - began > self.SAME_SECONDS:
                    os._exit(128 + number)


def _say(text: str) -> None:
    """Write to the terminal, past Python's buffers, perhaps in use as a signal comes."""
    os.write(2, f"\n{text}\n".encode())
