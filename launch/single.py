"""One run as a job of Slurm, or of submitit on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.config.launch import Slurm, Submitit
from forge.launch.local.processes import FAILED
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep import messages
from forge.resolve.resolve import Resolution
from forge.rundir import directory
from forge.rundir.directory import short

FOLDER = "jobs"
UNMADE = Path("<run directory>")


def scripts(resolution: Resolution) -> str | None:
    """What would be submitted, with launch.dry_run. Raises ConfigError where Slurm would not take
    it; nothing is written.
    """
    section = resolution.config.launch
    if not isinstance(section, Slurm):
        return None
    given, world = resolution.config.run.dir, resolution.world.size
    place = Path(given) if given else Path(resolution.config.run.root) / UNMADE
    if section.dry_run:
        return "\n".join(
            slurm.scripts([(place, world)], section, name=_name(resolution), folder=place / FOLDER)
        )
    slurm.check([(place, world)], section, name=_name(resolution), folder=place / FOLDER)
    return None


def start(run_dir: Path, resolution: Resolution) -> int:
    """Submit the run in a directory; with launch.wait, until it has ended. The exit code is 0, or 1
    when it has failed.
    """
    section, folder, trust = resolution.config.launch, run_dir / FOLDER, resolution.config.run.trust
    assert isinstance(section, Submitit)
    if isinstance(section, Slurm):
        job, others = (
            slurm.submit(
                [(run_dir, resolution.world.size)],
                section,
                name=_name(resolution),
                folder=folder,
                trust=trust,
            )[0],
            [],
        )
    else:
        from forge.launch.slurm import submitit_local

        others = submitit_local.submit(
            [(run_dir, resolution.world)], name=_name(resolution), folder=folder, trust=trust
        )
        job = str(others[0].job_id)
    print(
        f"submitted: job {job}   (python -m forge.status {short(run_dir)}; python -m forge.cancel {short(run_dir)})",
        flush=True,
    )
    if not section.wait:
        return 0
    state = _ended(job, others)
    if directory.finished(run_dir) is not None:
        return 0
    said = (
        messages.why(run_dir)
        or messages.last_of(slurm.log_file(run_dir))
        or [f"job {job} is {state or 'over'}"]
    )
    print("\n".join(["the run did not finish:", *(f"  | {text}" for text in said)]), flush=True)
    return FAILED


def _ended(job: str, others: Sequence[Any]) -> str | None:
    """Wait for a job; what Slurm calls its state then."""
    if not others:
        return slurm.wait([job])[job]
    from forge.launch.slurm import submitit_local

    submitit_local.wait(others, lambda place: None)
    return None


def _name(resolution: Resolution) -> str:
    config = resolution.config
    return config.run.name or (Path(config.run.dir).name if config.run.dir else config.preset)
