"""`python -m forge.worker RUN_DIR [TRUSTED ...]`: one rank of a run. It reads the directory and
composes nothing.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forge.config.problems import REFUSED, ConfigError
from forge.launch.local import threads
from forge.launch.local.child import die_with_parent, end_on_interrupt, leave
from forge.launch.local.processes import search_path
from forge.parallel.rendezvous import Command, Rendezvous
from forge.planning.launcher_environment import LauncherEnvironment
from forge.rundir import outcome
from forge.rundir.checkpoints import newest_usable, saved_folder
from forge.rundir.directory import prolonging_override, resume_command
from forge.rundir.failure import FailureReport
from forge.rundir.files import write_json
from forge.rundir.lock import DirectoryInUse, Lock
from forge.rundir.logs import write_log
from forge.rundir.outcome import ERROR, FAILED, REASONS, RESULT, Result, ranks
from forge.rundir.saved_config import CONFIG, is_run
from forge.rundir.signs import signs_of_life
from forge.rundir.stacks import Stacks
from forge.rundir.wall_clock.ledger import Ledger

if TYPE_CHECKING:
    from forge.training.loop import Loop


class Records(NamedTuple):
    """Records for observers: the ledger of its seconds, and stacks of its threads."""

    ledger: Ledger
    stacks: Stacks


def main(argv: Sequence[str] | None = None, rendezvous: Rendezvous | None = None) -> int:
    """Train the run of a directory. The exit code is 0, 1 for a failure, 2 for the user's mistake,
    128+n for a signal. Trusted prefixes are arguments: a directory never grants trust.
    """
    directory, *trust = sys.argv[1:] if argv is None else argv
    run_dir = Path(directory).resolve()
    if not is_run(run_dir):
        print(f"{run_dir} is no run directory: it has no {CONFIG}", file=sys.stderr)
        return REFUSED
    if ranks() > 1:
        rendezvous = rendezvous or Rendezvous()
    return _lead(run_dir, trust, rendezvous) if is_main() else _follow(rendezvous)


def together(
    found: LauncherEnvironment, lead: Callable[[Rendezvous], int], rendezvous: Rendezvous
) -> int:
    """Run a rank started by torchrun or srun, and return the exit code: the main rank calls `lead`,
    the others join the run of the main rank.
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
    """Lock the directory as the main rank, and send the other ranks their command."""

    def end(code: int) -> int:
        if rendezvous is not None:
            rendezvous.send(Command(code=code))
        return code

    try:
        lock = Lock(run_dir).acquire()
    except (DirectoryInUse, ConfigError) as error:
        print(error, file=sys.stderr)
        return end(REFUSED)
    with lock, write_log(run_dir):
        done = outcome.finished(run_dir)
        if done is not None:
            reason = f"{REASONS.get(done.reason, done.reason)}, after {done.step} steps"
            print(f"this run is finished: {reason}; {_how_to_prolong(run_dir, done)}")
            return end(0)
        ledger = Ledger.open(run_dir)  # looks at the signs of life of the start before
        with signs_of_life(run_dir, outcome.rank(), ranks()) as stacks:
            return _guarded(run_dir, trust, rendezvous, Records(ledger, stacks))


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
    sys.path[:0] = [folder for folder in command.imports if folder not in sys.path]
    with write_log(run_dir), signs_of_life(run_dir, outcome.rank(), ranks()) as stacks:
        return _guarded(run_dir, command.trust, rendezvous, Records(Ledger(), stacks))


def _guarded(
    run_dir: Path, trust: Sequence[str], rendezvous: Rendezvous | None, records: Records
) -> int:
    """Train, and turn any failure into a message, error.json and an exit code."""
    report = FailureReport(run_dir)
    try:
        if is_main():
            (run_dir / ERROR).unlink(missing_ok=True)  # of an earlier start
            if rendezvous is not None:
                imports = search_path().split(os.pathsep)
                rendezvous.send(Command(run_dir=str(run_dir), trust=list(trust), imports=imports))
        return _train(run_dir, trust, rendezvous, report, records)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        return report(error)
    finally:
        records.ledger.close()


def _train(
    run_dir: Path,
    trust: Sequence[str],
    rendezvous: Rendezvous | None,
    report: FailureReport,
    records: Records,
) -> int:
    """Join, build, loop, report."""
    from forge.training.build import build_loop
    from forge.training.build_session import build_session
    from forge.training.checkpoints.export_at_end import export_at_end
    from forge.training.checkpoints.remote_end import send_end

    session = build_session(run_dir, rendezvous, trust=trust)
    records.stacks.interval = session.config.run.stack_trace_interval_seconds
    loop = build_loop(session, records.ledger)
    if is_main():
        (run_dir / RESULT).unlink(missing_ok=True)  # of an earlier start
    report.starts(loop)
    reason = loop.run(report)
    if is_main():
        _report(loop, reason, report)
    session.ranks.close()
    if is_main() and session.config.checkpoint.export_at_end and not loop.interrupted:
        export_at_end(run_dir, session.config)
    if is_main() and session.config.checkpoint.remote:
        send_end(run_dir, session.config)
    if loop.fault:
        return FAILED
    stopped = signal.Signals.__members__.get(reason, signal.SIGTERM)
    return 128 + stopped if loop.interrupted else 0


def _report(loop: Loop, reason: str, report: FailureReport) -> None:
    """Write result.json, record the end, and print the summary."""
    from forge.training.process import say
    from forge.training.result import result_of, summary

    config, metrics = loop.config, loop.results()
    result = result_of(loop, reason, metrics)
    write_json(loop.run_dir / RESULT, result)
    if loop.fault:
        report(RuntimeError(loop.fault), step=loop.state.step)
        return
    status, objective = result["status"], config.run.objective
    outcome.record_end(loop.run_dir, status=status, reason=reason, step=loop.state.step)
    if status == "finished" and objective not in metrics:
        missing = f"run.objective={objective} was never logged; logged were {', '.join(metrics)}"
        print(missing, file=sys.stderr)
    if config.metrics.enable_console:
        say(summary(loop, reason, metrics))


def _how_to_prolong(run_dir: Path, done: Result) -> str:
    if not newest_usable(saved_folder(run_dir), to_go_on=True)[0]:
        return "no checkpoint of it is there to resume from"
    override = prolonging_override(run_dir, done.reason, done.step)
    purpose = "to continue" if override != "..." else "raise what ended it to continue"
    return f"{purpose}: {resume_command(run_dir)} {override}"


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    leave(main())
