"""One line of a diagnosis, and asking another program with a time limit."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

OK, WARN, MISSING = "ok", "warn", "missing"


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, what was found and, unless all is well, what to do.

    needed: a plain run on the CPU cannot do without it.
    """

    check: str
    status: str
    found: str
    fix: str = ""
    needed: bool = False

    def render(self) -> str:
        head = f"{self.check:<15}{self.status:<9}"
        return f"{head}{self.found}" + (f"\n{'':<{len(head)}}-> {self.fix}" if self.fix else "")


def ok(check: str, found: str) -> Finding:
    return Finding(check, OK, found)


def warn(check: str, found: str, fix: str) -> Finding:
    """It works, but not well, or not for everything."""
    return Finding(check, WARN, found, fix)


def missing(check: str, found: str, fix: str, *, needed: bool = False) -> Finding:
    """It is not there or does not work."""
    return Finding(check, MISSING, found, fix, needed)


def lacking(findings: Sequence[Finding]) -> list[str]:
    """The checks that found missing what a plain run on the CPU needs."""
    return [one.check for one in findings if one.status == MISSING and one.needed]


def render(findings: Sequence[Finding]) -> str:
    last = "a run on the CPU has all that it needs"
    if lack := lacking(findings):
        last = f"missing, and every run needs it: {', '.join(lack)}"
    return "\n".join([*(finding.render() for finding in findings), "", last])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a program printed, and its exit code: None out of time, negative for a signal."""

    code: int | None
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line on stderr, else on stdout."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else ""


def ask(command: Sequence[str], *, seconds: float) -> Answer | None:
    """Run a program for at most so long; None when it cannot be started.

    A program that hangs in a driver ignores SIGKILL: it is left behind, since waiting for it would
    hang too.
    """
    pipe = subprocess.PIPE
    try:
        program = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
        )
    except OSError:
        return None
    try:
        texts = program.communicate(timeout=seconds)
        code = program.returncode
    except subprocess.TimeoutExpired as error:
        texts, code = (error.output or b"", error.stderr or b""), None
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(program.pid, 9)
            program.communicate(timeout=1)
    out, err = (text.decode("utf-8", errors="replace") for text in texts)
    return Answer(code=code, out=out, err=err)
