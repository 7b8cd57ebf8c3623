"""A verb on the ranks of a layout. Config and request go to the ranks in a folder; a result, or the
fault of a checkpoint, comes back in it.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from forge.config.problems import REFUSED
from forge.config.root import Config
from forge.launch.local import processes
from forge.planning.launcher_environment import launcher_environment
from forge.rundir.checkpoints import Damaged, Saved
from forge.rundir.files import read_json, write_json
from forge.rundir.outcome import PATIENCE, failure, rank, report_failure
from forge.rundir.saved_config import CONFIG, save_config

REQUEST, RESULT, DAMAGED = "request.json", "result.json", "damaged.json"


def run_on_ranks(
    module: str,
    config: Config,
    request: dict[str, Any],
    saved: Saved,
    *,
    words: str,
    trust: Sequence[str],
) -> tuple[int, Any]:
    """Start the ranks of a layout on a checkpoint; return their code, and their result if any.

    module: what each rank runs. words: what started them, for a message. Raises ValueError among
    ranks that torchrun or srun started, and Damaged for a checkpoint that cannot be read.
    """
    found = launcher_environment()
    if found is not None and found.size > 1:
        message = f"{words} starts the ranks itself, on this machine; no torchrun or srun"
        raise ValueError(f"{found.source}={found.size}: {message}")
    with tempfile.TemporaryDirectory(prefix="forge_ranks_") as name:
        folder = Path(name)
        save_config(config, folder / CONFIG)
        write_json(folder / REQUEST, request)
        code = processes.start(folder, config.run.num_processes or 1, module=module, trust=trust)
        if (folder / DAMAGED).exists():
            path, fault = read_json(folder / DAMAGED)
            raise Damaged(saved.path if path == request["path"] else Path(path), fault)
        return code, read_json(folder / RESULT) if (folder / RESULT).exists() else None


def run_rank(work: Callable[[Path, Sequence[str]], None], argv: Sequence[str] | None) -> int:
    """Do one rank's work on (folder, trusted packages); return 0, 1 for a failure, 2 for the user's
    mistake.
    """
    directory, *trust = sys.argv[1:] if argv is None else argv
    folder = Path(directory)
    try:
        work(folder, trust)
    except Damaged as error:  # reported, or replaced by another checkpoint, in the starting command
        if not rank():
            write_json(folder / DAMAGED, [str(error.path), error.fault])
        return REFUSED
    except (ValueError, FloatingPointError) as error:  # met on all ranks, reported by the main rank
        if rank():
            failure(folder, PATIENCE)
        return report_failure(folder, ValueError(str(error)))[0]
    except Exception as error:
        return report_failure(folder, error)[0]
    return 0
