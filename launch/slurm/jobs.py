"""Runs as jobs of Slurm: an array for all that need the same machines, or a single job."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from forge.config.launch import Slurm
from forge.config.problems import ConfigError, Problem, refusal
from forge.config.sbatch import SOURCES, given
from forge.launch.slurm import queue
from forge.launch.slurm.script import Group, grouped, sbatch_text, submitit_parameters
from forge.launch.slurm.task import Rank
from forge.rundir.directory import short
from forge.rundir.files import read_object, write_json
from forge.rundir.provenance import now

JOB = "job.json"
UNREACHABLE = re.compile(
    "configuration (source|file)|Unable to contact|timed out|Zero Bytes|onnection refused"
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
    """A job refused by sbatch; earlier jobs are in the queue."""

    def __str__(self) -> str:
        return self.problems[0].render()


def scripts(
    points: Points, section: Slurm, *, name: str, folder: Path, labels: Sequence[str] = ()
) -> list[str]:
    """The scripts of `submit_jobs` for sbatch, one script an array; needs no Slurm. With sbatch on
    this machine, the answer of `sbatch --test-only` goes to stderr; for a refused script all
    scripts are printed before ConfigError is raised. labels: of the points, listed below their
    script.
    """
    texts, problems = [], []
    for group in _groups(points, section):
        script = sbatch_text(section, group, name=name, folder=folder)
        elements = enumerate(group.members) if labels else ()
        texts += [script, *(f"# element {n}: {labels[index]}" for n, index in elements)]
        if not shutil.which("sbatch"):
            continue
        try:
            code, words = _tried(script, section)
        except queue.NoAnswer as error:
            code, words = -1, error.problems[0].what
        if code > 0 and not UNREACHABLE.search(words):
            problems.append(_refused(group, words, "the script above is what it is given"))
        else:
            says = "cannot ask Slurm" if code else "says"
            print(f"sbatch --test-only {says}: {words}", file=sys.stderr)
    if problems:
        print("\n".join(texts), flush=True)
        raise ConfigError(problems)
    return texts


def check_accepted(points: Points, section: Slurm, *, name: str, folder: Path) -> None:
    """Ask Slurm to accept the jobs, before anything is written. Raises ConfigError for a refused
    job, also for a run already in the queue.
    """
    if shutil.which("sbatch") is None or shutil.which("srun") is None:
        message = "this machine has no Slurm: there is no sbatch on PATH."
        hint = (
            "a machine of the cluster with sbatch and srun, or launch.dry_run=true for the scripts"
            "; forge.check plan.device=h100 plans it from here"
        )
        raise refusal("launch=slurm", message, hint)
    _refuse_queued(points)
    problems, hint = (
        [],
        "launch.dry_run=true prints what it is given; forge.check plan.device=h100 plans it",
    )
    for group in _groups(points, section):
        code, words = _tried(sbatch_text(section, group, name=name, folder=folder), section)
        problems += [_refused(group, words, hint)] if code else []
    if problems:
        raise ConfigError(problems)


def submit_jobs(
    points: Points, section: Slurm, *, name: str, folder: Path, trust: Sequence[str] = ()
) -> list[str]:
    """Give the runs to Slurm and return the job of each: 123, or 123_4 for an element of an array.
    Each run directory keeps its job in job.json. folder: for scripts and output. Raises
    NotSubmitted, and ConfigError, also for a run already in the queue.
    """
    groups = _groups(points, section)
    _refuse_queued(points)
    folder.mkdir(parents=True, exist_ok=True)
    jobs: dict[int, str] = {}
    for group in groups:
        ranks = [Rank(points[index][0], trust) for index in group.members]
        ids = _submitted(ranks, section, group, name=name, folder=folder)
        for index, job in zip(group.members, ids, strict=True):
            jobs[index] = job
            content = {"job": job, "submitted": now(), "folder": str(folder.resolve())}
            write_json(points[index][0] / JOB, content)
    return [jobs[index] for index in range(len(points))]


def slurm_job(run_dir: Path) -> str | None:
    return _last(run_dir).get("job")


def job_log(run_dir: Path, rank: int = 0) -> Path | None:
    """The output file of a rank of a run's last job, also before the file exists."""
    last = _last(run_dir)
    return Path(last["folder"]) / f"{last['job']}_{rank}_log.out" if "folder" in last else None


def _last(run_dir: Path) -> dict[str, str]:
    try:
        return read_object(run_dir / JOB)
    except (OSError, ValueError):
        return {}


def _groups(points: Points, section: Slurm) -> list[Group]:
    most = queue.largest_array() if len(points) > 1 else None
    return grouped([world for _, world in points], section, most=most)


def _refuse_queued(points: Points) -> None:
    jobs = {job: path for path, _ in points if (job := slurm_job(path)) is not None}
    problems = [
        Problem(
            f"run.dir={short(jobs[job])}",
            f"the run is in Slurm's queue already: job {job} is {state}.",
            f"wait for it, or end it: scancel {job}",
        )
        for job, state in queue.job_states(jobs).items()
        if not queue.has_ended(state)
    ]
    if problems:
        raise ConfigError(problems)


def _submitted(
    ranks: Sequence[Rank], section: Slurm, group: Group, *, name: str, folder: Path
) -> list[str]:
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    executor = submitit.AutoExecutor(folder=folder.resolve(), cluster="slurm")
    options = submitit_parameters(section, group.needs, name=name, folder=folder.resolve())
    executor.update_parameters(**{f"slurm_{key}": value for key, value in options.items()})
    # Without explicit None values submitit takes its own defaults.
    executor.parameters.update({key: None for key, value in options.items() if value is None})
    try:
        with _clean_environment(section), redirect_stderr(io.StringIO()):
            return [job.job_id for job in executor.submit_array(ranks)]
    except (FailedJobError, FailedSubmissionError) as error:
        message = f"sbatch does not take {name}: {queue.one_line(str(error))}"
        hint = "the same command, once that is mended, submits what is missing"
        raise NotSubmitted(Problem("launch=slurm", message, hint)) from error


def _tried(script: str, section: Slurm) -> tuple[int, str]:
    with _clean_environment(section):
        code, _, words = queue.run_command(["sbatch", "--test-only"], script)
    return code, words


def _refused(group: Group, words: str, fix: str) -> Problem:
    needs = group.needs
    machines = f"nodes={needs.nodes} ntasks-per-node={needs.tasks_per_node}"
    message = f"sbatch refuses a job with {machines} gpus-per-node={needs.gpus_per_node}: {words}"
    return Problem("launch=slurm", message, fix)


@contextmanager
def _clean_environment(section: Slurm) -> Iterator[None]:
    """Remove the variables of a job or launcher around this process, handed on by sbatch, and the
    variables preferred by sbatch to a line of the script.
    """
    options = {name for name in DEFAULTS if getattr(section, name) is not None}
    options |= {"wait", *SOURCES} - DEFAULTS | set(given(section))
    options |= MEMORY if options & MEMORY else set()
    options |= {"exclusive"} if section.exclusive else set()
    removed = RANKS | {f"SBATCH_{VARIABLES.get(name, name.upper())}" for name in options}
    removed |= {name for name in os.environ if name.startswith(OTHERS) and name not in KEPT}
    saved = {name: os.environ.pop(name) for name in removed if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)
