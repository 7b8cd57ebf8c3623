"""Asking another program, with a time limit that holds even for one that cannot be killed."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a program printed, and its exit code: None when the time was up, negative for a signal."""

    code: int | None
    out: str
    err: str

    @property
    def last_words(self) -> str:
        """The last line of what it said on stderr, else on stdout."""
        lines = [line.strip() for line in (self.err.strip() or self.out.strip()).splitlines()]
        return lines[-1] if lines else ""


def ask(
    command: Sequence[str], *, seconds: float, environ: Mapping[str, str] | None = None
) -> Answer | None:
    """Run a program for at most so long; None when it cannot be started.

    A program that hangs in a driver ignores SIGKILL, and waiting for it would hang here too: it is
    left behind.
    """
    try:
        program = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environ,
            start_new_session=True,
        )
    except OSError:
        return None
    assert program.stdout is not None
    assert program.stderr is not None
    read = {program.stdout: b"", program.stderr: b""}
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector, program.stdout, program.stderr:
        for stream in read:
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                chunk = os.read(key.fd, 1 << 16)
                read[key.fileobj] += chunk  # type: ignore[index]
                if not chunk:
                    selector.unregister(key.fileobj)
    code = _end(program, max(deadline - time.monotonic(), 0))
    out, err = (content.decode("utf-8", errors="replace") for content in read.values())
    return Answer(code=code, out=out, err=err)


def _end(program: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return program.wait(seconds)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, 9)
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(1)
        return None
