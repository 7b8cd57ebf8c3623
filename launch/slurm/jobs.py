"""Runs as jobs of Slurm: an array for all that need the same machines, a plain job for one alone."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from forge.config.launch import Slurm
from forge.config.problems import ConfigError, Problem
from forge.config.sbatch import SOURCES, given
from forge.launch.slurm.queue import (
    SECONDS,
    NoAnswer,
    cancel,
    has_ended,
    largest_array,
    reasons,
    states,
    wait,
)
from forge.launch.slurm.script import Group, grouped, parameters, text
from forge.launch.slurm.task import Rank
from forge.rundir.directory import short, write_json
from forge.rundir.provenance import now
from forge.rundir.stored import read_json

__all__ = [
    "NoAnswer",
    "NotSubmitted",
    "cancel",
    "check",
    "has_ended",
    "job_of",
    "log_file",
    "reasons",
    "scripts",
    "states",
    "submit",
    "verdict",
    "wait",
]
JOB = "job.json"
KEPT = {"SLURM_CONF", "SLURM_CLUSTERS"}
DEFAULTS = {
    "account",
    "constraint",
    "mem",
    "partition",
    "qos",
}  # that SBATCH_... may have, where no option says otherwise
MEMORY = {"mem", "mem_per_cpu", "mem_per_gpu"}
UNLIKE = {
    "array": "ARRAY_INX",
    "mem": "MEM_PER_NODE",
    "time": "TIMELIMIT",
}  # variables that are not called like their option
OTHERS = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "TORCHELASTIC_")
RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
PATIENCE = 20.0  # seconds for Slurm to say whether it would take a script that is only shown
NO_ANSWER = "sbatch gives no answer"
UNASKED = (
    NO_ANSWER,
    "configuration source",
    "configuration file",
    "Unable to contact slurm",
    "timed out",
    "Zero Bytes",
    "onnection refused",
)
Points = Sequence[tuple[Path, int]]
"""Run directories, each with its number of ranks."""


class NotSubmitted(ConfigError):
    """sbatch did not take a job, for a reason that it says; those before it are in the queue."""

    def __str__(self) -> str:
        return self.problems[0].render()


def scripts(
    points: Points, section: Slurm, *, name: str, folder: Path, labels: Sequence[str] = ()
) -> list[str]:
    """The scripts that `submit` would give to sbatch, one an array; needs no Slurm. Raises
    ConfigError.

    labels: of the points, which say below each script what the elements of its array are. Where
    this machine has sbatch, what `sbatch --test-only` says of each goes to stderr; when it refuses
    one, they are printed here, before that is raised.
    """
    made, problems = [], []
    for group in _groups(points, section):
        script = text(section, group, name=name, folder=folder)
        said = [
            f"# element {element}: {labels[place]}"
            for element, place in enumerate(group.members)
            if labels
        ]
        made.append("\n".join([script, *said]))
        if shutil.which("sbatch"):
            problems += verdict(script, group, section)
    if problems:
        print("\n".join(made), flush=True)
        raise ConfigError(problems)
    return made


def verdict(script: str, group: Group, section: Slurm) -> list[Problem]:
    """What `sbatch --test-only` says of a script that is shown: a refusal is returned, and all else
    goes to stderr.
    """
    refused, said = _tried(script, section, PATIENCE)
    if refused and not any(words in said for words in UNASKED):
        return [_refusal(group, said, "the script above is what it is given")]
    print(
        f"sbatch --test-only {'cannot ask Slurm' if refused else 'says'}: {said}", file=sys.stderr
    )
    return []


def check(points: Points, section: Slurm, *, name: str, folder: Path) -> None:
    """Ask Slurm whether it would take the jobs, before anything is written. Raises ConfigError with
    what it says of each.

    A run directory that is there already must not be in the queue.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        fix = "type it on a machine of the cluster that has sbatch and srun; launch.dry_run=true prints the scripts anywhere"
        raise ConfigError(
            [
                Problem(
                    key="launch=slurm",
                    what="this machine has no Slurm: there is no sbatch on PATH.",
                    fix=fix,
                )
            ]
        )
    _refuse_queued([path for path, _ in points])
    problems = []
    for group in _groups(points, section):
        refused, said = _tried(text(section, group, name=name, folder=folder), section, SECONDS)
        problems += (
            [_refusal(group, said, "launch.dry_run=true prints what it is given")]
            if refused
            else []
        )
    if problems:
        raise ConfigError(problems)


def submit(
    points: Points, section: Slurm, *, name: str, folder: Path, trust: Sequence[str] = ()
) -> list[str]:
    """Give the runs to Slurm and return the job of each: 123, or 123_4 for an element of an array.
    Does not wait for them.

    name: of the jobs. folder: for the scripts and the output of each rank, on a file system that
    all machines have. trust: prefixes of what the ranks may build. Each run directory keeps its job
    in job.json, as soon as Slurm has it. Raises ConfigError, for a run too that is in the queue
    already, and NotSubmitted.
    """
    groups = _groups(points, section)
    _refuse_queued([path for path, _ in points])
    folder.mkdir(parents=True, exist_ok=True)
    jobs: dict[int, str] = {}
    for group in groups:
        given = _submitted(
            [Rank(points[place][0], trust) for place in group.members],
            section,
            group,
            name=name,
            folder=folder,
        )
        for place, job in zip(group.members, given, strict=True):
            jobs[place] = job
            write_json(
                points[place][0] / JOB,
                {"job": job, "submitted": now(), "folder": str(folder.resolve())},
            )
    return [jobs[place] for place in range(len(points))]


def job_of(run_dir: Path) -> str | None:
    """The last job that was submitted for a run."""
    try:
        return str(read_json(run_dir / JOB)["job"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def log_file(run_dir: Path, rank: int = 0) -> Path | None:
    """What the last job of a run has printed on a rank, whether or not it has yet."""
    try:
        known = read_json(run_dir / JOB)
        return Path(known["folder"]) / f"{known['job']}_{rank}_log.out"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _groups(points: Points, section: Slurm) -> list[Group]:
    return grouped(
        [world for _, world in points], section, most=largest_array() if len(points) > 1 else None
    )


def _refuse_queued(run_dirs: Sequence[Path]) -> None:
    jobs = {job: run_dir for run_dir in run_dirs if (job := job_of(run_dir)) is not None}
    problems = [
        Problem(
            key=f"run.dir={short(jobs[job])}",
            what=f"the run is in Slurm's queue already: job {job} is {state}.",
            fix=f"wait for it, or end it: scancel {job}",
        )
        for job, state in states(jobs).items()
        if not has_ended(state)
    ]
    if problems:
        raise ConfigError(problems)


def _submitted(
    ranks: Sequence[Rank], section: Slurm, group: Group, *, name: str, folder: Path
) -> list[str]:
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.AutoExecutor(folder=folder.resolve(), cluster="slurm")
    made = parameters(section, group.needs, name=name)
    executor.update_parameters(**{f"slurm_{key}": value for key, value in made.items()})
    executor.parameters.update(
        {key: None for key, value in made.items() if value is None}
    )  # or its own default would stand
    try:
        with _outside_of_jobs(section), redirect_stderr(io.StringIO()):
            return [job.job_id for job in executor.submit_array(ranks)]
    except (FailedJobError, FailedSubmissionError) as error:
        what, fix = (
            f"sbatch does not take {name}: {_said(str(error))}",
            "the same command, once that is mended, submits what is missing",
        )
        raise NotSubmitted([Problem(key="launch=slurm", what=what, fix=fix)]) from error


def _tried(script: str, section: Slurm, seconds: float) -> tuple[bool, str]:
    """Whether `sbatch --test-only`, which submits nothing, refuses a script, and what it says."""
    try:
        with _outside_of_jobs(section):
            done = subprocess.run(
                ["sbatch", "--test-only"],
                input=script,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
    except subprocess.TimeoutExpired:
        return True, f"{NO_ANSWER} in {seconds:g} s"
    return done.returncode != 0, _said(done.stderr)


def _refusal(group: Group, said: str, fix: str) -> Problem:
    needs = group.needs
    asked = f"nodes={needs.nodes} ntasks-per-node={needs.tasks_per_node} gpus-per-node={needs.gpus_per_node}"
    return Problem(key="launch=slurm", what=f"sbatch refuses a job with {asked}: {said}", fix=fix)


def _said(text: str) -> str:
    """What sbatch says, on one line."""
    return " / ".join(
        line.removeprefix("sbatch: ").removeprefix("error: ") for line in text.strip().splitlines()
    )


@contextmanager
def _outside_of_jobs(section: Slurm) -> Iterator[None]:
    """Without what a job or a launcher around this process has set, which sbatch hands on, and what
    would overrule the script.
    """
    overruling = _overruling(section)
    set_aside = {
        name: os.environ.pop(name)
        for name in list(os.environ)
        if _of_another(name) or name in overruling
    }
    try:
        yield
    finally:
        os.environ.update(set_aside)


def _of_another(name: str) -> bool:
    return name in RANKS or (name.startswith(OTHERS) and name not in KEPT)


def _overruling(section: Slurm) -> set[str]:
    """Variables that sbatch takes before a line of the script: those of what forge sets always, and
    of what an option says.
    """
    said = {name for name in DEFAULTS if getattr(section, name) is not None} | set(given(section))
    said |= (
        {"wait", *SOURCES} - DEFAULTS
        | (MEMORY if said & MEMORY else set())
        | ({"exclusive"} if section.exclusive else set())
    )
    return {f"SBATCH_{UNLIKE.get(name, name.upper())}" for name in said}
