"""The process that becomes the sandbox: supervisor, first process of the namespaces, program.

Started as a script, with the standard library alone. Three processes, so that each can be ended by
the one above: the supervisor keeps the time; the first process of a PID namespace takes all others
with it when it ends; the program has no privileges left.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import kernel

SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
WORK = "/work"
FIRST_USER, USERS = 2_000_000_000, 100_000_000
FILES = 64  # open at a time
INODES = 4096
Order = dict[str, Any]


def main() -> None:
    size = int.from_bytes(_exactly(8), "big")
    order = json.loads(_exactly(size))
    os.set_inheritable(order["report"], False)
    missing: list[str] = []
    try:
        supervise(order, missing)
    except OSError as error:
        tell(order, failure=str(error))


def supervise(order: Order, missing: list[str]) -> None:
    """Leave the namespaces, start the program, and end everything at its end or the time limit."""
    spaces = leave(order)
    kernel.prctl(kernel.SET_SUBREAPER, 1)
    first = os.fork()
    if first == 0:
        try:
            begin(order, missing, spaces)
        except BaseException as error:  # the parent reads the reason
            tell(order, failure=f"{type(error).__name__}: {error}")
        os._exit(125)
    for stream in (1, 2):  # held by the program alone, so that its end ends them
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    watched, deadline = os.pidfd_open(first), time.monotonic() + order["seconds"]
    ready, *_ = select.select([watched, 0], [], [], max(deadline - time.monotonic(), 0))
    timeout = not ready
    if watched not in ready:
        os.kill(first, signal.SIGKILL)
    _, status = os.waitpid(first, 0)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    tell(order, code=code - 256 if code > 128 else code, timeout=timeout)


def leave(order: Order) -> set[str]:
    """Enter new namespaces; the names of those entered."""
    if "namespaces" in order["without"]:
        return set()
    spaces, user, group = set[str](), os.getuid(), os.getgid()
    if user != 0:
        try:
            kernel.unshare("user")
            _write("/proc/self/setgroups", "deny")
            _write("/proc/self/uid_map", f"65534 {user} 1")
            _write("/proc/self/gid_map", f"65534 {group} 1")
            spaces.add("user")
        except OSError:
            return spaces
    for name in ("network", "ipc", "uts", "pid"):
        with contextlib.suppress(OSError):
            kernel.unshare(name)
            spaces.add(name)
    return spaces


def begin(order: Order, missing: list[str], spaces: set[str]) -> None:
    """As the first process: its own root, then the program, whose exit status it passes on."""
    kernel.prctl(kernel.SET_PDEATHSIG, signal.SIGKILL)
    kernel.prctl(kernel.SET_DUMPABLE, 0)
    os.setsid()
    user = os.getuid() or FIRST_USER + int.from_bytes(os.urandom(4), "big") % USERS
    own_user = os.getuid() == 0
    folder, rooted = order["folder"], False
    if "namespaces" not in order["without"]:
        try:
            kernel.unshare("mount")
            new_root(order, user)
            folder, rooted = WORK, True
        except OSError as error:
            tell(order, mount=str(error))
    if not rooted:
        missing.append("disk")  # a file has a limit, the folder none
        own_user = own_user and reachable(order["python"]) and reachable(order["prefix"])
        if own_user:
            os.chown(folder, user, user)
            os.chmod(os.path.dirname(folder), 0o711)
    program = os.fork()
    if program == 0:
        become(order, missing, spaces, user if own_user else None, folder, rooted=rooted)
    for stream in (1, 2):
        os.dup2(os.open("/dev/null", os.O_WRONLY), stream)
    while True:
        ended, status = os.wait()
        if ended == program:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 256 + code)


def new_root(order: Order, user: int) -> None:
    """A root of its own: the system read-only, an empty folder of limited size, no /proc."""
    root = order["folder"]
    kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path in dict.fromkeys((*SYSTEM, *DEVICES, os.path.realpath(order["prefix"]))):
        if not os.path.exists(path) or any(path.startswith(f"{p}/") for p in SYSTEM[:4]):
            continue
        target = root + path
        if os.path.islink(path) and path in SYSTEM[:4]:
            os.symlink(os.readlink(path), target)
            continue
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT))
        kernel.mount(path, target, flags=kernel.MS_BIND | kernel.MS_REC)
        if path not in DEVICES:
            flags = kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID
            kernel.mount("none", target, flags=flags | kernel.MS_NODEV)
    os.mkdir(root + WORK)
    size = f"size={order['file_size']},nr_inodes={INODES},mode=700"
    kernel.mount("tmpfs", root + WORK, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
    if os.getuid() == 0:
        os.chown(root + WORK, user, user)
    kernel.mount("none", root, flags=kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_BIND)
    kernel.pivot(root)


def become(
    order: Order,
    missing: list[str],
    spaces: set[str],
    user: int | None,
    folder: str,
    *,
    rooted: bool,
) -> None:
    """As the program's process: drop everything, tell what is missing, and start Python.

    user: another user to become; None where there is none.
    """
    os.chdir(folder)
    _write("main.py", order["program"])
    _write("stdin", order["stdin"])
    os.dup2(os.open("stdin", os.O_RDONLY), 0)
    os.unlink("stdin")
    limit(order, os.getuid() if user is None else user)
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    elif "user" not in spaces:
        missing.append("user")
    if os.getuid() == 0:
        missing.append("fork")  # the kernel counts no processes of root
        kernel.drop_capabilities()
    confine(order, missing, spaces, folder, rooted=rooted)
    tell(order, not_isolated=missing)
    environment = {"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"}
    os.execve(order["python"], [order["python"], "-I", "-S", "-B", "main.py"], environment)


def confine(
    order: Order, missing: list[str], spaces: set[str], folder: str, *, rooted: bool
) -> None:
    """Give up files, network and system calls for good; note what nothing covers."""
    version = 0
    if "landlock" not in order["without"]:
        with contextlib.suppress(OSError):
            readable = [*SYSTEM, order["prefix"], *DEVICES]
            version = kernel.landlock(readable, [folder, "/dev/null"])
    blocked = False
    if "seccomp" not in order["without"]:
        with contextlib.suppress(OSError):
            kernel.seccomp()
            blocked = True
    kernel.prctl(kernel.NO_NEW_PRIVS, 1)
    if not rooted and not version:
        missing.append("files")
    if "network" not in spaces and not blocked:
        missing.append("network")
    if "pid" not in spaces:
        missing.append("processes")  # seen where /proc is, ended by a search instead
        if version < 6 and "user" in missing:
            missing.append("signals")


def limit(order: Order, user: int) -> None:
    seconds = max(int(order["seconds"]) + 1, 1)
    processes = order["processes"] + running(user)
    for name, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, order["memory"]),
        (resource.RLIMIT_FSIZE, order["file_size"]),
        (resource.RLIMIT_NPROC, processes),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(name)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(name, (most, most))


def running(user: int) -> int:
    """The number of threads that the user already has, where /proc shows them."""
    count = 0
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def reachable(path: str) -> bool:
    """Whether any user may enter all folders above a path, and read it."""
    parts = path.split("/")
    above = ["/".join(parts[:n]) or "/" for n in range(1, len(parts))]
    return all(os.stat(folder).st_mode & 1 for folder in above) and bool(os.stat(path).st_mode & 4)


def end_descendants() -> None:
    """Kill what the program left behind: it has come to this process, as the subreaper."""
    for _ in range(1000):
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = children(os.getpid())
        if not left:
            return
        for child in left:
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)


def children(parent: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == parent:
                found.append(int(name))
    return found


def tell(order: Order, **facts: Any) -> None:
    os.write(order["report"], json.dumps(facts).encode() + b"\n")


def _exactly(size: int) -> bytes:
    data = b""
    while len(data) < size and (more := os.read(0, size - len(data))):
        data += more
    return data


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main()
