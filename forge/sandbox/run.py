"""The side of the sandbox that is trusted: starts it, reads its output up to a limit, ends it."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

MIB = 2**20
GRACE = 5.0  # seconds beyond the time limit until the supervisor itself is killed
CHUNK = 65_536
INSIDE = Path(__file__).with_name("inside.py")
BASE_PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
PASSED, FAILED, TIMEOUT, OUTPUT = "passed", "failed", "timeout", "output"


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """SandboxLimits of a program.

    seconds: of wall time, and of CPU time a process. memory: bytes of address space a process; so
    all of them have `memory * processes`. processes: threads count. file_size: bytes of a file, and
    of the whole folder where it can be a file system of its own. output: bytes of stdout and stderr
    together.
    """

    seconds: float = 10.0
    memory: int = 1024 * MIB
    processes: int = 8
    file_size: int = 16 * MIB
    output: int = MIB


@dataclass(frozen=True, kw_only=True)
class ProgramResult:
    """How a program ended. status: passed (exit code 0), failed, timeout or output (too much).

    code: the exit code, minus the signal's number for a signal, None where it was stopped.
    not_isolated: what this system gives no means to isolate; empty for a full sandbox.
    """

    status: str
    code: int | None
    stdout: str
    stderr: str
    seconds: float
    not_isolated: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return self.status == PASSED


def run_python(
    program: str,
    *,
    stdin: str = "",
    limits: SandboxLimits | None = None,
    without: Sequence[str] = (),
) -> ProgramResult:
    """Run a Python program, with the standard library alone, in an empty folder.

    without: means not to be used, of namespaces, landlock and seccomp: to see what is left where a
    system lacks them. Raises OSError where no process can be started at all.
    """
    limits = limits or SandboxLimits()
    folder = Path(tempfile.mkdtemp(prefix="forge-sandbox-"))
    try:
        (folder / "work").mkdir()
        return _run(program, stdin, limits, tuple(without), folder / "work")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(
    program: str, stdin: str, limits: SandboxLimits, without: tuple[str, ...], folder: Path
) -> ProgramResult:
    reports, report = os.pipe()
    order = _order(program, stdin, limits, without, folder) | {"report": report}
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            [BASE_PYTHON, "-I", "-S", str(INSIDE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(report,),
            env={},
            cwd=folder,
            start_new_session=True,
        )
    except OSError:
        os.close(reports)
        raise
    finally:
        os.close(report)
    with process:
        assert process.stdin is not None
        _send(process.stdin, json.dumps(order).encode())
        outputs, too_much = _read(process, limits)
        if too_much:
            process.stdin.close()  # asks the supervisor to end the program
        left = 0 if too_much else started + limits.seconds - time.monotonic()
        _end(process, left + GRACE)
    with open(reports, "rb") as stream:
        facts = {k: v for line in stream for k, v in json.loads(line).items()}
    return _ran(facts, outputs, too_much=too_much, seconds=time.monotonic() - started)


def _order(
    program: str, stdin: str, limits: SandboxLimits, without: tuple[str, ...], folder: Path
) -> dict[str, Any]:
    """The program and its limits, as the process inside the sandbox reads them."""
    return asdict(limits) | {
        "program": program,
        "stdin": stdin,
        "without": without,
        "folder": str(folder),
        "python": BASE_PYTHON,
        "prefix": sys.base_prefix,
    }


def _send(stream: IO[bytes], text: bytes) -> None:
    stream.write(len(text).to_bytes(8, "big") + text)
    stream.flush()


def _ran(
    facts: dict[str, Any], outputs: list[bytes], *, too_much: bool, seconds: float
) -> ProgramResult:
    """How a program ended, by what the supervisor has told."""
    if "failure" in facts:
        raise OSError(f"the sandbox cannot start: {facts['failure']}")
    code, stopped = facts.get("code"), facts.get("timeout", "code" not in facts)
    status = OUTPUT if too_much else TIMEOUT if stopped else FAILED if code else PASSED
    return ProgramResult(
        status=status,
        code=None if status in (OUTPUT, TIMEOUT) else code,
        stdout=outputs[0].decode(errors="replace"),
        stderr=outputs[1].decode(errors="replace"),
        seconds=seconds,
        not_isolated=tuple(facts.get("not_isolated", ("everything",))),
    )


def _read(process: subprocess.Popen[bytes], limits: SandboxLimits) -> tuple[list[bytes], bool]:
    """Stdout and stderr up to the limit, until the end; whether there was more."""
    assert process.stdout is not None
    assert process.stderr is not None
    parts: list[list[bytes]] = [[], []]
    left, deadline = limits.output, time.monotonic() + limits.seconds + GRACE
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, 0)
        selector.register(process.stderr, selectors.EVENT_READ, 1)
        while selector.get_map() and (wait := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(wait):
                data = os.read(key.fd, CHUNK)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                parts[key.data].append(data[: max(left, 0)])
                left -= len(data)
                if left < 0:
                    return [b"".join(part) for part in parts], True
    return [b"".join(part) for part in parts], False


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for the supervisor, which ends the program; kill it after this time."""
    try:
        process.wait(max(seconds, 0.0))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
