"""A run, or the points of a sweep, as jobs of Slurm, or of submitit on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.config.launch import Manifest, Slurm, Submitit
from forge.launch.manifests import submit
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm import queue, submitit_local
from forge.launch.sweep import messages
from forge.launch.sweep.command import Command
from forge.launch.sweep.directory import Point
from forge.launch.sweep.messages import line, print_line
from forge.launch.sweep.state import PARTIAL, point_state
from forge.planning.world import World
from forge.resolve.resolve import Resolution
from forge.rundir.directory import short
from forge.rundir.outcome import FAILED, finished

FOLDER = "jobs"


def check_run(resolution: Resolution) -> str | None:
    """Ask Slurm to accept the job of a run, and return the script for a dry run. Raises ConfigError
    for a refused job.
    """
    run, section = resolution.config.run, resolution.config.launch
    if isinstance(section, Manifest):
        return submit.check_submission(resolution, name=_name(resolution))
    if not isinstance(section, Slurm):
        return None
    path = Path(run.dir) if run.dir else Path(run.root) / "<run directory>"
    point, name, folder = (path, resolution.world.size), _name(resolution), path / FOLDER
    if section.dry_run:
        return "\n".join(slurm.scripts([point], section, name=name, folder=folder))
    return slurm.check_accepted([point], section, name=name, folder=folder)


def start_run(run_dir: Path, resolution: Resolution) -> int:
    """Submit the run in a directory; with launch.wait, wait for its end. The exit code is 0, or 1
    for a failed run.
    """
    section, name, trust = resolution.config.launch, _name(resolution), resolution.config.run.trust
    if isinstance(section, Manifest):
        return submit.submit_run(run_dir, resolution, name=name)
    assert isinstance(section, Submitit)
    points = [(run_dir, resolution.world)]
    (job,), local_jobs = _submit(section, points, name, run_dir / FOLDER, trust)
    path = short(run_dir)
    print_line(
        f"submitted: job {job}   (python -m forge.status {path}; python -m forge.cancel {path})"
    )
    if not section.wait:
        return 0
    submitit_local.wait_locally(local_jobs)
    state = queue.wait_for_jobs([job])[job] if isinstance(section, Slurm) else None
    if finished(run_dir) is not None:
        return 0
    words = messages.last_words(run_dir) or messages.end_of(slurm.job_log(run_dir))
    words = words or [f"job {job} is {state or 'over'}"]
    print_line("\n".join(["the run did not finish:", *(f"  | {text}" for text in words)]))
    return FAILED


def submit_sweep(sweep: Command) -> int:
    """Submit the due points of a sweep, and return the exit code; with launch.wait, wait for all
    points to end. Raises ConfigError before anything is written.
    """
    section, path = sweep.planned[0].resolution.config.launch, sweep.directory.path
    assert isinstance(section, Submitit)
    name, folder = path.name, path / FOLDER
    if isinstance(section, Slurm):
        new = sweep.to_start()
        sizes = [(folder / str(n), planned.resolution.world.size) for n, planned in enumerate(new)]
        if section.dry_run:
            labels = [planned.combination.label for planned in new]
            print("\n".join(slurm.scripts(sizes, section, name=name, folder=folder, labels=labels)))
            print(f"# {len(new)} of {len(sweep.planned)} points would be submitted")
            return 0
        if new:
            slurm.check_accepted(sizes, section, name=name, folder=folder)
    with sweep.open():
        sweep.announce()
        due, trust = sweep.due, dict[str, None]()
        for entry in due:
            sweep.prepare(entry)
            trust |= dict.fromkeys(entry.planned.resolution.config.run.trust)
        points = [(entry.point.path, entry.planned.resolution.world) for entry in due]
        ids, local_jobs = _submit(section, points, name, folder, list(trust))
        cluster = "slurm" if isinstance(section, Slurm) else "local"
        for entry, job in zip(due, ids, strict=True):
            sweep.directory.note("submitted", entry.point.number, job=job, cluster=cluster)
            print_line(line(entry.point, "submitted", f"job {job}"))
    if not section.wait:
        return 0
    return sweep.finish(_wait(sweep, [entry.point for entry in due], local_jobs))


def _wait(
    sweep: Command, points: Sequence[Point], local_jobs: Sequence[Any]
) -> list[tuple[Point, str]]:
    """Print a line as each point ends, and return the failed points, each with its reason in a
    line. On a cluster jobs submitted by an earlier command count too.
    """
    failed: list[tuple[Point, str]] = []

    def ended(point: Point, job: str, log: Path | None) -> None:
        if finished(point.path) is not None:
            print_line(line(point, "done", messages.reached(point)))
        elif point_state(point) == PARTIAL:
            print_line(line(point, "stopped", f"{messages.reached(point)}; {job}"))
        else:
            words = messages.last_words(point.path) or messages.end_of(log)
            failed.append((point, messages.cause(point.path) or job))
            print_line(messages.failed_line(point, job, words))

    def slurm_job_ended(job: str, state: str | None) -> None:
        point = of_job[job]
        ended(point, f"job {job}: {state or 'gone'}", slurm.job_log(point.path))

    def local_job_ended(place: int) -> None:
        job = local_jobs[place]
        ended(points[place], f"job {job.job_id}", Path(job.paths.stdout))

    submitit_local.wait_locally(local_jobs, local_job_ended)
    if isinstance(sweep.flight.launch, Slurm):
        every = [entry.point for entry in sweep.entries]
        of_job = {job: point for point in every if (job := slurm.slurm_job(point.path)) is not None}
        unfinished = [job for job, point in of_job.items() if finished(point.path) is None]
        queue.wait_for_jobs(unfinished, ended=slurm_job_ended)
    return failed


def _submit(
    section: Submitit,
    points: Sequence[tuple[Path, World]],
    name: str,
    folder: Path,
    trust: Sequence[str],
) -> tuple[list[str], list[Any]]:
    """The ids of the jobs of run directories; also the jobs of submitit on this machine."""
    if isinstance(section, Slurm):
        sizes = [(path, world.size) for path, world in points]
        return slurm.submit_jobs(sizes, section, name=name, folder=folder, trust=trust), []
    jobs = submitit_local.submit_locally(points, name=name, folder=folder, trust=trust)
    return [str(job.job_id) for job in jobs], jobs


def _name(resolution: Resolution) -> str:
    run, preset = resolution.config.run, resolution.config.preset
    return run.name or (Path(run.dir).name if run.dir else preset)
