"""Runs as jobs of Slurm: an array for all that need the same machines, or a single job."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from forge.config.launch import Slurm
from forge.config.problems import ConfigError, Problem, refusal
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
from forge.rundir.directory import short
from forge.rundir.files import read_object, write_json
from forge.rundir.provenance import now

__all__ = [
    "NoAnswer",
    "cancel",
    "check",
    "has_ended",
    "job_of",
    "log_file",
    "reasons",
    "scripts",
    "states",
    "submit",
    "wait",
]
JOB = "job.json"
PATIENCE = 20.0  # seconds for Slurm to say whether it would take a script that is only shown
NO_ANSWER = "sbatch gives no answer"
UNREACHABLE = re.compile(
    f"{NO_ANSWER}|configuration (source|file)|Unable to contact"
    "|timed out|Zero Bytes|onnection refused"
)
KEPT = {"SLURM_CONF", "SLURM_CLUSTERS"}
OTHERS = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "TORCHELASTIC_")
RANKS = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
DEFAULTS = {"account", "constraint", "mem", "partition", "qos"}
"""Options whose SBATCH_... variable counts where the option is null."""
MEMORY = {"mem", "mem_per_cpu", "mem_per_gpu"}
VARIABLES = {"array": "ARRAY_INX", "mem": "MEM_PER_NODE", "time": "TIMELIMIT"}
"""What follows SBATCH_ where it is not the option's name."""
Points = Sequence[tuple[Path, int]]
"""Run directories, each with its number of ranks."""


class NotSubmitted(ConfigError):
    """sbatch did not take a job; those before it are in the queue."""

    def __str__(self) -> str:
        return self.problems[0].render()


def scripts(
    points: Points, section: Slurm, *, name: str, folder: Path, labels: Sequence[str] = ()
) -> list[str]:
    """The scripts that `submit` would give to sbatch, one an array; needs no Slurm. Raises
    ConfigError.

    labels: of the points, listed below the script of their array. Where there is sbatch, what
    `sbatch --test-only` says goes to stderr; when it refuses a script, all are printed first.
    """
    made, problems = [], []
    for group in _groups(points, section):
        script = text(section, group, name=name, folder=folder)
        elements = enumerate(group.members) if labels else ()
        made += [script, *(f"# element {n}: {labels[place]}" for n, place in elements)]
        refused, words = False, ""
        if shutil.which("sbatch"):
            refused, words = _tried(script, section, PATIENCE)
        if refused and not UNREACHABLE.search(words):
            problems.append(_refused(group, words, "the script above is what it is given"))
        elif words:
            says = "cannot ask Slurm" if refused else "says"
            print(f"sbatch --test-only {says}: {words}", file=sys.stderr)
    if problems:
        print("\n".join(made), flush=True)
        raise ConfigError(problems)
    return made


def check(points: Points, section: Slurm, *, name: str, folder: Path) -> None:
    """Ask Slurm whether it would take the jobs, before anything is written. Raises ConfigError,
    also for a run that is in the queue already.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        what = "this machine has no Slurm: there is no sbatch on PATH."
        fix = (
            "a machine of the cluster with sbatch and srun, or launch.dry_run=true for the scripts"
        )
        raise refusal("launch=slurm", what, fix)
    _refuse_queued([path for path, _ in points])
    problems, fix = [], "launch.dry_run=true prints what it is given"
    for group in _groups(points, section):
        script = text(section, group, name=name, folder=folder)
        refused, words = _tried(script, section, SECONDS)
        problems += [_refused(group, words, fix)] if refused else []
    if problems:
        raise ConfigError(problems)


def submit(
    points: Points, section: Slurm, *, name: str, folder: Path, trust: Sequence[str] = ()
) -> list[str]:
    """Give the runs to Slurm and return the job of each: 123, or 123_4 for an element of an array.
    Each run directory keeps its own in job.json.

    name: of the jobs. folder: for scripts and output, on a file system that all machines have.
    trust: prefixes of what the ranks may build. Raises ConfigError, also for a run that is in the
    queue already, and NotSubmitted.
    """
    groups = _groups(points, section)
    _refuse_queued([path for path, _ in points])
    folder.mkdir(parents=True, exist_ok=True)
    jobs: dict[int, str] = {}
    for group in groups:
        ranks = [Rank(points[place][0], trust) for place in group.members]
        ids = _submitted(ranks, section, group, name=name, folder=folder)
        for place, job in zip(group.members, ids, strict=True):
            jobs[place] = job
            content = {"job": job, "submitted": now(), "folder": str(folder.resolve())}
            write_json(points[place][0] / JOB, content)
    return [jobs[place] for place in range(len(points))]


def job_of(run_dir: Path) -> str | None:
    """The last job that was submitted for a run."""
    return _last(run_dir).get("job")


def log_file(run_dir: Path, rank: int = 0) -> Path | None:
    """The output of a rank of the last job of a run, whether or not it is there yet."""
    last = _last(run_dir)
    return Path(last["folder"]) / f"{last['job']}_{rank}_log.out" if "folder" in last else None


def _last(run_dir: Path) -> dict[str, str]:
    try:
        return read_object(run_dir / JOB)
    except (OSError, ValueError):
        return {}


def _groups(points: Points, section: Slurm) -> list[Group]:
    most = largest_array() if len(points) > 1 else None
    return grouped([world for _, world in points], section, most=most)


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
    # Without this submitit has defaults of its own for what is None.
    executor.parameters.update({key: None for key, value in made.items() if value is None})
    try:
        with _clean_environment(section), redirect_stderr(io.StringIO()):
            return [job.job_id for job in executor.submit_array(ranks)]
    except (FailedJobError, FailedSubmissionError) as error:
        what = f"sbatch does not take {name}: {_one_line(str(error))}"
        fix = "the same command, once that is mended, submits what is missing"
        raise NotSubmitted([Problem(key="launch=slurm", what=what, fix=fix)]) from error


def _tried(script: str, section: Slurm, seconds: float) -> tuple[bool, str]:
    """Whether `sbatch --test-only`, which submits nothing, refuses a script, and what it says."""
    command = ["sbatch", "--test-only"]
    try:
        with _clean_environment(section):
            done = subprocess.run(
                command, input=script, capture_output=True, text=True, timeout=seconds
            )
    except subprocess.TimeoutExpired:
        return True, f"{NO_ANSWER} in {seconds:g} s"
    return done.returncode != 0, _one_line(done.stderr)


def _refused(group: Group, words: str, fix: str) -> Problem:
    needs = group.needs
    machines = f"nodes={needs.nodes} ntasks-per-node={needs.tasks_per_node}"
    what = f"sbatch refuses a job with {machines} gpus-per-node={needs.gpus_per_node}: {words}"
    return Problem(key="launch=slurm", what=what, fix=fix)


def _one_line(text: str) -> str:
    lines = text.strip().splitlines()
    return " / ".join(line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)


@contextmanager
def _clean_environment(section: Slurm) -> Iterator[None]:
    """Without the variables of a job or launcher around this process, which sbatch hands on, and
    those that sbatch takes before a line of the script.
    """
    options = {name for name in DEFAULTS if getattr(section, name) is not None} | set(
        given(section)
    )
    options |= {"wait", *SOURCES} - DEFAULTS
    options |= MEMORY if options & MEMORY else set()
    options |= {"exclusive"} if section.exclusive else set()
    removed = RANKS | {f"SBATCH_{VARIABLES.get(name, name.upper())}" for name in options}
    removed |= {name for name in os.environ if name.startswith(OTHERS) and name not in KEPT}
    before = {name: os.environ.pop(name) for name in removed if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)
