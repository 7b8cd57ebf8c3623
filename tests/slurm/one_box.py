"""A real Slurm on this machine for the length of a test run: two nodes, started as root from a
directory of its own.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

NODES = ("127.0.0.1", "127.0.0.2")  # names that resolve without a line in /etc/hosts
SEARCHED = "/usr/sbin:/sbin:"  # no user has the daemons on PATH
DAEMONS = ("munged", "slurmctld", "slurmd")
# Any device file will do for Slurm to count and to number.
GPUS = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
TEMPLATE = Path(__file__).with_name("slurm.conf")


def missing() -> str | None:
    """Why there can be no Slurm here."""
    absent = [
        name for name in DAEMONS if shutil.which(name, path=SEARCHED + os.environ["PATH"]) is None
    ]
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install -y slurm-wlm munge"
    return None if os.geteuid() == 0 else "its daemons are started as root"


class OneBox:
    """The daemons and their files, which are all below `folder`; a path of less than 80 characters,
    for a socket is there.
    """

    def __init__(self, folder: Path, nodes: Sequence[str] = NODES) -> None:
        self.folder, self.nodes = folder, nodes
        self.conf = folder / "slurm.conf"
        self.daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Write the files, start the daemons, wait until all nodes are idle. Raises RuntimeError
        with the logs.
        """
        for name in ("controller", *self.nodes):
            (self.folder / name).mkdir()
        controller, *nodes = map(str, free_ports(1 + len(self.nodes)))
        values = {"STATE": str(self.folder), "CONTROLLER_PORT": controller}
        values |= {"NODES": ",".join(self.nodes), "NODE_PORTS": ",".join(nodes)}
        content = TEMPLATE.read_text(encoding="utf-8")
        for name, value in values.items():
            content = content.replace(f"@{name}@", value)
        self.conf.write_text(content, encoding="utf-8")
        gpus = [
            f"NodeName={node} Name=gpu File={device}\n" for node in self.nodes for device in GPUS
        ]
        (self.folder / "gres.conf").write_text("".join(gpus), encoding="utf-8")
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        names = ("key-file", "socket", "pid-file", "log-file", "seed-file")
        files = [f"--{one}={self.folder}/munge.{one.removesuffix('-file')}" for one in names]
        self.daemon("munged", "--foreground", "--force", *files)
        self.daemon("slurmctld", "-D", "-f", str(self.conf))
        for node in self.nodes:
            self.daemon("slurmd", "-D", "-N", node, "-f", str(self.conf))
        nodes, idle = ["sinfo", "--noheader", "--Node", "--partition=debug", "--format=%t"], "idle"
        self.wait_for(lambda: self.ask(*nodes).split() == [idle] * len(self.nodes))

    def wait_for(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        """Raises RuntimeError with the logs when it does not come true."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                logs = [
                    file.read_text(errors="replace")[-1500:] for file in self.folder.glob("*.out")
                ]
                raise RuntimeError("\n".join(["the one-box Slurm does not come up:", *logs]))
            time.sleep(0.1)

    def stop(self) -> None:
        """End the jobs, then the daemons, by their process ids."""
        self.ask("scancel", "--full", "--signal=KILL", f"--user={os.geteuid()}")
        self.ask("scancel", f"--user={os.geteuid()}")
        deadline = time.monotonic() + 15
        while self.ask("squeue", "--noheader").strip() and time.monotonic() < deadline:
            time.sleep(0.2)
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(3)
            except subprocess.TimeoutExpired:  # slurmd ignores SIGTERM without its controller
                daemon.kill()
                daemon.wait()

    def daemon(self, *command: str) -> None:
        """Start a process that ends with the tests; what it says is in a file."""
        environ = {**os.environ, "PATH": SEARCHED + os.environ["PATH"]}
        environ["SLURM_CONF"] = str(self.conf)
        with (self.folder / f"{command[0]}.{len(self.daemons)}.out").open("wb") as log:
            started = subprocess.Popen(
                command, env=environ, stdout=log, stderr=log, preexec_fn=_end_with_tests
            )
        self.daemons.append(started)

    def lose(self, node: str) -> None:
        """End a node as a power cut does: its daemon, and all that it has started, which on two
        nodes of one job must be the job of this node alone; then the controller is told.
        """
        (daemon,) = (each for each in self.daemons if node in each.args)  # type: ignore[operator]
        daemon.kill()
        daemon.wait()
        self.daemons.remove(daemon)
        conf = f"SLURM_CONF={self.conf}".encode()
        started = [f"SLURMD_NODENAME={node}".encode(), b"slurmstepd"]
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with suppress(OSError):
                folder = Path("/proc") / str(pid)
                has = (folder / "environ").read_bytes() + (folder / "comm").read_bytes()
                if conf in has and any(word in has for word in started):
                    os.kill(pid, signal.SIGKILL)
        state = ["scontrol", "update", f"NodeName={node}"]
        self.ask(*state, "State=DOWN", "Reason=lost")

    def bring_back(self, node: str) -> None:
        self.daemon("slurmd", "-D", "-N", node, "-f", str(self.conf))
        self.ask("scontrol", "update", f"NodeName={node}", "State=RESUME")

    def ask(self, *command: str) -> str:
        """What a command of Slurm prints; nothing when it hangs or fails."""
        with suppress(subprocess.TimeoutExpired):
            environ = {**os.environ, "SLURM_CONF": str(self.conf)}
            return subprocess.run(
                command, env=environ, capture_output=True, text=True, timeout=10
            ).stdout
        return ""


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on, all different."""
    with ExitStack() as opened:
        probes = [opened.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _end_with_tests() -> None:
    """Ask Linux to end this process when the tests end, however they do."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
