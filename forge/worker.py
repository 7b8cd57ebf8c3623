"""`python -m forge.worker RUN_DIR [TRUSTED ...]`: one rank of a run. It reads the directory and
composes nothing.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from forge.config.problems import REFUSED, ConfigError
from forge.launch.local import threads
from forge.launch.local.processes import PARENT
from forge.parallel.rendezvous import Command, Rendezvous
from forge.plan.launcher_environment import LauncherEnvironment
from forge.rundir import outcome
from forge.rundir.checkpoints import NoneLeft, newest_usable, saved_folder
from forge.rundir.directory import prolonging_override, resume_command, short
from forge.rundir.files import write_json
from forge.rundir.lock import InUse, Lock
from forge.rundir.outcome import (
    ERROR,
    FAILED,
    REASONS,
    RESULT,
    Result,
    exit_code,
    ranks,
    report_failure,
)
from forge.rundir.saved_config import CONFIG, is_run, newest

if TYPE_CHECKING:
    from forge.training.assemble import Parts
    from forge.training.loop import Loop


def main(argv: Sequence[str] | None = None, rendezvous: Rendezvous | None = None) -> int:
    """Train what the run directory says. The exit code is 0, 1 for a failure, 2 for the user's
    mistake, 128+n for a signal. What to trust is an argument: a directory does not say it.
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
    """One of the ranks that torchrun or srun started: the main one calls `lead`, the others join
    the run that it makes. Gives the exit code.
    """
    os.environ.update({**threads.of_task(os.environ), **found.variables()})
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    if not is_main():
        code = _follow(rendezvous)
        if rendezvous.command.run_dir and outcome.refused_for(Path(rendezvous.command.run_dir)):
            rendezvous.leave()  # the main rank waits for it
        return code
    code = REFUSED
    try:
        code = lead(rendezvous)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else FAILED
    finally:
        with suppress(ValueError, RuntimeError):  # other ranks did not come
            rendezvous.send(Command(code=code))
    return code


def is_main() -> bool:
    """Whether this rank prints and writes for all."""
    return outcome.rank() == 0


def _lead(run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None) -> int:
    """The main rank locks the directory, and sends the others what to do."""

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
            reason = f"{REASONS.get(done.reason, done.reason)}, after {done.step} steps"
            print(f"this run is finished: {reason}; {_how_to_prolong(run_dir, done)}")
            return end(0)
        return _guarded(run_dir, trust, rendezvous)


def _follow(rendezvous: Rendezvous | None) -> int:
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
        who = f"rank {outcome.rank()} on {platform.node()}"
        print(f"{who} does not see {run_dir}; all hosts need one file system", file=sys.stderr)
        return FAILED
    with log_file(run_dir):
        return _guarded(run_dir, command.trust, rendezvous)


def _guarded(run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None) -> int:
    """Train, and turn whatever goes wrong into one message, error.json and an exit code."""
    report = FailureReport(run_dir)
    try:
        if is_main():
            (run_dir / ERROR).unlink(missing_ok=True)  # of an earlier start
            if rendezvous is not None:
                rendezvous.send(Command(run_dir=str(run_dir), trust=list(trust)))
        return _train(run_dir, trust, rendezvous, report)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        return report(error)


def _train(
    run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None, report: FailureReport
) -> int:
    from forge.training.assemble import assemble
    from forge.training.process import say
    from forge.training.summary import summary

    parts = assemble(run_dir, rendezvous, trust=trust)
    if parts.ranks.main:
        (run_dir / RESULT).unlink(missing_ok=True)  # of an earlier start
    loop, config = parts.loop, parts.config
    loop.on_failure = report
    report.starts(loop)
    reason = loop.run()
    fault = parts.bad_steps.fault
    code = 128 + signal.Signals.__members__.get(reason, signal.SIGTERM) if loop.interrupted else 0
    if parts.ranks.main:
        result = _result(parts, reason, run_dir)
        write_json(run_dir / RESULT, result)
        if fault:
            report(RuntimeError(fault), step=loop.state.step)
        else:
            outcome.record_end(
                run_dir, status=result["status"], reason=reason, step=loop.state.step
            )
            metrics, wanted = result["metrics"], config.run.objective
            if result["status"] == "finished" and wanted not in metrics:
                said = f"run.objective={wanted} was never logged; logged were {', '.join(metrics)}"
                print(said, file=sys.stderr)
            if config.metrics.enable_console:
                say(summary(parts, reason, run_dir))
    parts.ranks.close()
    return FAILED if fault else code


def _result(parts: Parts, reason: str, run_dir: Path) -> dict[str, Any]:
    from forge.training.metrics import nulls

    metrics = {**parts.logger.last, "tokens_per_second": parts.logger.mean_rate()}
    if parts.evaluation is not None and parts.evaluation.at is not None:
        metrics |= {f"eval/{name}": value for name, value in parts.evaluation.metrics.items()}
        metrics["eval/step"] = parts.evaluation.at
    known = nulls(metrics)
    ended = "stopped" if parts.loop.interrupted else "finished"
    objective = parts.config.run.objective
    return {
        "status": "failed" if parts.bad_steps.fault else ended,
        "reason": reason,
        "step": parts.loop.state.step,
        "tokens": parts.loop.state.tokens,
        "config": newest(run_dir).name,
        "objective": {"name": objective, "value": known.get(str(objective))},
        "metrics": known,
    }


class FailureReport:
    """Says once, and as early as it is known, why this rank fails."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.code: int | None = None
        self._loop: Loop | None = None
        self._first_step = 0

    def starts(self, loop: Loop) -> None:
        """The run is assembled, and begins at the step that the loop is at."""
        self._loop, self._first_step = loop, loop.state.step

    def __call__(self, error: BaseException, step: int | None = None) -> int:
        """The exit code. step: where the run ended, when nothing was raised."""
        if self.code is None and isinstance(error, Exception):
            self.code = self._report(error, step)
        return FAILED if self.code is None else self.code

    def _report(self, error: Exception, step: int | None) -> int:
        goes_on = self._has_begun() and not isinstance(error, NoneLeft)
        refused = exit_code(error) == REFUSED and not goes_on and _raised_by_forge(error)
        more = ""
        if not refused:
            again = f"; the run goes on with: {resume_command(self.run_dir)}" if goes_on else ""
            more = f"\n(the traceback is in {short(self.run_dir / ERROR)}{again})"
        code, reported = report_failure(self.run_dir, error, step=step, more=more, refused=refused)
        if reported:
            with suppress(OSError):  # the directory may be why it failed
                reason = f"{type(error).__name__}: {error}"
                outcome.record_end(self.run_dir, status="failed", reason=reason, step=step)
        return code

    def _has_begun(self) -> bool:
        """Whether there is something to go on with: this start has made a step, or there was one
        before it.
        """
        if self._loop is not None and self._loop.state.step > self._first_step:
            return True
        with suppress(ConfigError):  # attempts.jsonl cannot be read, which may be why it failed
            starts = [row for row in outcome.attempts(self.run_dir) if row.get("event") == "start"]
            return len(starts) > (self._loop is not None)
        return False


def _raised_by_forge(error: BaseException) -> bool:
    """Whether forge itself says what is wrong; any other error needs its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and Path(frames[-1].filename).is_relative_to(Path(__file__).parent)


def _how_to_prolong(run_dir: Path, done: Result) -> str:
    if not newest_usable(saved_folder(run_dir), to_go_on=True)[0]:
        return "no checkpoint of it is there to go on from"
    more = prolonging_override(run_dir, done.reason, done.step)
    how = "to go on" if more != "..." else "raise what ended it to go on"
    return f"{how}: {resume_command(run_dir)} {more}"


@contextmanager
def log_file(run_dir: Path) -> Iterator[None]:
    """Keep what is logged in logs/rank_N.log; warnings go to the terminal too."""
    path = run_dir / "logs" / f"rank_{outcome.rank()}.log"
    root, forge = logging.getLogger(), logging.getLogger("forge")
    before = forge.level, logging.raiseExceptions
    handlers: list[logging.Handler] = []
    if not root.handlers:
        handlers.append(logging.StreamHandler())
        handlers[0].setLevel(logging.WARNING)
    try:
        path.parent.mkdir(exist_ok=True)
        handlers.append(kept := logging.FileHandler(path, encoding="utf-8"))
        kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    except OSError as error:
        said = f"{path} cannot be written: {error.strerror}; the run goes on without it"
        print(said, file=sys.stderr)
    forge.setLevel(logging.DEBUG)
    logging.raiseExceptions = False  # a full disk, where no log can be written, ends no run
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        level, logging.raiseExceptions = before
        forge.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            with suppress(OSError):
                handler.close()


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent ends, also when that is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        parent = os.environ.pop(PARENT, None)
        if parent is not None and int(parent) != os.getppid():
            sys.exit(128 + signal.SIGTERM)  # it ended before this process could ask


def end_on_interrupt() -> None:
    """Until the loop takes signals, SIGINT ends the process without a traceback; also one that the
    parent has blocked while Python was starting.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def leave(code: int) -> NoReturn:
    """End this process; a rank that failed at once: its threads would wait for other ranks."""
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
