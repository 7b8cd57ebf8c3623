"""Calls of the Linux kernel that Python lacks: namespaces, mounts, Landlock, seccomp.

The standard library alone: this file is also read by the process that becomes the sandbox.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

LIBC = ctypes.CDLL(None, use_errno=True)
NEW = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "network": 0x40000000}
NEW |= {"user": 0x10000000, "pid": 0x20000000}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 32, 4096, 16384
MS_PRIVATE, MNT_DETACH = 1 << 18, 2
SET_PDEATHSIG, SET_DUMPABLE, SET_SECCOMP, CAPBSET_DROP = 1, 4, 22, 24
SET_SUBREAPER, NO_NEW_PRIVS = 36, 38
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
LANDLOCK = {"create": 444, "add": 445, "restrict": 446}  # the same on all architectures

READ, WRITE, OF_FILES = 0b1101, 0xFFF3, 0b1100000000000111
"""Landlock: execute, read a file, read a folder; everything else; what applies to a file."""
FS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # of each version; later ones have 16

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
DENIED = {  # numbers on x86_64 and aarch64
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "pidfd_getfd": (438, 438),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
}
ALLOW, EPERM, KILL = 0x7FFF0000, 0x00050001, 0x80000000
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
X32 = 0x40000000  # numbers of the second ABI of x86_64


def unshare(*names: str) -> None:
    """Leave these namespaces for new ones. Raises OSError."""
    _checked(LIBC.unshare(sum(NEW[name] for name in names)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    texts = [text.encode() or None for text in (source, target, kind, data)]
    result = LIBC.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3])
    _checked(result, f"mount {target}")


def pivot(root: str) -> None:
    """Make a mounted folder the root, and let go of the old one. Raises OSError."""
    os.chdir(root)
    number = PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError("pivot_root is not known for this architecture")
    _checked(LIBC.syscall(number, b".", b"."), "pivot_root")
    _checked(LIBC.umount2(b".", MNT_DETACH), "umount2")
    os.chdir("/")


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    arguments = [ctypes.c_ulong(number) for number in (value, 0, 0, 0)]
    _checked(LIBC.prctl(option, *arguments), "prctl")


def drop_capabilities() -> None:
    """Give up all capabilities, those of a root that starts another program too."""
    for number in range(64):
        LIBC.prctl(CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0)
    header, data = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _checked(LIBC.capset(header, data), "capset")


def landlock(readable: list[str], writable: list[str]) -> int:
    """Allow nothing of the file system but these paths, and no TCP; the version of Landlock.

    From version 6 signals and abstract sockets reach nobody outside either. Raises OSError.
    """
    version = LIBC.syscall(LANDLOCK["create"], None, 0, 1)
    _checked(version, "landlock")
    fs = (1 << FS_BITS.get(version, 16)) - 1
    content = struct.pack("QQQ", fs, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = LIBC.syscall(LANDLOCK["create"], content, len(content), 0)
    _checked(ruleset, "landlock")
    for path, access in [(p, READ) for p in readable] + [(p, READ | WRITE) for p in writable]:
        if not os.path.exists(path):
            continue
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = access & fs & (fs if os.path.isdir(path) else OF_FILES)
        rule = struct.pack("=Qi", allowed, folder)
        _checked(LIBC.syscall(LANDLOCK["add"], ruleset, 1, rule, 0), f"landlock {path}")
        os.close(folder)
    prctl(NO_NEW_PRIVS, 1)
    _checked(LIBC.syscall(LANDLOCK["restrict"], ruleset, 0), "landlock")
    os.close(ruleset)
    return version


def seccomp() -> None:
    """Deny the calls of `DENIED`, with EPERM; another ABI kills. Raises OSError."""
    machine = platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(f"no system calls are known of {machine}")
    numbers = [pair[list(ARCHITECTURES).index(machine)] for pair in DENIED.values()]
    steps = [(LOAD, 0, 0, 4), (EQUAL, 1, 0, ARCHITECTURES[machine]), (RETURN, 0, 0, KILL)]
    steps += [(LOAD, 0, 0, 0), (AT_LEAST, 0, 1, X32), (RETURN, 0, 0, KILL)]
    for number in numbers:
        steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, EPERM)]
    steps.append((RETURN, 0, 0, ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    header = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    prctl(NO_NEW_PRIVS, 1)
    _checked(LIBC.prctl(SET_SECCOMP, 2, ctypes.c_char_p(header), 0, 0), "seccomp")


def _checked(result: int, name: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
