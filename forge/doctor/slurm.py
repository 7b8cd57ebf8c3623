"""Slurm's commands: there, and answering."""

from __future__ import annotations

import shutil

from forge.doctor.ask import ask
from forge.doctor.finding import Finding, missing, ok, warn

COMMANDS = ("sinfo", "sbatch", "srun", "sacct")
ONLY = "only needed for launch=slurm"
SECONDS = 5.0


def slurm(seconds: float = SECONDS) -> Finding:
    """sinfo must name a partition; without sacct's records the end of a job is learned from squeue
    alone.
    """
    paths = {name: path for name in COMMANDS if (path := shutil.which(name))}
    absent = ", ".join(name for name in COMMANDS if name not in paths)
    if not paths:
        return missing(
            "Slurm",
            f"no {absent} on PATH",
            f"{ONLY}: use a login node, or load the site's slurm module",
        )
    if absent:
        return warn(
            "Slurm",
            f"{', '.join(paths)} on PATH, but no {absent}",
            f"install the rest of Slurm's client commands; {ONLY}",
        )
    said = ask([paths["sinfo"], "--noheader", "--format=%P %a %D"], seconds=seconds)
    if said is None or said.code is None:
        what = (
            f"sinfo gives no answer in {seconds:g} s: the controller is down or cannot be reached"
        )
        return warn("Slurm", what, f"ask the administrator; {ONLY}")
    if said.code:
        return warn("Slurm", f"sinfo fails: {said.last_words}", f"check SLURM_CONF; {ONLY}")
    partitions = [line.split()[0] for line in said.out.splitlines() if line.split()]
    if not partitions:
        return warn(
            "Slurm", "sinfo lists no partition that you may use", f"ask the administrator; {ONLY}"
        )
    found = f"partitions: {', '.join(dict.fromkeys(partitions))}"
    records = ask(
        [paths["sacct"], "--noheader", "--allocations", "--starttime=now"], seconds=seconds
    )
    if records is None or records.code is None or records.code:
        why = records.last_words if records and records.code else f"no answer in {seconds:g} s"
        return warn(
            "Slurm",
            f"{found}; sacct fails: {why}",
            "the end of a job is then learned from squeue, a few minutes at most after it",
        )
    return ok("Slurm", found)
