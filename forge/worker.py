"""`python -m forge.worker RUN_DIR`: one rank of a run. It reads the directory and composes nothing."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forge.config.stored import CONFIG, is_run, newest
from forge.launch import attempts, directory
from forge.launch.directory import ERROR, RESULT, Result, short, write_first, write_json
from forge.launch.local import FAILED, PARENT, REFUSED
from forge.launch.lock import Held, Lock

REASONS = {"end": "all steps are done", "max_time": "train.max_time is used up", "target": "eval.target is reached"}
REASONS["patience"] = "there was no improvement for eval.patience evaluations"
LOWER = "lower train.batch_size (train.global_batch_size keeps the batch of a step), train.seq_len or the model; "
LOWER += "train.activation_checkpointing=full and objective.loss_fn=chunked_cross_entropy need less memory too"


def main(argv: Sequence[str] | None = None) -> int:
    """Train what the run directory says; the exit code is 0, 1 for a failure, 2 for the user's mistake, 128+n for a signal."""
    run_dir = Path((sys.argv[1:] if argv is None else argv)[0]).resolve()
    if not is_run(run_dir):
        print(f"{run_dir} is no run directory: it has no {CONFIG}", file=sys.stderr)
        return REFUSED
    if not is_main():
        with log_file(run_dir):
            return _guarded(run_dir)
    try:
        lock = Lock(run_dir).acquire()
    except Held as error:
        print(error, file=sys.stderr)
        return REFUSED
    with lock, log_file(run_dir):
        done = directory.finished(run_dir)
        if done is not None:
            print(f"this run is finished: {REASONS.get(done.reason, done.reason)}, after {done.step} steps; {_prolong(run_dir, done)}")
            return 0
        return _guarded(run_dir)


def is_main() -> bool:
    """Whether this rank speaks and writes for all."""
    return os.environ.get("RANK", "0") == "0"


def _guarded(run_dir: Path) -> int:
    """Train, and turn whatever goes wrong into one message, error.json and an exit code."""
    try:
        return _train(run_dir)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except Exception as error:
        return _fail(run_dir, error)


def _train(run_dir: Path) -> int:
    from forge.training.assemble import assemble
    from forge.training.summary import summary
    from forge.training.writing import say

    parts = assemble(run_dir)
    for name in (RESULT, ERROR):
        (run_dir / name).unlink(missing_ok=True)  # of an earlier start, now that this one goes on
    loop, config = parts.loop, parts.config
    try:
        reason = loop.run()
    finally:
        parts.ranks.close()
    code = 128 + signal.Signals.__members__.get(reason, signal.SIGTERM) if loop.interrupted else 0
    if not parts.ranks.main:
        return FAILED if parts.guard.fault else code
    metrics: dict[str, float] = {**parts.logger.last, "tokens_per_second": parts.logger.mean_rate()}
    if parts.evaluation is not None and parts.evaluation.at is not None:
        metrics |= {f"eval/{name}": value for name, value in parts.evaluation.metrics.items()} | {"eval/step": parts.evaluation.at}
    known = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
    status = "failed" if parts.guard.fault else "stopped" if loop.interrupted else "finished"
    result = {"status": status, "reason": reason, "step": loop.state.step, "tokens": loop.state.tokens, "config": newest(run_dir).name}
    result |= {"objective": {"name": config.run.objective, "value": known.get(str(config.run.objective))}, "metrics": known}
    write_json(run_dir / RESULT, result)
    if parts.guard.fault:
        return _fail(run_dir, RuntimeError(parts.guard.fault), step=loop.state.step)
    attempts.ended(run_dir, status=status, reason=reason, step=loop.state.step)
    if status == "finished" and config.run.objective not in known:
        print(f"run.objective={config.run.objective} was never logged; logged were {', '.join(known)}", file=sys.stderr)
    if config.metrics.enable_console:
        say(summary(parts, reason, run_dir))
    return code


def _fail(run_dir: Path, error: Exception, step: int | None = None) -> int:
    content = {"type": type(error).__name__, "message": str(error), "traceback": "".join(traceback.format_exception(error))}
    try:
        if not write_first(run_dir / ERROR, {"rank": int(os.environ.get("RANK", 0)), **content}):
            return FAILED  # another rank has said why; this one only lost its peer
        attempts.ended(run_dir, status="failed", reason=f"{type(error).__name__}: {error}", step=step)
        place = f"\n(the traceback is in {short(run_dir / ERROR)}; the run goes on with: {directory.resume_command(run_dir)})"
    except OSError:
        place = ""  # the directory is why it failed
    said = f"out of memory: {LOWER}.\n{error}" if _is_out_of_memory(error) else str(error)
    told = isinstance(error, ValueError | OSError) or type(error).__name__ == "CallbackError" or said != str(error) or step is not None
    if not told:
        traceback.print_exc()
        said = f"the run failed: {type(error).__name__}"
    logging.getLogger("forge.worker").debug("failed", exc_info=error)
    print(f"\n{said}{place}", file=sys.stderr)
    return REFUSED if isinstance(error, ValueError) else FAILED


def _prolong(run_dir: Path, done: Result) -> str:
    longer = directory.longer(run_dir, done.reason, done.step)
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
        print(f"{path} cannot be written: {error.strerror}; the run goes on without it", file=sys.stderr)
    logging.getLogger("forge").setLevel(logging.DEBUG)
    shout, logging.raiseExceptions = logging.raiseExceptions, False  # a log that cannot be written, on a full disk, is no error of the run
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
    return type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent does, so that a killed parent leaves no rank behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        parent = os.environ.pop(PARENT, None)
        if parent is not None and int(parent) != os.getppid():
            sys.exit(128 + signal.SIGTERM)  # it ended before this process could ask


def end_on_interrupt() -> None:
    """Until the loop listens, Ctrl-C ends the process as SIGTERM does: an exception is lost in an import that catches all."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    end_on_interrupt()
    die_with_parent()
    sys.exit(main())
