"""`python -m forge.launch.slurm.restart FOLDER CODE`: the end of a script of which srun has failed.

With launch.max_restarts a job of which a rank has died is queued again, without that rank's node.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from forge.config.launch import Slurm
from forge.config.numbers import counted
from forge.config.problems import REFUSED
from forge.config.run import least_ranks
from forge.launch.local.restarts import STUCK
from forge.launch.slurm import queue
from forge.launch.slurm.script import START
from forge.launch.slurm.task import UNTIL_ENDED, Rank, job_of_this_process
from forge.rundir import outcome, saved_config
from forge.rundir.files import append_row
from forge.rundir.on_end import run_on_end
from forge.rundir.provenance import now
from forge.rundir.saved_config import ATTEMPTS, CONFIG, newest
from forge.rundir.signs import silent_ranks
from forge.rundir.wall_clock.record import UNBEGUN, read_record

ENDED = re.compile(r"^srun: error: (\S+): (tasks? [\d,-]+): (.+)$", re.MULTILINE)
BY_SIGNAL = ("Killed", "Segmentation fault", "Bus error", "Illegal instruction")
UNUSABLE = ("down", "drain", "drng", "fail", "unk", "err", "inval", "no_resp", "plnd")
SECONDS = 20.0  # for a job to be in the queue, where its nodes can be changed


@dataclass(frozen=True, kw_only=True)
class Death:
    """Why a start ended. node: the node of the rank that died, None if no node is to blame."""

    cause: str
    node: str | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Queue the job of this script again, or say why not; returns the exit code of srun."""
    from submitit.core.utils import DelayedSubmission, JobPaths

    folder, number = sys.argv[1:] if argv is None else argv
    code, job = int(number), job_of_this_process()
    paths = JobPaths(folder, job_id=job, task_id=0)
    rank: Any = DelayedSubmission.load(paths.submitted_pickle).function
    assert isinstance(rank, Rank)
    run_dir = Path(rank.run_dir)
    config = saved_config.load_config(newest(run_dir), trust=rank.trust)
    most = config.launch.max_restarts if isinstance(config.launch, Slurm) else 0
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it tells the script of a job queued again
    try:
        fields = queue.job_fields(job)
        why_not = _final(run_dir, fields, code, most)
        first = saved_config.load_config(run_dir / CONFIG, trust=rank.trust)
        ranks = (least_ranks(config.run), prod(first.parallel.degrees().values()))
        why_not = why_not or _queue_again(run_dir, job, fields, paths.stdout, most, ranks)
    except queue.NoAnswer as error:
        why_not = error.problems[0].what
    if not why_not:
        time.sleep(UNTIL_ENDED)
        return code
    _say(f"not started again: {why_not}")
    run_on_end(run_dir, config.run.on_end, code)
    return code


def _final(run_dir: Path, fields: dict[str, str], code: int, most: int) -> str:
    """Why the run is not started again; empty for a run of which a rank has died."""
    if (state := fields.get("JobState")) != "RUNNING":
        return f"the job is {state}"
    if code == REFUSED or outcome.refused_for(run_dir):
        return "a mistake in the options"
    if (result := outcome.read_result(run_dir)) is not None:
        return f"the run has ended by itself ({result.reason})"
    steps = [row.get("reached", UNBEGUN) for row in _restarts(run_dir)]
    if len(steps) >= most:
        return f"launch.max_restarts={most} is used up"
    stuck, furthest = starts_in_vain([*steps, _reached(run_dir)])
    where = "its first step" if furthest < 0 else f"step {furthest}"
    in_vain = f"{STUCK} starts in a row have not come beyond {where}"
    return in_vain if stuck >= STUCK else ""


def _queue_again(
    run_dir: Path,
    job: str,
    fields: dict[str, str],
    log: Path,
    most: int,
    ranks: tuple[int, int] = (0, 0),
) -> str:
    """Queue the job again, without the node of a rank that died; returns why it is not. ranks:
    the least and the most of an elastic run, on as many nodes as are there; 0 = all.
    """
    death = cause_of_death(run_dir, log, fields)
    given = fields.get("ExcNodeList", "")
    excluded = [] if given in queue.NO_REASON else [given]
    nodes, without, (least, full) = int(fields["NumNodes"]), "", ranks
    per_node = max(_ranks(nodes) // nodes, 1)
    bad = {death.node} if death.node else set()
    usable = _other_nodes(fields, {*bad, *_names(",".join(excluded))}) if bad or least else nodes
    if death.node and usable < (-(-least // per_node) or nodes):
        without = f", {death.node} included: there are no nodes in its place"
    elif death.node:
        excluded.append(death.node)
        without = f", without node {death.node}"
    target = min(usable, full // per_node) if least else nodes
    count = target if target * per_node >= least else nodes
    without += f", on {counted(count, 'node')}" if count != nodes else ""
    number = f"restart {len(_restarts(run_dir)) + 1} of launch.max_restarts={most}"
    _say(f"{death.cause}; queueing the job again{without} ({number})")
    row = {"event": "restart", "time": now(), "status": "queued again", "reason": death.cause}
    append_row(run_dir / ATTEMPTS, row | {"reached": _reached(run_dir), "excluded": excluded})
    code, _, error = queue.run_command(["scontrol", "requeue", job])
    if code:
        return f"scontrol requeue {job}: {error}"
    fewer = [f"NumNodes={count}", f"NumTasks={count * per_node}"] if count != nodes else []
    if death.node in excluded or fewer:
        _change(job, [f"ExcNodeList={','.join(excluded)}", *fewer])
    return ""


def _change(job: str, values: Sequence[str]) -> None:
    """Change the nodes of a job that is on its way back to the queue."""
    deadline, error = time.monotonic() + SECONDS, ""
    while time.monotonic() < deadline:
        code, _, error = queue.run_command(["scontrol", "update", f"JobId={job}", *values])
        if not code:
            return
        time.sleep(0.1)
    _say(f"{' '.join(values)} could not be set: {error}")


def cause_of_death(run_dir: Path, log: Path, fields: dict[str, str]) -> Death:
    """Who died first: by srun's words in the output of this start, else by signs of life."""
    said = log.read_text(errors="replace") if log.exists() else ""
    said = said.rpartition(START.partition("{")[0])[2]
    first = ENDED.search(said)
    if first and first[3].startswith(BY_SIGNAL):
        node = None if "[" in first[1] or "," in first[1] else first[1]
        return Death(cause=f"{first[2]} on {first[1]}: {first[3]}", node=node)
    for words in silent_ranks(run_dir):
        number = int(words.split()[1])
        return Death(cause=words, node=_node_of(number, fields))
    failure = outcome.failure(run_dir) or {}
    if "message" in failure:
        return Death(cause=f"rank {failure['rank']} failed: {failure['type']}")
    return Death(cause=f"{first[2]} on {first[1]}: {first[3]}" if first else "srun has failed")


def starts_in_vain(steps: Iterable[int]) -> tuple[int, int]:
    """The last starts without a step beyond the furthest one, and that step; steps: reached."""
    stuck, furthest = 0, UNBEGUN
    for step in steps:
        stuck = 0 if step > furthest else stuck + 1
        furthest = max(step, furthest)
    return stuck, furthest


def _node_of(rank: int, fields: dict[str, str]) -> str | None:
    """The node of a rank, with as many ranks on each."""
    nodes = _names(fields.get("NodeList", ""))
    per_node = max(_ranks(len(nodes)) // max(len(nodes), 1), 1)
    return nodes[rank // per_node] if rank // per_node < len(nodes) else None


def _ranks(nodes: int) -> int:
    """The ranks of this start; one a node where Slurm does not say."""
    return int(os.environ.get("SLURM_NTASKS", nodes))


def _names(nodes: str) -> list[str]:
    """The nodes of a list like node[1-3,7], in their order."""
    command = ["scontrol", "show", "hostnames", nodes]
    return queue.run_command(command)[1].split() if nodes else []


def _other_nodes(fields: dict[str, str], excluded: set[str]) -> int:
    """The nodes of the job's partition in use, or ready for it."""
    nodes = ["sinfo", "--noheader", "--Node", f"--partition={fields['Partition']}"]
    lines = queue.run_command([*nodes, "--format=%N %t"])[1].splitlines()
    pairs = [line.split() for line in lines]
    return len({name for name, state in pairs if not state.startswith(UNUSABLE)} - excluded)


def _reached(run_dir: Path) -> int:
    return (read_record(run_dir) or {}).get("step", UNBEGUN)


def _restarts(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in outcome.attempts(run_dir) if row.get("event") == "restart"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
