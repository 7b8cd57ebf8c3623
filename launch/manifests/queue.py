"""Jobs that Kubernetes and SkyPilot have been given: their names, states and end."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forge.config.problems import refusal
from forge.rundir.directory import short
from forge.rundir.files import read_object

JOB = "job.json"
SECONDS = 300.0  # time limit of a command
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
COMMANDS = {"kubernetes": "kubectl", "skypilot": "sky"}
REMOVE = ("delete", "jobset", "--ignore-not-found")


def job_of(run_dir: Path) -> dict[str, Any] | None:
    """The job of a run that Kubernetes or SkyPilot were given last; None without one."""
    try:
        content = read_object(run_dir / JOB)
    except (OSError, ValueError):
        return None
    names = [content.get("name"), content.get("namespace") or "default"]
    # A directory from elsewhere must not name an option of the command.
    usable = all(isinstance(name, str) and NAME.fullmatch(name) for name in names)
    return content if usable and content.get("cluster") in COMMANDS else None


def name_of_job(run_dir: Path) -> str:
    """The name of the last job of a run; empty without one."""
    job = job_of(run_dir)
    return job["name"] if job else ""


def states_of(run_dirs: Iterable[Path]) -> dict[Path, str]:
    """The states of JobSets, in Slurm's words; of SkyPilot's jobs, and without an answer, none."""
    jobs = [(path, job) for path in run_dirs if (job := job_of(path))]
    named = {(j["namespace"], j["name"]): p for p, j in jobs if j["cluster"] == "kubernetes"}
    states: dict[Path, str] = {}
    for namespace in {namespace for namespace, _ in named}:
        names = [name for space, name in named if space == namespace]
        query = [*kubectl(namespace), "get", "jobset", "--ignore-not-found", "-o", "json", *names]
        if shutil.which("kubectl") is None:
            return {}
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS)
            content = json.loads(done.stdout or "{}")
        except (OSError, ValueError, subprocess.TimeoutExpired):
            continue
        items = content.get("items", [content] if content.get("kind") == "JobSet" else [])
        for item in items:
            path = named.get((namespace, item["metadata"]["name"]))
            if path is not None:
                states[path] = _state(item.get("status", {}))
    return states


def _state(status: dict[str, Any]) -> str:
    ended = {"Completed": "COMPLETED", "Failed": "FAILED"}.get(status.get("terminalState", ""))
    jobs = status.get("replicatedJobsStatus", [])
    at_work = any(job.get("active") or job.get("ready") for job in jobs)
    return ended or ("RUNNING" if at_work else "PENDING")


def cancel_job(run_dir: Path) -> str:
    """End the job of a run; returns its name, and empty without a job. Raises ConfigError."""
    job = job_of(run_dir)
    if job is None:
        return ""
    words = [*kubectl(job["namespace"]), *REMOVE, "--wait=false", job["name"]]
    if job["cluster"] == "skypilot":
        words = ["sky", "jobs", "cancel", "-y", "-n", job["name"]]
    code, errors = answer_of(words)
    if code:
        raise refusal(short(run_dir), f"{words[0]} fails: {errors}", "again when it answers")
    return job["name"]


def kubectl(namespace: str | None) -> list[str]:
    return ["kubectl", *(["--namespace", namespace] if namespace else [])]


def answer_of(command: list[str], text: str | None = None) -> tuple[int, str]:
    """Exit code and errors in a line of a command."""
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS)
    except FileNotFoundError:
        return 127, f"there is no {command[0]} on PATH"
    except subprocess.TimeoutExpired:
        return 124, f"no answer in {SECONDS:g} s"
    return done.returncode, " / ".join(done.stderr.strip().splitlines())
