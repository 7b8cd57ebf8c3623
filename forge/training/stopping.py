"""Reasons to stop before the last step: time, a target, no improvement, a signal."""

from __future__ import annotations

import math
import os
import signal
import socket
import threading
import time
from typing import Any

from forge.config.eval import HIGHER_IS_BETTER, Eval
from forge.launch.local.processes import stop_signals
from forge.launch.slurm.task import Noted
from forge.parallel.ranks import Ranks
from forge.training.callback import Callback
from forge.training.loop import Loop


class TimeLimit:
    """A wish to stop after `minutes` of training; evaluation and checkpoints do not count. What the
    run trained before it went on does.
    """

    def __init__(self, minutes: float) -> None:
        self.limit = minutes * 60

    def wanted(self, loop: Loop) -> int:
        """Whether the time is over."""
        return int(loop.seconds_before + loop.training_seconds() >= self.limit)

    def granted(self, loop: Loop, number: int) -> None:
        """It is over on some rank."""
        loop.end("max_time")


class EarlyStopping(Callback):
    """Stops once the metric reaches its target, or has not improved by min_delta for `patience`
    evaluations.

    The evaluations of every interval count, that of the end does not: a run that goes on from there
    never had it.
    """

    def __init__(self, section: Eval) -> None:
        self.section = section
        self.best: float | None = None
        self.waited = 0

    def on_evaluation(self, loop: Loop, metrics: dict[str, float]) -> None:
        if loop.state.step % self.section.interval:
            return
        section, value = self.section, metrics[self.section.metric]
        sign = 1 if section.metric in HIGHER_IS_BETTER else -1
        if section.target is not None and sign * value >= sign * section.target:
            loop.end("target")
        if not math.isnan(value) and (
            self.best is None or sign * (value - self.best) > section.min_delta
        ):
            self.best, self.waited = value, 0
        else:
            self.waited += 1
        if section.patience and self.waited >= section.patience:
            loop.end("patience")

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best, self.waited = state["best"], state["waited"]


class Signals(Callback):
    """SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2: finish the step, save, end. A later one, or a
    stop that takes too long, ends at once.

    The first second is one signal: what is sent to a process group reaches a rank directly and
    again through its launcher. All ranks stop after the same step, whichever of them was told, and
    when. A rank that waits for one that is gone runs no Python; so a thread of its own watches the
    clock, and hears of further signals by what Python writes to a file as each arrives.
    """

    SAME_SECONDS = 1.0

    def __init__(self, timeout: float, ranks: Ranks | None = None, *, saves: bool = True) -> None:
        """timeout: seconds for a stop. saves: whether the run saves when it ends, for what is said."""
        self.ranks = ranks or Ranks()
        self.timeout, self.saves = timeout, saves
        self.received: int | None = None
        self.previous: dict[int, Any] = {}
        self.previous_file = -1
        self.arrivals: tuple[socket.socket, socket.socket] | None = None
        self.watching: threading.Thread | None = None

    def on_start(self, loop: Loop) -> None:
        if threading.current_thread() is threading.main_thread():
            self.arrivals = hear, tell = socket.socketpair()
            tell.setblocking(False)
            self.previous_file = signal.set_wakeup_fd(tell.fileno(), warn_on_full_buffer=False)
            self.watching = threading.Thread(target=self._watch, args=(hear,), daemon=True)
            self.watching.start()
            self.previous = {
                number: signal.signal(number, self._handle) for number in stop_signals()
            }
            for number, before in self.previous.items():
                if isinstance(before, Noted) and before.number is not None:
                    signal.raise_signal(number)

    def wanted(self, loop: Loop) -> int:
        """The signal that has come to this rank."""
        return 0 if loop.interrupted else self.received or 0

    def interrupted(self, loop: Loop) -> bool:
        """Whether a signal has come to any rank; the loop is told. All ranks ask at the same point."""
        if not loop.interrupted and (number := self.ranks.largest(self.received or 0)[0]):
            self.granted(loop, number)
        return loop.interrupted

    def granted(self, loop: Loop, number: int) -> None:
        """A signal has come to some rank: the run ends after this step."""
        if not loop.interrupted:
            name = signal.Signals(number).name
            if self.ranks.main and self.received is None:
                _say(
                    f"\n{name} at another rank: {'saving' if self.saves else 'ending'} after this step\n"
                )
            loop.interrupt(name)

    def close(self) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        if self.arrivals is not None:
            signal.set_wakeup_fd(self.previous_file)
            self.arrivals[1].shutdown(
                socket.SHUT_RDWR
            )  # ends the thread; closing it does not while a loader process has it too
            self.arrivals[1].close()
        if self.watching is not None:
            # it refers to the ranks: one that frees their process groups while Python ends aborts
            self.watching.join()

    def _handle(self, number: int, frame: Any) -> None:
        self.received = self.received or number

    def _watch(self, arrivals: socket.socket) -> None:
        """Say that the first signal has come; end the process at a later one, and when the time for
        a stop is over.
        """
        first, began = 0, 0.0
        with arrivals:
            while True:
                arrivals.settimeout(
                    max(began + self.timeout - time.monotonic(), 0.001) if first else None
                )
                try:
                    received = arrivals.recv(1)
                except TimeoutError:
                    _say(
                        f"\nthe stop took longer than train.shutdown_timeout_sec={self.timeout:g}; ended where it was\n"
                    )
                    os._exit(128 + first)
                if not received:
                    return
                number = received[0]
                if number not in self.previous:
                    continue
                if not first:
                    first, began = number, time.monotonic()
                    if self.ranks.main:
                        then = "saving" if self.saves else "ending; nothing is saved"
                        _say(
                            f"\n{signal.Signals(number).name}: finishing this step, then {then}; once more ends at once\n"
                        )
                elif time.monotonic() - began > self.SAME_SECONDS:
                    os._exit(128 + number)


def _say(text: str) -> None:
    """To the terminal, past Python's buffers, which a signal handler may find in use."""
    os.write(2, text.encode())
