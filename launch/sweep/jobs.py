"""The points of a sweep as jobs of Slurm, or of submitit on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge.config.launch import Slurm, Submitit
from forge.launch.slurm import jobs as slurm
from forge.launch.sweep import messages
from forge.launch.sweep.command import Command, Entry
from forge.launch.sweep.directory import Point
from forge.launch.sweep.state import PARTIAL, state_of
from forge.rundir.directory import finished

FOLDER = "jobs"


def run(sweep: Command) -> int:
    """Submit what is due and return; with launch.wait, when all has ended. Raises ConfigError
    before anything is written.
    """
    section = sweep.planned[0].resolution.config.launch
    assert isinstance(section, Submitit)
    if isinstance(section, Slurm):
        name, folder, new = (
            sweep.directory.path.name,
            sweep.directory.path / FOLDER,
            sweep.to_start(),
        )
        sizes = [
            (folder / str(number), planned.resolution.world.size)
            for number, planned in enumerate(new)
        ]
        if section.dry_run:
            labels = [planned.combination.label for planned in new]
            print("\n".join(slurm.scripts(sizes, section, name=name, folder=folder, labels=labels)))
            print(f"# {len(new)} of {len(sweep.planned)} points would be submitted")
            return 0
        if new:
            slurm.check(sizes, section, name=name, folder=folder)
    ended = Ended(sweep)
    with sweep.open():
        sweep.announce()
        wait = submit(sweep, sweep.due, section, ended)
    if not section.wait:
        return 0
    wait()
    return sweep.finish(ended.failed)


def submit(
    sweep: Command, entries: Sequence[Entry], section: Submitit, ended: Ended
) -> Callable[[], None]:
    """Make their run directories and submit them; what waits for them, and tells `ended` of each.
    Raises ConfigError.
    """
    name, folder = sweep.directory.path.name, sweep.directory.path / FOLDER
    due = [(entry.point, entry.planned.resolution.world) for entry in entries]
    trust = list(
        dict.fromkeys(
            prefix for entry in entries for prefix in entry.planned.resolution.config.run.trust
        )
    )
    for entry in entries:
        sweep.prepare(entry)
    if isinstance(section, Slurm):
        sizes = [(point.path, world.size) for point, world in due]
        ids, cluster = (
            slurm.submit(sizes, section, name=name, folder=folder, trust=trust) if due else [],
            "slurm",
        )
        wait = ended.slurm
    else:
        from forge.launch.slurm import submitit_local

        jobs = submitit_local.submit(
            [(point.path, world) for point, world in due], name=name, folder=folder, trust=trust
        )
        ids, cluster = [str(job.job_id) for job in jobs], "local"
        wait = ended.local(jobs, [point for point, _ in due])
    for (point, _), job in zip(due, ids, strict=True):
        sweep.directory.note("submitted", point.number, job=job, cluster=cluster)
        messages.say(messages.line(point, "submitted", f"job {job}"))
    return wait


class Ended:
    """Tells of jobs as they end. failed: points with the reason in one line."""

    def __init__(self, sweep: Command) -> None:
        self.sweep = sweep
        self.failed: list[tuple[Point, str]] = []

    def slurm(self) -> None:
        """Until the jobs of all points of the command have ended, those that earlier ones have
        submitted too.
        """
        points = {
            job: entry.point
            for entry in self.sweep.entries
            if (job := slurm.job_of(entry.point.path)) is not None
        }
        open_jobs = [job for job, point in points.items() if finished(point.path) is None]
        slurm.wait(
            open_jobs,
            told=lambda job, state: self._tell(
                points[job], f"job {job}: {state or 'gone'}", slurm.log_file
            ),
        )

    def local(self, jobs: Sequence[Any], points: Sequence[Point]) -> Callable[[], None]:
        """The same for jobs of submitit on this machine, of this command."""
        from forge.launch.slurm import submitit_local

        files = {
            point.path: Path(job.paths.stdout) for job, point in zip(jobs, points, strict=True)
        }
        return lambda: submitit_local.wait(
            jobs, lambda place: self._tell(points[place], f"job {jobs[place].job_id}", files.get)
        )

    def _tell(self, point: Point, job: str, log: Callable[[Path], Path | None]) -> None:
        if finished(point.path) is not None:
            messages.say(messages.line(point, "done", messages.reached(point)))
        elif state_of(point) == PARTIAL:
            messages.say(messages.line(point, "stopped", f"{messages.reached(point)}; {job}"))
        else:
            words = messages.why(point.path) or messages.last_of(log(point.path))
            self.failed.append((point, messages.cause(point.path) or job))
            messages.say(
                "\n".join(
                    [messages.line(point, "FAILED", job), *(f"     | {text}" for text in words)]
                )
            )
