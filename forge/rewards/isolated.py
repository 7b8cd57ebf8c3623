"""Functions in processes of their own, with a time limit: the process may hang, crash or leak.

A process shares no memory with the trainer, imports no torch by itself, and ends with the trainer.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from forge.rewards.function import RewardError, RewardFunction, explained

SIZE = 8  # bytes in front of a message
PROGRAM = "from forge.rewards.isolated import serve; serve()"


class Worker:
    """A process that holds the function of an entry."""

    def __init__(self, name: str, entry: Mapping[str, Any], trust: Sequence[str]) -> None:
        self.name, self._start = name, (name, entry, list(trust), sys.path)
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, arguments: Mapping[str, Any]) -> None:
        """Start a call; the process starts with the first call, and after one that failed."""
        if self._process is None:
            self._open()
        try:
            _send(self._out, arguments)
        except OSError:
            raise self._ended() from None

    def result(self, deadline: float, timeout: float) -> Any:
        """The result of the call. deadline: of time.monotonic(). Raises RewardError."""
        data = b""
        while len(data) < SIZE or len(data) < SIZE + int.from_bytes(data[:SIZE], "big"):
            if not self._poll.poll(max(deadline - time.monotonic(), 0.0) * 1000):
                self.close()
                raise too_long(self.name, timeout)
            part = os.read(self._in, 1 << 16)
            if not part:
                raise self._ended()
            data += part
        raised, value = pickle.loads(data[SIZE:])
        if raised:
            raise failed(self.name, value)
        return value

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)
            self._process = None

    def _open(self) -> None:
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._in, select.POLLIN)
        command = [sys.executable, "-c", PROGRAM, str(to_read), str(to_write)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(to_read, to_write),
                env=environment,
            )
        finally:
            os.close(to_read)
            os.close(to_write)
        _send(self._out, self._start)

    def _ended(self) -> RewardError:
        assert self._process is not None
        code = self._process.wait()
        self.close()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return RewardError(self.name, f"its process ended with {how}", "correct the function")


def too_long(name: str, timeout: float) -> RewardError:
    """The error of a call above its time limit."""
    message = f"it took longer than its timeout of {timeout:g} seconds"
    return RewardError(name, message, f"correct the function, or rewards.{name}.timeout=...")


def failed(name: str, reason: str) -> RewardError:
    """The error of a function that raised."""
    return RewardError(name, f"it raised {reason}", "correct the function")


def waited_for(call: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function, and await the result where it is a coroutine."""
    result = call(**arguments)
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Any) -> Any:
    return await result


def _send(file: int, message: Any) -> None:
    data = pickle.dumps(message)
    data = memoryview(len(data).to_bytes(SIZE, "big") + data)
    while data:
        data = data[os.write(file, data) :]


def _receive(file: int) -> Any:
    """The next message. Raises EOFError at the end."""
    with open(file, "rb", closefd=False, buffering=0) as stream:
        return pickle.loads(_exactly(stream, int.from_bytes(_exactly(stream, SIZE), "big")))


def _exactly(stream: Any, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def serve() -> None:
    """Answer calls until the trainer ends; the arguments of the command are two pipes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides when to end
    with suppress(Exception):  # a system other than Linux: the end of the pipe ends the process
        from forge.sandbox.kernel import SET_PDEATHSIG, prctl

        prctl(SET_PDEATHSIG, signal.SIGKILL)
    with suppress(EOFError):
        _serve(*map(int, sys.argv[1:]))


def _serve(to_read: int, to_write: int) -> None:
    name, entry, trust, path = _receive(to_read)
    sys.path[:] = path
    function = None
    while True:
        arguments = _receive(to_read)
        try:
            function = function or RewardFunction(name, entry, trust)
            answer = (False, waited_for(function.call, arguments))
            pickle.dumps(answer)
        except Exception as error:
            answer = (True, explained(error))
        _send(to_write, answer)
