"""`python -m forge.worker RUN_DIR`: one rank of a run. It reads the directory and composes nothing."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from forge.launch.directory import CONFIG, ERROR, RESULT, short, write_json

FAILED, REFUSED = 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Train what the run directory says; the exit code is 0, 1 for a failure, 2 for the user's mistake, 128+n for a signal."""
    run_dir = Path((sys.argv[1:] if argv is None else argv)[0]).resolve()
    if not (run_dir / CONFIG).is_file():
        print(f"{run_dir} is no run directory: it has no {CONFIG}", file=sys.stderr)
        return REFUSED
    try:
        return _train(run_dir)
    except KeyboardInterrupt:
        print("\ninterrupted outside of the training loop", file=sys.stderr)
        return 128 + signal.SIGINT
    except (ValueError, OSError) as error:
        _report(run_dir, error)
        print(f"\n{error}\n(the traceback is in {short(run_dir / ERROR)})", file=sys.stderr)
        return REFUSED if isinstance(error, ValueError) else FAILED
    except Exception as error:
        _report(run_dir, error)
        if _is_out_of_memory(error):
            print(
                f"\nout of memory: lower train.batch_size (and raise train.grad_accum_steps), train.seq_len or the model.\n{error}",
                file=sys.stderr,
            )
        else:
            traceback.print_exc()
        return FAILED


def _train(run_dir: Path) -> int:
    from forge.training.assemble import assemble
    from forge.training.summary import summary
    from forge.training.writing import say

    parts = assemble(run_dir)
    loop = parts.loop
    reason = loop.run()
    metrics: dict[str, float] = {"tokens_per_second": parts.logger.mean_rate()}
    if parts.evaluation is not None and parts.evaluation.at is not None:
        metrics |= {f"eval/{name}": value for name, value in parts.evaluation.metrics.items()} | {"eval/step": parts.evaluation.at}
    status = "stopped" if loop.interrupted else "finished"
    write_json(
        run_dir / RESULT, {"status": status, "reason": reason, "step": loop.state.step, "tokens": loop.state.tokens, "metrics": metrics}
    )
    if parts.config.metrics.enable_console:
        say(summary(parts, reason, run_dir))
    return 128 + signal.Signals[reason] if loop.interrupted else 0


def _report(run_dir: Path, error: Exception) -> None:
    content = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
    write_json(run_dir / ERROR, {"rank": int(os.environ.get("RANK", 0)), **content})


def _is_out_of_memory(error: Exception) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent does, so that a killed parent leaves no rank behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
