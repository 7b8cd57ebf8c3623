"""Whether another launcher has started this process as one rank of many: torchrun, srun, or whoever
sets RANK and WORLD_SIZE.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from forge.config.problems import ConfigError, Problem

MOST_RANKS = 10**6
ENVIRONMENT = "environment"
# A shell in an allocation has SLURM_NTASKS too; what Slurm runs there by itself are steps from this
# number on (batch, interactive, ...).
FIRST_SPECIAL_STEP = 0xFFFFFFF0
FIRST_PORT, PORTS = 15000, 15000  # below those that Linux hands out by itself


@dataclass(frozen=True, kw_only=True)
class Started:
    """This rank among those that were started together, and where they meet. source: the variable
    that has the number of ranks.
    """

    rank: int
    size: int
    local_rank: int
    source: str
    address: str
    port: int

    def environment(self) -> dict[str, str]:
        """The same in the variables that torch.distributed reads."""
        meeting = (
            {"MASTER_ADDR": self.address, "MASTER_PORT": str(self.port)} if self.size > 1 else {}
        )
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(self.local_rank),
            **meeting,
        }


def started(environ: Mapping[str, str] = os.environ) -> Started | None:
    """How this process was started, if as one of several; torchrun within srun counts as torchrun.
    Raises ConfigError.
    """
    if environ.get("RANK") and environ.get("WORLD_SIZE"):
        size = _number(environ, "WORLD_SIZE", 1, MOST_RANKS)
        return Started(
            rank=_number(environ, "RANK", 0, size - 1),
            size=size,
            local_rank=_number(environ, "LOCAL_RANK", 0, size - 1)
            if environ.get("LOCAL_RANK")
            else 0,
            source="WORLD_SIZE",
            address=_address(environ) if size > 1 else "",
            port=_number(environ, "MASTER_PORT", 1, 2**16 - 1) if size > 1 else 0,
        )
    return _by_srun(environ)


def ranks_said(environ: Mapping[str, str] = os.environ) -> tuple[int, str] | None:
    """The number of ranks that a launcher has set, and by which variable; WORLD_SIZE alone counts
    too. Raises ConfigError.
    """
    found = started(environ)
    if found is not None:
        return found.size, found.source
    return (
        (_number(environ, "WORLD_SIZE", 1, MOST_RANKS), "WORLD_SIZE")
        if environ.get("WORLD_SIZE")
        else None
    )


def _by_srun(environ: Mapping[str, str]) -> Started | None:
    """A task of a step of several; a single one is an ordinary run, which starts the ranks it
    needs.
    """
    step, rank = environ.get("SLURM_STEP_ID", ""), environ.get("SLURM_PROCID", "")
    source = "SLURM_STEP_NUM_TASKS" if environ.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    if (
        not step.isdecimal()
        or not rank
        or not environ.get(source)
        or int(step[:20]) >= FIRST_SPECIAL_STEP
    ):
        return None
    size = _number(environ, source, 1, MOST_RANKS)
    if size == 1:
        return None
    job = environ.get("SLURM_JOB_ID", "")
    port = (
        FIRST_PORT + (37 * int(job[-15:] if job.isdecimal() else 0) + int(step)) % PORTS
    )  # steps of a job side by side, jobs apart
    return Started(
        rank=_number(environ, "SLURM_PROCID", 0, size - 1),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID", 0, size - 1),
        source=source,
        address=environ.get("MASTER_ADDR")
        or first_node(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", "")),
        port=_number(environ, "MASTER_PORT", 1, 2**16 - 1) if environ.get("MASTER_PORT") else port,
    )


def first_node(nodes: str) -> str:
    """The first host of a list as Slurm writes it: 'a[03-05,9],b' is a03."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


def _number(environ: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environ.get(name, "")
    if text.isascii() and text.isdecimal() and len(text) < 20 and low <= int(text) <= high:
        return int(text)
    what = f"{name} must be a number from {low} to {high}" + ("." if text else "; it is not set.")
    fix = f"start it by torchrun or srun, which set it, or without: unset {'WORLD_SIZE' if name == 'WORLD_SIZE' else 'RANK WORLD_SIZE'}"
    raise ConfigError([Problem(key=f"{name}={text[:40]}", what=what, fix=fix, where=ENVIRONMENT)])


def _address(environ: Mapping[str, str]) -> str:
    address = environ.get("MASTER_ADDR", "")
    if not address:
        what = "the ranks need the host of rank 0 to meet; it is not set."
        raise ConfigError(
            [
                Problem(
                    key="MASTER_ADDR=",
                    what=what,
                    fix="MASTER_ADDR=<host>, or unset RANK WORLD_SIZE",
                    where=ENVIRONMENT,
                )
            ]
        )
    return address
