"""Starts and ends of a run: attempts.jsonl has each start and end, result.json a run's own end,
error.json the cause of a failure. Also the exit codes, and the words for a failure.
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
PATIENCE = 3.0  # seconds for a lost rank to give the reason, before others report the loss
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
"""Options that prolong a finished run when changed, by the reason of its end."""
LESS_MEMORY = (
    "lower train.batch_size (train.global_batch_size keeps the batch of a step), train.seq_len or "
    "the model; train.activation_checkpointing=full and objective.loss_fn=chunked_cross_entropy "
    "need less memory too"
)
# Messages of torch, in errors of several types, when another rank of a collective is lost.
LOST = re.compile(r"gloo[/:]|NCCL|Connection closed by peer|Timed out waiting")
NO_REASON = (
    "another rank is gone, or does not answer, and has not said why; "
    "what started it may know, or its log"
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The end of a run: status, reason, final metrics, and the value of run.objective.

    objective: None when never logged. higher_is_better: metrics of the run's objective, by their
    own names.
    """

    run_dir: Path
    status: str
    reason: str
    step: int
    metrics: dict[str, float]
    objective: float | None
    higher_is_better: tuple[str, ...] = ()

    def history(self, *metrics: str) -> Rows:
        """The logged metrics, a dict a step, or only the given metrics; see
        forge.rundir.history.
        """
        return history.history(self.run_dir, *metrics)

    def frame(self, *metrics: str) -> pandas.DataFrame:
        """The logged metrics as a data frame."""
        return history.history_frame(self.run_dir, *metrics)


def read_result(run_dir: Path) -> Result | None:
    """Read result.json; None where the run has not ended by itself, or the file is damaged."""
    try:
        content = read_object(run_dir / RESULT)
        fields = {name: content[name] for name in ("status", "reason", "step", "metrics")}
        fields["higher_is_better"] = tuple(content.get("higher_is_better", ()))
        return Result(run_dir=run_dir, objective=content["objective"]["value"], **fields)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def finished(run_dir: Path) -> Result | None:
    """The result of a finished run with nothing left to do.

    None where the options behind the end have changed since.
    """
    result = read_result(run_dir)
    if result is None or result.status != "finished":
        return None
    prolonging = PROLONGING.get(result.reason, ("",))
    try:
        since = changed(run_dir, read_object(run_dir / RESULT)["config"])
    except (OSError, ValueError, KeyError, TypeError):
        return result  # damaged; a command that takes the run up reports the fault
    for change in since:
        other_start = change.key == "checkpoint.resume_from" and change.after is not None
        if change.key.startswith(prolonging) or other_start:
            return None
    return result


def attempts(run_dir: Path) -> list[dict[str, Any]]:
    return read_rows(run_dir / ATTEMPTS)


def has_begun(run_dir: Path) -> bool:
    """Whether an attempt is on record, readable or not."""
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
    """The last step with a save on record: the run ended there, or resumed from the step.

    Checkpoints of other runs, with absolute paths, do not count.
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
    """Write error.json unless a rank has; return whether this rank wrote the file. Raises OSError.

    said: the text on the terminal. code: the exit code. refused: a mistake found by forge before
    the first step.
    """
    content = {"rank": rank, "type": kind, "message": message, "traceback": trace}
    return write_first(run_dir / ERROR, {**content, "said": said, "code": code, "refused": refused})


def failure(run_dir: Path, patience: float = 0.0) -> dict[str, Any] | None:
    """The content of error.json, if present within `patience` seconds."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return read_object(run_dir / ERROR)
        except (OSError, ValueError):
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)


def refused_for(run_dir: Path) -> str | None:
    """The mistake for which a run was refused before its first step, or None."""
    content = failure(run_dir) or {}
    return content["message"] if content.get("refused") else None


def report_failure(
    run_dir: Path,
    error: Exception,
    *,
    step: int | None = None,
    more: str = "",
    refused: bool = False,
) -> tuple[int, bool]:
    """Report the failure of this rank, in error.json and on the terminal, unless another rank has.

    Returns the exit code, and whether this rank reported. step: the end of the run, when nothing
    was raised. more: added on the terminal.
    """
    logging.getLogger("forge.worker").debug("failed", exc_info=error)
    earlier = failure(run_dir, PATIENCE if is_lost_peer(error) else 0.0) if ranks() > 1 else None
    if earlier is not None:
        return int(earlier.get("code", FAILED)), False
    code = exit_code(error)
    text = _words(error, expected=step is not None) + more
    with suppress(OSError):  # the directory may be the cause of the failure
        first = record_failure(
            run_dir,
            rank=rank(),
            kind=type(error).__name__,
            message=str(error),
            said=text,
            code=code,
            trace="".join(traceback.format_exception(error)),
            refused=refused,
        )
        if not first:
            return int((failure(run_dir) or {}).get("code", FAILED)), False
    print(text, file=sys.stderr, flush=True)
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
    return f"{which} was ended by {name}{hint}; the run continues with: {resume_command(run_dir)}"


def is_lost_peer(error: BaseException | None) -> bool:
    """Whether an error, or its cause, is of a collective with a gone or silent rank."""
    while error is not None:
        kind = type(error)
        if kind.__module__.startswith("torch") and kind.__name__.startswith("Dist"):
            return True
        if LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _words(error: Exception, *, expected: bool) -> str:
    """The text on the terminal: the message where the message says what to do, else the
    traceback.
    """
    text, kind = str(error), type(error).__name__
    of_memory = kind == "OutOfMemoryError" or isinstance(error, MemoryError)
    if of_memory or "can't allocate memory" in text:
        text = f"out of memory: {LESS_MEMORY}.\n{error}"
    elif ranks() > 1 and is_lost_peer(error):
        text = f"{NO_REASON}.\n{error}"
    elif not (isinstance(error, ValueError | OSError) or kind == "CallbackError" or expected):
        trace = "".join(traceback.format_exception(error))
        who = f"rank {rank()} of {ranks()}"
        end = f"{trace}\nthe run failed: {kind}"
        return f"\n{who} failed:\n{end} on {who}" if rank() else end
    return f"\nrank {rank()} of {ranks()}: {text}" if rank() else f"\n{text}"
