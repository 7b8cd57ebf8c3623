"""`python -m forge.worker RUN_DIR [TRUSTED ...]`: one rank of a run. It reads the directory and
composes nothing.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from forge.config.problems import ConfigError
from forge.launch.local import threads
from forge.launch.local.processes import FAILED, PARENT, REFUSED
from forge.parallel.rendezvous import Command, Rendezvous
from forge.plan.launcher_environment import LauncherEnvironment
from forge.rundir import directory, outcome
from forge.rundir.checkpoints import NoneLeft, newest_usable, saved_folder
from forge.rundir.files import write_json
from forge.rundir.lock import InUse, Lock
from forge.rundir.outcome import ERROR, RESULT, Result
from forge.rundir.saved_config import CONFIG, is_run, newest

if TYPE_CHECKING:
    from forge.training.loop import Loop

REASONS = {
    "end": "all steps are done",
    "max_time": "train.max_time is used up",
    "target": "eval.target is reached",
}
REASONS["patience"] = "there was no improvement for eval.patience evaluations"
LOWER = "lower train.batch_size (train.global_batch_size keeps the batch of a step), train.seq_len or the model; "
LOWER += "train.activation_checkpointing=full and objective.loss_fn=chunked_cross_entropy need less memory too"
# What torch says, in errors of several types, when the other side of a collective is gone, or is
# not heard.
LOST = re.compile(r"gloo[/:]|NCCL|Connection closed by peer|Timed out waiting")
NO_REASON = "another rank is gone, or does not answer, and has not said why; what started it may know, or its log"


def main(argv: Sequence[str] | None = None, rendezvous: Rendezvous | None = None) -> int:
    """Train what the run directory says; the exit code is 0, 1 for a failure, 2 for the user's
    mistake, 128+n for a signal.

    What it may build comes from who starts it, never from the directory: the prefixes that the
    command trusts are its arguments.
    """
    place, *trust = sys.argv[1:] if argv is None else argv
    run_dir = Path(place).resolve()
    if not is_run(run_dir):
        print(f"{run_dir} is no run directory: it has no {CONFIG}", file=sys.stderr)
        return REFUSED
    if ranks() > 1:
        rendezvous = rendezvous or Rendezvous()
    return _lead(run_dir, trust, rendezvous) if is_main() else _follow(rendezvous)


def together(
    found: LauncherEnvironment, lead: Callable[[Rendezvous], int], rendezvous: Rendezvous
) -> int:
    """One rank of those that torchrun or srun started: the main one does what `lead` says, which
    may end in `main`; the others follow.
    """
    os.environ.update({**threads.of_task(os.environ), **found.variables()})
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # torchrun itself asks for no such thing
    if not is_main():
        code = _follow(rendezvous)
        if rendezvous.command.run_dir and outcome.refusal(Path(rendezvous.command.run_dir)):
            rendezvous.leave()  # the main rank waits for it
        return code
    code = REFUSED
    try:
        code = lead(rendezvous)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FAILED
    finally:
        with suppress(ValueError, RuntimeError):  # of others who did not come
            rendezvous.send(Command(code=code))
    return code


def is_main() -> bool:
    """Whether this rank speaks and writes for all."""
    return os.environ.get("RANK", "0") == "0"


def ranks() -> int:
    """How many there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def _lead(run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None) -> int:
    """The main rank: it takes the directory, and tells the others what to do."""

    def end(code: int) -> int:
        if rendezvous is not None:
            rendezvous.send(Command(code=code))
        return code

    try:
        lock = Lock(run_dir).acquire()
    except (InUse, ConfigError) as error:
        print(error, file=sys.stderr)
        return end(REFUSED)
    with lock, log_file(run_dir):
        done = outcome.finished(run_dir)
        if done is not None:
            print(
                f"this run is finished: {REASONS.get(done.reason, done.reason)}, after {done.step} steps; {_prolong(run_dir, done)}"
            )
            return end(0)
        return _guarded(run_dir, trust, rendezvous)


def _follow(rendezvous: Rendezvous | None) -> int:
    """Any other rank."""
    assert rendezvous is not None
    try:
        command = rendezvous.receive()
    except (ValueError, RuntimeError) as error:
        print(f"the main rank could not be heard: {error}", file=sys.stderr)
        return FAILED
    if command.code is not None:
        return command.code
    run_dir = Path(command.run_dir)
    if not is_run(run_dir):
        print(
            f"rank {os.environ['RANK']} on {platform.node()} does not see {run_dir}; all hosts need one file system",
            file=sys.stderr,
        )
        return FAILED
    with log_file(run_dir):
        return _guarded(run_dir, command.trust, rendezvous)


def _guarded(run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None) -> int:
    """Train, and turn whatever goes wrong into one message, error.json and an exit code."""
    report = Report(run_dir)
    try:
        if is_main():
            (run_dir / ERROR).unlink(
                missing_ok=True
            )  # of an earlier start: who finds one from here on knows why this one fails
        if is_main() and rendezvous is not None:
            rendezvous.send(Command(run_dir=str(run_dir), trust=list(trust)))
        return _train(run_dir, trust, rendezvous, report)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        return report(error)


def _train(
    run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None, report: Report
) -> int:
    from forge.training.assemble import assemble
    from forge.training.summary import summary
    from forge.training.writing import say

    parts = assemble(run_dir, rendezvous, trust=trust)
    if parts.ranks.main:
        (run_dir / RESULT).unlink(missing_ok=True)  # of an earlier start, now that this one goes on
    loop, config = parts.loop, parts.config
    loop.on_failure = report
    report.starts(loop)
    reason = loop.run()
    code = 128 + signal.Signals.__members__.get(reason, signal.SIGTERM) if loop.interrupted else 0
    if not parts.ranks.main:
        parts.ranks.close()
        return FAILED if parts.guard.fault else code
    metrics: dict[str, float] = {**parts.logger.last, "tokens_per_second": parts.logger.mean_rate()}
    if parts.evaluation is not None and parts.evaluation.at is not None:
        metrics |= {f"eval/{name}": value for name, value in parts.evaluation.metrics.items()} | {
            "eval/step": parts.evaluation.at
        }
    known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    status = "failed" if parts.guard.fault else "stopped" if loop.interrupted else "finished"
    result = {
        "status": status,
        "reason": reason,
        "step": loop.state.step,
        "tokens": loop.state.tokens,
        "config": newest(run_dir).name,
    }
    result |= {
        "objective": {"name": config.run.objective, "value": known.get(str(config.run.objective))},
        "metrics": known,
    }
    write_json(run_dir / RESULT, result)
    if parts.guard.fault:
        report(RuntimeError(parts.guard.fault), step=loop.state.step)
        parts.ranks.close()
        return FAILED
    outcome.record_end(run_dir, status=status, reason=reason, step=loop.state.step)
    if status == "finished" and config.run.objective not in known:
        print(
            f"run.objective={config.run.objective} was never logged; logged were {', '.join(known)}",
            file=sys.stderr,
        )
    if config.metrics.enable_console:
        say(summary(parts, reason, run_dir))
    parts.ranks.close()
    return code


class Report:
    """Says why this rank fails, once and as early as it is known: in error.json, unless another
    rank has, and on the terminal.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.code: int | None = None
        self._loop: Loop | None = None
        self._first = 0

    def starts(self, loop: Loop) -> None:
        """The run is put together, and begins at the step that the loop is at."""
        self._loop, self._first = loop, loop.state.step

    def __call__(self, error: BaseException, step: int | None = None) -> int:
        """The exit code. step: where the run ended, when the reason is known but nothing was
        raised.
        """
        if self.code is None and isinstance(error, Exception):
            self.code = self._tell(error, step)
        return FAILED if self.code is None else self.code

    def _tell(self, error: Exception, step: int | None) -> int:
        logging.getLogger("forge.worker").debug("failed", exc_info=error)
        others = (
            outcome.failure(self.run_dir, outcome.PATIENCE if is_lost_peer(error) else 0.0)
            if ranks() > 1
            else None
        )
        if others is not None:
            return int(
                others.get("code", FAILED)
            )  # another rank has said why; this one only lost its peer
        trace = "".join(traceback.format_exception(error))
        rank, code = (
            int(os.environ.get("RANK", 0)),
            REFUSED if isinstance(error, ValueError) else FAILED,
        )
        said = _words(error, trace, step, f"rank {rank} of {ranks()}" if rank else "")
        with suppress(OSError):  # the directory may be why it failed
            goes_on = self._has_begun() and not isinstance(error, NoneLeft)
            refused = code == REFUSED and not goes_on and _raised_by_forge(error)
            kind, said = (
                type(error).__name__,
                said if refused else f"{said}{outcome.place(self.run_dir, goes_on=goes_on)}",
            )
            if not outcome.record_failure(
                self.run_dir,
                rank=rank,
                kind=kind,
                message=str(error),
                said=said,
                code=code,
                trace=trace,
                refused=refused,
            ):
                return FAILED
            outcome.record_end(self.run_dir, status="failed", reason=f"{kind}: {error}", step=step)
        print(said, file=sys.stderr, flush=True)
        return code

    def _has_begun(self) -> bool:
        """Whether there is something to go on with: this start has made a step, or there was one
        before it.
        """
        if self._loop is not None and self._loop.state.step > self._first:
            return True
        return sum(line.get("event") == "start" for line in outcome.attempts(self.run_dir)) > (
            self._loop is not None
        )


def _raised_by_forge(error: BaseException) -> bool:
    """Whether forge itself says what is wrong; an error of torch or of a user's code may need its
    traceback.
    """
    last = [frame.filename for frame in traceback.extract_tb(error.__traceback__)][-1:]
    return Path(*last).is_relative_to(Path(__file__).parent)


def _words(error: Exception, trace: str, step: int | None, who: str) -> str:
    """What the terminal is told: the message alone where it says what to do, else the traceback
    before it.
    """
    said = str(error)
    if _is_out_of_memory(error):
        said = f"out of memory: {LOWER}.\n{error}"
    elif ranks() > 1 and is_lost_peer(error):
        said = f"{NO_REASON}.\n{error}"
    told = (
        isinstance(error, ValueError | OSError)
        or type(error).__name__ == "CallbackError"
        or said != str(error)
        or step is not None
    )
    if told:
        return f"\n{who}: {said}" if who else f"\n{said}"
    end = f"{trace}\nthe run failed: {type(error).__name__}"
    return f"\n{who} failed:\n{end} on {who}" if who else end


def is_lost_peer(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is that of a collective whose other side is gone or does
    not answer.
    """
    while error is not None:
        if (
            type(error).__module__.startswith("torch") and type(error).__name__.startswith("Dist")
        ) or LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _prolong(run_dir: Path, done: Result) -> str:
    if not newest_usable(saved_folder(run_dir), to_go_on=True)[0]:
        return "no checkpoint of it is there to go on from"
    longer = directory.prolonging_override(run_dir, done.reason, done.step)
    how = "to go on" if longer != "..." else "raise what ended it to go on"
    return f"{how}: {directory.resume_command(run_dir)} {longer}"


@contextmanager
def log_file(run_dir: Path) -> Iterator[None]:
    """Keep what is logged in logs/rank_N.log too; warnings still go to the terminal."""
    path = run_dir / "logs" / f"rank_{os.environ.get('RANK', 0)}.log"
    root, level = logging.getLogger(), logging.getLogger("forge").level
    handlers: list[logging.Handler] = []
    if not root.handlers:
        shown = logging.StreamHandler()
        shown.setLevel(logging.WARNING)
        handlers.append(shown)
    try:
        path.parent.mkdir(exist_ok=True)
        kept = logging.FileHandler(path, encoding="utf-8")
        kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        handlers.append(kept)
    except OSError as error:
        print(
            f"{path} cannot be written: {error.strerror}; the run goes on without it",
            file=sys.stderr,
        )
    logging.getLogger("forge").setLevel(logging.DEBUG)
    shout, logging.raiseExceptions = (
        logging.raiseExceptions,
        False,
    )  # a log that cannot be written, on a full disk, is no error of the run
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("forge").setLevel(level)
        logging.raiseExceptions = shout
        for handler in handlers:
            root.removeHandler(handler)
            with suppress(OSError):
                handler.close()


def _is_out_of_memory(error: Exception) -> bool:
    return (
        type(error).__name__ == "OutOfMemoryError"
        or isinstance(error, MemoryError)
        or "can't allocate memory" in str(error)
    )


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent does, so that a killed parent leaves no rank
    behind.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        parent = os.environ.pop(PARENT, None)
        if parent is not None and int(parent) != os.getppid():
            sys.exit(128 + signal.SIGTERM)  # it ended before this process could ask


def end_on_interrupt() -> None:
    """Until the loop listens, SIGINT ends the process as SIGTERM does: some imports catch every
    exception.

    One that came while Python was starting acts now, without a traceback: who started this process
    has it held back.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def leave(code: int) -> NoReturn:
    """End this process; of several ranks one that failed at once, since Python would wait for
    threads that wait for the others.
    """
    if ranks() > 1 and code in (FAILED, REFUSED):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    leave(main())
