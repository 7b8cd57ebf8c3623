"""A run, or the points of a sweep, as jobs of Kubernetes or SkyPilot: files, and their commands."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.launch import Kubernetes, Manifest, SkyPilot
from forge.config.problems import ConfigError, Problem, refusal
from forge.launch.manifests import files
from forge.launch.manifests.queue import (
    COMMANDS,
    JOB,
    REMOVE,
    answer_of,
    kubectl,
    name_of_job,
    states_of,
)
from forge.launch.slurm.queue import has_ended
from forge.launch.sweep.command import Command
from forge.launch.sweep.messages import line, print_line
from forge.planning.allocation import Allocation, allocation
from forge.resolve.resolve import Resolution
from forge.rundir.directory import short
from forge.rundir.files import write_json, write_text
from forge.rundir.provenance import now

FOLDER = "jobs"


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job to submit: its run directory, its name, and the content of its file."""

    run_dir: Path
    name: str
    document: dict[str, Any]

    @classmethod
    def of(cls, run_dir: Path, resolution: Resolution, *, name: str) -> Submission:
        section, trust = resolution.config.launch, resolution.config.run.trust
        needs = allocation(section, resolution.world.size)  # type: ignore[arg-type]
        assert isinstance(needs, Allocation), "a rule refuses it"
        path, named = run_dir.resolve(), files.job_name(name, run_dir)
        if isinstance(section, Kubernetes):
            document = files.jobset(section, needs, path, trust, name=named)
        else:
            assert isinstance(section, SkyPilot)
            document = files.sky_task(section, needs, path, trust, name=named)
        return cls(run_dir=run_dir, name=named, document=document)


def check_submission(resolution: Resolution, *, name: str) -> str | None:
    """The file of a run for a dry run; else None, once the cluster would take the job. Raises
    ConfigError.
    """
    run, section = resolution.config.run, resolution.config.launch
    assert isinstance(section, Manifest)
    path = Path(run.dir) if run.dir else Path(run.root) / "RUN_DIRECTORY"
    submission = Submission.of(path, resolution, name=name)
    if section.dry_run:
        return files.yaml_of([submission.document])
    _check(section, [submission])
    return None


def submit_run(run_dir: Path, resolution: Resolution, *, name: str) -> int:
    """Submit the run in a directory; the exit code is 0. Raises ConfigError."""
    section = resolution.config.launch
    assert isinstance(section, Manifest)
    submission = Submission.of(run_dir, resolution, name=name)
    _submit(section, [submission], run_dir / FOLDER)
    path = short(run_dir)
    print_line(
        f"submitted: {submission.name}   "
        f"(python -m forge.status {path}; python -m forge.cancel {path})"
    )
    return 0


def submit_points(sweep: Command) -> int:
    """Submit the due points of a sweep, and return the exit code. Raises ConfigError before
    anything is written.
    """
    section, path = sweep.planned[0].resolution.config.launch, sweep.directory.path
    assert isinstance(section, Manifest)
    new = [
        Submission.of(path / str(number), planned.resolution, name=f"{path.name}-{number}")
        for number, planned in enumerate(sweep.to_start())
    ]
    if section.dry_run:
        print(files.yaml_of([submission.document for submission in new]), end="")
        print(f"# {len(new)} of {len(sweep.planned)} points would be submitted")
        return 0
    if new:
        _check(section, new)
    with sweep.open():
        sweep.announce()
        due = sweep.due
        submissions = []
        for entry in due:
            sweep.prepare(entry)
            name = f"{path.name}-{entry.point.number}"
            point_path, resolution = entry.point.path, entry.planned.resolution
            submissions.append(Submission.of(point_path, resolution, name=name))
        _submit(section, submissions, path / FOLDER)
        for entry, submission in zip(due, submissions, strict=True):
            number, cluster = entry.point.number, section.schema_name
            sweep.directory.note("submitted", number, job=submission.name, cluster=cluster)
            print_line(line(entry.point, "submitted", submission.name))
    return 0


def _check(section: Manifest, submissions: Sequence[Submission]) -> None:
    """Refuse a machine without the command, and jobs that the cluster refuses."""
    command, launcher = COMMANDS[section.schema_name], f"launch={section.schema_name}"
    if shutil.which(command) is None:
        message = f"there is no {command} on PATH."
        hint = "a machine that has it, or launch.dry_run=true for the files"
        raise refusal(launcher, message, hint)
    for path, state in states_of(submission.run_dir for submission in submissions).items():
        if not has_ended(state):
            message = f"the run is in Kubernetes already: {name_of_job(path)} is {state}."
            hint = f"wait for it, or end it: python -m forge.cancel {short(path)}"
            raise refusal(f"run.dir={short(path)}", message, hint)
    if isinstance(section, Kubernetes):
        text = files.yaml_of([submission.document for submission in submissions])
        words = [*kubectl(section.namespace), "create", "--dry-run=server", "-f", "-"]
        code, errors = answer_of(words, text)
        if code:
            hint = "launch.dry_run=true prints what it is given; JobSet is at jobset.sigs.k8s.io"
            raise refusal(launcher, f"kubectl refuses the job: {errors}", hint)


def _submit(section: Manifest, submissions: Sequence[Submission], folder: Path) -> None:
    """Write one file for Kubernetes, one a job for SkyPilot, and give them to the command."""
    if not submissions:
        return
    folder.mkdir(parents=True, exist_ok=True)
    stamp = now().replace(":", "-")
    if isinstance(section, Kubernetes):
        file = folder / f"kubernetes_{stamp}.yaml"
        write_text(file, files.yaml_of([submission.document for submission in submissions]))
        for submission in submissions:  # what an earlier submission has left
            answer_of([*kubectl(section.namespace), *REMOVE, "--wait=true", submission.name])
        _submitted(section, [*kubectl(section.namespace), "create", "-f", str(file)])
        for submission in submissions:
            _note(submission, section, file)
        return
    for submission in submissions:
        file = folder / f"{submission.name}_{stamp}.yaml"
        write_text(file, files.yaml_of([submission.document]))
        _submitted(section, ["sky", "jobs", "launch", "-y", "-d", "-n", submission.name, str(file)])
        _note(submission, section, file)


def _submitted(section: Manifest, command: list[str]) -> None:
    code, errors = answer_of(command)
    if code:
        message = f"{' '.join(command[:3])} fails: {errors}"
        hint = "the same command, once that is mended, submits what is missing"
        raise ConfigError(Problem(f"launch={section.schema_name}", message, hint))


def _note(submission: Submission, section: Manifest, file: Path) -> None:
    content = {
        "name": submission.name,
        "cluster": section.schema_name,
        "namespace": section.namespace if isinstance(section, Kubernetes) else None,
        "submitted": now(),
        "file": str(file.resolve()),
    }
    write_json(submission.run_dir / JOB, content)
