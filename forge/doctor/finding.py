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
    """A check, its status, the finding and, unless all is well, the fix.

    needed: a plain run on the CPU cannot do without the checked part.
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
    """A finding: works, but not well, or not for everything."""
    return Finding(check, WARN, found, fix)


def missing(check: str, found: str, fix: str, *, needed: bool = False) -> Finding:
    """A finding: absent, or not working."""
    return Finding(check, MISSING, found, fix, needed)


def lacking(findings: Sequence[Finding]) -> list[str]:
    """Names of missing checks needed by a plain run on the CPU."""
    return [finding.check for finding in findings if finding.status == MISSING and finding.needed]


def render_findings(findings: Sequence[Finding]) -> str:
    last = "a run on the CPU has all that it needs"
    if lack := lacking(findings):
        last = f"missing, and every run needs it: {', '.join(lack)}"
    return "\n".join([*(finding.render() for finding in findings), "", last])


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The output of a program, and its exit code: None out of time, negative for a signal."""

    code: int | None
    out: str
    err: str

    @property
    def last_line(self) -> str:
        """The last line on stderr, else on stdout."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return lines[-1].strip() if lines else ""


def run_program(command: Sequence[str], *, seconds: float) -> Answer | None:
    """Run a program with a time limit in seconds; None when the program cannot be started.

    A program hanging in a driver ignores SIGKILL and is left behind, since waiting would hang too.
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
