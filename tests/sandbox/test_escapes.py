"""Escapes from the sandbox, tried and contained: with all means of the system, and, where they
still hold, without namespaces (as in a container that forbids them).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from forge.sandbox import ProgramResult, SandboxLimits, run_python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is of Linux")
MIB = 2**20
LIMITS = SandboxLimits(seconds=5.0, memory=256 * MIB, processes=6, file_size=MIB, output=64 * 1024)
FULL, NO_NAMESPACES = (), ("namespaces",)


@dataclass(frozen=True)
class Target:
    """What the programs try to reach: this process, a secret file, a port, and a free path."""

    pid: int
    secret: Path
    port: int
    outside: Path


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A victim beside the sandbox: a process with a secret in its environment."""
    folder = tmp_path_factory.mktemp("outside")
    secret = folder / "secret"
    secret.write_text("the secret of a file")
    secret.chmod(0o644)
    server = socket.create_server(("127.0.0.1", 0))
    victim = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, "TOKEN": "the secret of the environment"},
    )
    with server:
        yield Target(victim.pid, secret, server.getsockname()[1], folder / "written")
    assert victim.poll() is None, "a signal has reached a process outside"
    victim.kill()
    victim.wait()


def tried(program: str, target: Target, without: tuple[str, ...] = FULL) -> ProgramResult:
    values = {"PID": target.pid, "SECRET": str(target.secret), "PORT": target.port}
    values |= {"OUTSIDE": str(target.outside)}
    head = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return run_python(head + textwrap.dedent(program), limits=LIMITS, without=without)


CONTAINED = {  # prints ESCAPED where it gets out, and "contained" where it is refused
    "reads a file of the parent": """
        try:
            print("ESCAPED", open(SECRET).read())
        except OSError as error:
            print("contained", error)
    """,
    "writes outside of its folder": """
        import os
        for place in (OUTSIDE, "/tmp/forge-escape", "/usr/lib/forge-escape", "/forge-escape"):
            try:
                open(place, "w").write("here")
                print("ESCAPED", place)
            except OSError as error:
                print("contained", error)
    """,
    "reads the parent's environment": """
        import os
        assert not {"TOKEN", "USER", "PYTHONPATH"} & set(os.environ)
        for pid in (PID, os.getppid(), "self"):
            try:
                print("ESCAPED", open(f"/proc/{pid}/environ").read())
            except OSError as error:
                print("contained", error)
    """,
    "walks to the root of another process": """
        import os
        for path in (f"/proc/{PID}/root/", f"/proc/{PID}/cwd", "/proc/1/root", "/proc/self/root"):
            try:
                print("ESCAPED", os.listdir(path))
            except OSError as error:
                print("contained", error)
    """,
    "connects to a local port": """
        import socket
        try:
            socket.create_connection(("127.0.0.1", PORT), 1)
            print("ESCAPED")
        except OSError as error:
            print("contained", error)
    """,
    "sends a datagram": """
        import socket
        try:
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.1", 53))
            print("ESCAPED")
        except OSError as error:
            print("contained", error)
    """,
    "kills processes outside": """
        import os, signal
        for number in (0, signal.SIGCONT):
            try:
                os.kill(PID, number)
                print("ESCAPED", number)
            except OSError as error:
                print("contained", error)
    """,
    "attaches as a debugger": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        for pid in (PID, os.getppid()):
            result = libc.ptrace(16, pid, 0, 0)
            print("ESCAPED" if result == 0 else "contained", os.strerror(ctypes.get_errno()))
    """,
    "becomes root, mounts, and leaves its root": """
        import ctypes, os
        libc = ctypes.CDLL(None, use_errno=True)
        user = os.getuid()
        for name, call in {
            "setuid": lambda: libc.setuid(0) if user else -1,
            "mount": lambda: libc.mount(b"none", b".", b"tmpfs", 0, None),
            "chroot": lambda: libc.chroot(b"."),
            "unshare": lambda: libc.unshare(0x10000000),
            "module": lambda: libc.syscall(313, 0, b"", 0),
        }.items():
            print("ESCAPED" if call() == 0 else "contained", name)
    """,
    "reads standard input and inherited files": """
        import os, sys
        assert sys.stdin.read() == ""
        left = []
        for fd in range(3, 64):
            try:
                left.append(os.fstat(fd))
            except OSError:
                pass
        print("ESCAPED" if left else "contained", left)
    """,
}


@pytest.mark.parametrize("without", [FULL, NO_NAMESPACES], ids=["full", "no namespaces"])
@pytest.mark.parametrize("name", CONTAINED)
def test_a_try_is_refused(name: str, without: tuple[str, ...], target: Target) -> None:
    ran = tried(CONTAINED[name], target, without)
    if "files" in ran.not_isolated or "network" in ran.not_isolated:
        pytest.skip(f"this system cannot isolate {', '.join(ran.not_isolated)}")
    if "signals" in ran.not_isolated and name == "kills processes outside":
        pytest.skip("this system cannot isolate signals")
    assert (ran.status, ran.stderr) == ("passed", "")
    assert "contained" in ran.stdout
    assert "ESCAPED" not in ran.stdout
    assert not target.outside.exists()


def test_the_tries_do_get_out_of_no_sandbox(target: Target) -> None:
    """The same programs where no means is used: else the tests above would show nothing."""
    names = ("reads a file of the parent", "reads the parent's environment")
    for name in (*names, "connects to a local port", "kills processes outside"):
        ran = tried(CONTAINED[name], target, ("namespaces", "landlock", "seccomp"))
        assert "ESCAPED" in ran.stdout, name


def survivors(word: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in text:
                found.append(int(folder.name))
    return found


@pytest.mark.parametrize("without", [FULL, NO_NAMESPACES], ids=["full", "no namespaces"])
def test_a_daemon_ends_with_its_program(without: tuple[str, ...], target: Target) -> None:
    program = """
        import os, sys
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(77.125)"])
            os._exit(0)
        import time; time.sleep(0.5)
        print("started")
    """
    ran = tried(program, target, without)
    assert (ran.status, ran.stdout) == ("passed", "started\n")
    assert survivors("sleep(77.125)") == []


def test_a_fork_bomb_is_contained(target: Target) -> None:
    ran = tried("import os\nwhile True:\n    os.fork()", target)
    if "fork" in ran.not_isolated:
        pytest.skip("the processes of root are not counted")
    assert ran.status == "failed"
    assert "BlockingIOError" in ran.stderr
    assert ran.seconds < LIMITS.seconds


def test_memory_has_a_limit(target: Target) -> None:
    ran = tried("x = bytearray(300 * 2**20)", target)
    assert ran.status == "failed"
    assert "MemoryError" in ran.stderr
    assert tried("x = bytearray(100 * 2**20)", target).passed


def test_the_disk_has_a_limit(target: Target) -> None:
    """A file, and where the folder is a file system of its own, many files together."""
    big = tried("open('big', 'wb').write(bytes(2 * 2**20))", target, NO_NAMESPACES)
    assert big.code == -signal.SIGXFSZ or "File too large" in big.stderr
    many = "for i in range(20):\n    open(str(i), 'wb').write(bytes(2**17))"
    ran = tried(many, target)
    assert ran.status == "failed" or "disk" in ran.not_isolated
    assert "No space left" in ran.stderr or "disk" in ran.not_isolated


@pytest.mark.parametrize("program", ["while True: pass", "import time\ntime.sleep(60)"])
def test_time_has_a_limit(program: str) -> None:
    started = time.monotonic()
    ran = run_python(program, limits=SandboxLimits(seconds=0.5))
    assert (ran.status, ran.code) == ("timeout", None)
    assert time.monotonic() - started < 4


def test_endless_output_is_cut(target: Target) -> None:
    ran = tried("while True:\n    print('x' * 10_000)", target)
    assert (ran.status, ran.code) == ("output", None)
    assert len(ran.stdout) == LIMITS.output
    assert ran.seconds < LIMITS.seconds


def test_what_an_honest_program_has() -> None:
    """Input, the standard library, an empty folder to write in, and its exit code."""
    program = """
import json, os, sys, threading
assert os.listdir() == ["main.py"]
open("note", "w").write("x")
threading.Thread(target=lambda: None).start()
print(json.dumps(sys.stdin.read()))
sys.exit(3)
"""
    ran = run_python(program, stdin="Zürich")
    assert (ran.status, ran.code, ran.stdout) == ("failed", 3, '"Z\\u00fcrich"\n')
    assert run_python("import os\nos.abort()").code == -signal.SIGABRT
    assert run_python("import os\nos.close(1); os.close(2); import time; time.sleep(0.3)").passed


def test_it_says_what_it_could_not_isolate() -> None:
    ran = run_python("pass", without=("namespaces", "landlock", "seccomp"))
    assert ran.passed
    assert {"files", "network", "disk", "processes"} <= set(ran.not_isolated)
    only_seccomp = run_python("pass", without=("namespaces", "landlock"))
    assert "network" not in only_seccomp.not_isolated
