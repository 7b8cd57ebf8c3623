"""How a run starts and ends: attempts.jsonl has each start and end, result.json how the run ended
by itself, error.json why it failed. Also the exit codes, and the words for a failure.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.problems import REFUSED, ConfigError
from forge.rundir import history
from forge.rundir.directory import changed, resume_command
from forge.rundir.files import append_row, read_object, read_rows, write_first
from forge.rundir.history import Rows
from forge.rundir.provenance import OURS, now, revision, versions
from forge.rundir.saved_config import ATTEMPTS, newest

if TYPE_CHECKING:
    import pandas

ERROR, RESULT = "error.json", "result.json"
FAILED = 1  # exit code: something went wrong; a user's mistake is REFUSED
PATIENCE = 3.0  # seconds that a rank which lost another waits for that one to give the reason
REASONS = {
    "end": "all steps done",
    "max_time": "train.max_time is used up",
    "target": "eval.target reached",
    "patience": "no improvement for eval.patience evaluations",
}
PROLONGING = {
    "end": ("train.max_steps", "train.max_epochs"),
    "max_time": ("train.max_time",),
    "target": ("eval",),
    "patience": ("eval",),
}
"""The options whose change lets a run go on that ended for a reason."""
LESS_MEMORY = (
    "lower train.batch_size (train.global_batch_size keeps the batch of a step), train.seq_len or "
    "the model; train.activation_checkpointing=full and objective.loss_fn=chunked_cross_entropy "
    "need less memory too"
)
# What torch says, in errors of several types, when another rank of a collective is gone or silent.
LOST = re.compile(r"gloo[/:]|NCCL|Connection closed by peer|Timed out waiting")
NO_REASON = (
    "another rank is gone, or does not answer, and has not said why; "
    "what started it may know, or its log"
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """How a run ended: status, reason, final metrics, and the value of run.objective (None when it
    was never logged). higher_is_better: metrics of its objective, by their own names.
    """

    run_dir: Path
    status: str
    reason: str
    step: int
    metrics: dict[str, float]
    objective: float | None
    higher_is_better: tuple[str, ...] = ()

    def history(self, *metrics: str) -> Rows:
        """What was logged, a dict a step, or these metrics alone; see forge.rundir.history."""
        return history.history(self.run_dir, *metrics)

    def frame(self, *metrics: str) -> pandas.DataFrame:
        """The same as a data frame."""
        return history.frame(self.run_dir, *metrics)


def read_result(run_dir: Path) -> Result | None:
    """None where the run has not ended by itself, or the file is damaged."""
    try:
        content = read_object(run_dir / RESULT)
        kept = {name: content[name] for name in ("status", "reason", "step", "metrics")}
        kept["higher_is_better"] = tuple(content.get("higher_is_better", ()))
        return Result(run_dir=run_dir, objective=content["objective"]["value"], **kept)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finished(run_dir: Path) -> Result | None:
    """The result of a run that has nothing left to do: it finished, and what ended it has not been
    changed since.
    """
    result = read_result(run_dir)
    if result is None or result.status != "finished":
        return None
    prolonging = PROLONGING.get(result.reason, ("",))
    try:
        since = changed(run_dir, read_object(run_dir / RESULT)["config"])
    except (OSError, ValueError, KeyError, TypeError):
        return result  # damaged; who takes it up says so
    for change in since:
        other_start = change.key == "checkpoint.resume_from" and change.after is not None
        if change.key.startswith(prolonging) or other_start:
            return None
    return result


def attempts(run_dir: Path) -> list[dict[str, Any]]:
    return read_rows(run_dir / ATTEMPTS)


def has_begun(run_dir: Path) -> bool:
    """Whether an attempt is on record, or a record is there that cannot be read."""
    try:
        return bool(attempts(run_dir))
    except ConfigError:
        return True


def record_start(run_dir: Path, *, step: int, source: str, resume_from: str | None) -> None:
    row = {
        "event": "start",
        "time": now(),
        "step": step,
        "from": source,
        "resume_from": resume_from,
        "host": platform.node(),
        "pid": os.getpid(),
        "config": newest(run_dir).name,
        "git_revision": revision(OURS),
        "versions": versions(),
    }
    append_row(run_dir / ATTEMPTS, row)


def record_end(run_dir: Path, *, status: str, reason: str, step: int | None) -> None:
    """Record an end; a start without one was killed."""
    row = {"event": "end", "time": now(), "status": status, "reason": reason, "step": step}
    append_row(run_dir / ATTEMPTS, row)


def last_saved_step(run_dir: Path) -> int:
    """The last step that the run is known to have saved: it ended there, or went on from there.

    Checkpoints of other runs, which have absolute paths, do not count.
    """
    steps = [
        row.get("step")
        for row in attempts(run_dir)
        if row.get("event") == "end" or not os.path.isabs(str(row.get("from")))
    ]
    return max((step for step in steps if isinstance(step, int)), default=0)


def resumed_from(run_dir: Path) -> str | None:
    starts = [row for row in attempts(run_dir) if row.get("event") == "start"]
    return starts[-1]["resume_from"] if starts else None


def record_failure(
    run_dir: Path,
    *,
    rank: int,
    kind: str,
    message: str,
    said: str,
    code: int,
    trace: str = "",
    refused: bool = False,
) -> bool:
    """Write error.json unless a rank has; whether it was written. Raises OSError.

    said: what the terminal shows. code: the exit code. refused: a mistake that forge found before
    the first step.
    """
    content = {"rank": rank, "type": kind, "message": message, "traceback": trace}
    return write_first(run_dir / ERROR, {**content, "said": said, "code": code, "refused": refused})


def failure(run_dir: Path, patience: float = 0.0) -> dict[str, Any] | None:
    """The content of error.json, if it is there within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return read_object(run_dir / ERROR)
        except (OSError, ValueError):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)


def refused_for(run_dir: Path) -> str | None:
    """The mistake that a run was refused for before its first step, if it was."""
    found = failure(run_dir) or {}
    return found["message"] if found.get("refused") else None


def report_failure(
    run_dir: Path,
    error: Exception,
    *,
    step: int | None = None,
    more: str = "",
    refused: bool = False,
) -> tuple[int, bool]:
    """Say why this rank fails, in error.json and on the terminal, unless another rank has.

    Gives the exit code, and whether it was said here. step: where the run ended, when nothing was
    raised. more: added on the terminal.
    """
    logging.getLogger("forge.worker").debug("failed", exc_info=error)
    known = failure(run_dir, PATIENCE if is_lost_peer(error) else 0.0) if ranks() > 1 else None
    if known is not None:
        return int(known.get("code", FAILED)), False
    code = exit_code(error)
    said = _words(error, expected=step is not None) + more
    with suppress(OSError):  # the directory may be why it failed
        first = record_failure(
            run_dir,
            rank=rank(),
            kind=type(error).__name__,
            message=str(error),
            said=said,
            code=code,
            trace="".join(traceback.format_exception(error)),
            refused=refused,
        )
        if not first:
            return int((failure(run_dir) or {}).get("code", FAILED)), False
    print(said, file=sys.stderr, flush=True)
    return code, True


def exit_code(error: Exception) -> int:
    return REFUSED if isinstance(error, ValueError) else FAILED


def rank() -> int:
    return int(os.environ.get("RANK", "0"))


def ranks() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def killed_by(run_dir: Path, number: int, *, rank: int, ranks: int) -> str:
    name = signal.Signals(number).name
    hint = " (out of memory? lower train.batch_size)" if name == "SIGKILL" else ""
    which = "the worker" if ranks == 1 else f"rank {rank} of {ranks}"
    return f"{which} was ended by {name}{hint}; the run goes on with: {resume_command(run_dir)}"


def is_lost_peer(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is of a collective with a rank that is gone or silent."""
    while error is not None:
        kind = type(error)
        if kind.__module__.startswith("torch") and kind.__name__.startswith("Dist"):
            return True
        if LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _words(error: Exception, *, expected: bool) -> str:
    """What the terminal shows: the message where it says what to do, else the traceback."""
    said, kind = str(error), type(error).__name__
    of_memory = kind == "OutOfMemoryError" or isinstance(error, MemoryError)
    if of_memory or "can't allocate memory" in said:
        said = f"out of memory: {LESS_MEMORY}.\n{error}"
    elif ranks() > 1 and is_lost_peer(error):
        said = f"{NO_REASON}.\n{error}"
    elif not (isinstance(error, ValueError | OSError) or kind == "CallbackError" or expected):
        trace = "".join(traceback.format_exception(error))
        who = f"rank {rank()} of {ranks()}"
        end = f"{trace}\nthe run failed: {kind}"
        return f"\n{who} failed:\n{end} on {who}" if rank() else end
    return f"\nrank {rank()} of {ranks()}: {said}" if rank() else f"\n{said}"
