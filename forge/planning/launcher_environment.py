"""Environment variables from a launcher (torchrun, srun, or any other to set RANK and WORLD_SIZE)
for one rank of several.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from forge.config.problems import ENVIRONMENT, ConfigError, Problem

MOST_RANKS, MOST_PORTS = 10**6, 2**16 - 1
# A shell in an allocation has SLURM_NTASKS too; Slurm numbers its own steps (batch, interactive,
# ...) from here on.
FIRST_SPECIAL_STEP = 0xFFFFFFF0
FIRST_PORT, PORTS = 15000, 15000  # below the ephemeral ports of Linux


@dataclass(frozen=True, kw_only=True)
class LauncherEnvironment:
    """One rank, the number of ranks and its variable, the host and port of rank 0."""

    rank: int
    size: int
    local_rank: int
    source: str
    address: str
    port: int

    def variables(self) -> dict[str, str]:
        """The environment variables for torch.distributed."""
        ranks = {"RANK": self.rank, "WORLD_SIZE": self.size, "LOCAL_RANK": self.local_rank}
        host = {"MASTER_ADDR": self.address, "MASTER_PORT": self.port} if self.size > 1 else {}
        return {name: str(value) for name, value in {**ranks, **host}.items()}


def launcher_environment(
    environ: Mapping[str, str] = os.environ,
) -> LauncherEnvironment | None:
    """Read the launcher's variables for this process, torchrun before srun; None where the process
    is not one of several ranks. Raises ConfigError.
    """
    if not (environ.get("RANK") and environ.get("WORLD_SIZE")):
        return _of_srun(environ)
    size = _number(environ, "WORLD_SIZE", 1, MOST_RANKS)
    local = environ.get("LOCAL_RANK")
    return LauncherEnvironment(
        rank=_number(environ, "RANK", 0, size - 1),
        size=size,
        local_rank=_number(environ, "LOCAL_RANK", 0, size - 1) if local else 0,
        source="WORLD_SIZE",
        address=_address(environ) if size > 1 else "",
        port=_number(environ, "MASTER_PORT", 1, MOST_PORTS) if size > 1 else 0,
    )


def launcher_ranks(environ: Mapping[str, str] = os.environ) -> tuple[int, str] | None:
    """The number of ranks set by a launcher, and its variable; WORLD_SIZE alone counts. Raises
    ConfigError.
    """
    environment = launcher_environment(environ)
    if environment is not None:
        return environment.size, environment.source
    if environ.get("WORLD_SIZE"):
        return _number(environ, "WORLD_SIZE", 1, MOST_RANKS), "WORLD_SIZE"
    return None


def _of_srun(environ: Mapping[str, str]) -> LauncherEnvironment | None:
    """Read Slurm's variables for one of several tasks of a job step; None for a single task, an
    ordinary run that starts its ranks itself.
    """
    step = environ.get("SLURM_STEP_ID", "")
    source = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    is_step = step.isdecimal() and int(step[:20]) < FIRST_SPECIAL_STEP
    if not is_step or not environ.get("SLURM_PROCID") or not environ.get(source):
        return None
    size = _number(environ, source, 1, MOST_RANKS)
    if size == 1:
        return None
    job = environ.get("SLURM_JOB_ID", "")
    # another port for each step of a job, and for each job
    port = FIRST_PORT + (37 * int(job[-15:] if job.isdecimal() else 0) + int(step)) % PORTS
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")
    port_text = environ.get("MASTER_PORT")
    return LauncherEnvironment(
        rank=_number(environ, "SLURM_PROCID", 0, size - 1),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID", 0, size - 1),
        source=source,
        address=environ.get("MASTER_ADDR") or first_node(nodes),
        port=_number(environ, "MASTER_PORT", 1, MOST_PORTS) if port_text else port,
    )


def first_node(nodes: str) -> str:
    """The first host of a list in Slurm's notation: 'a[03-05,9],b' is a03."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environ.get(name, "")
    if text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    message = f"{name} must be a number from {low} to {high}" + (
        "." if text else "; it is not set."
    )
    unset = "WORLD_SIZE" if name == "WORLD_SIZE" else "RANK WORLD_SIZE"
    hint = f"start it by torchrun or srun, which set it, or without: unset {unset}"
    raise ConfigError(Problem(f"{name}={text[:40]}", message, hint, where=ENVIRONMENT))


def _address(environ: Mapping[str, str]) -> str:
    if address := environ.get("MASTER_ADDR", ""):
        return address
    message, hint = "the host of rank 0 is not set.", "MASTER_ADDR=<host>, or unset RANK WORLD_SIZE"
    raise ConfigError(Problem("MASTER_ADDR=", message, hint, where=ENVIRONMENT))
