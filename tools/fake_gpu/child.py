"""A run of three steps on fake GPUs, and what it asked of them; started by `fake_gpu.case`.

One argument: a case as JSON. The last line of the output is a measurement as JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from fake_gpu import stand_ins
from fake_gpu.promised import STEPS, expected, resolved


def take_counts(folder: Path) -> dict[str, Any]:
    """The counters of the fake GPUs since the last call."""
    path = folder / "counts.json"
    ctypes.CDLL(None).fake_gpu_report(str(path).encode())
    counts = json.loads(path.read_text())
    counts["kernels"] |= stand_ins.CALLS
    stand_ins.CALLS.clear()
    return counts


def graphs() -> int:
    """Number of graphs compiled so far."""
    return counters["stats"]["unique_graphs"]


def train(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train with forge's own session and loop; measures each step."""
    from forge.rundir import directory
    from forge.training.build import build_loop
    from forge.training.build_session import build_session

    ranks = case.get("ranks", 1)
    words = [*case["words"], *([f"run.num_processes={ranks}"] if ranks > 1 else [])]
    folders = [f"run.dir={folder / 'run'}", f"data.cache_dir={folder / 'cache'}"]
    run_dir, _ = directory.prepare_directory(resolved([*words, *folders]), overrides=())
    stand_ins.install(ranks, any("gdn_kernel=fla" in word for word in words))
    session = build_session(run_dir, trust=[])
    loop = build_loop(session)
    built = take_counts(folder)
    steps: list[dict[str, Any]] = []
    update = loop._step

    def measured(data: Any) -> None:
        number = loop.state.step
        strict = number == STEPS - 2 and not case.get("waits")
        before = graphs()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_sync_debug_mode("error" if strict else "default")
        try:
            update(data)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        steps.append(take_counts(folder) | memory() | {"graphs": graphs() - before})

    loop._step = measured  # type: ignore[method-assign]
    try:
        reason = loop.run()
    except Exception as error:
        return failed(run_dir, error)
    return {
        "reason": reason,
        "built": built,
        "steps": steps,
        "after": take_counts(folder),
        "breaks": sum(counters["graph_break"].values()),
        "device": session.device.index,
        "expected": expected(session.config),
        "saved": [path.name for path in sorted(run_dir.glob("checkpoints/step_*"))],
    }


def failed(run_dir: Path, error: Exception) -> dict[str, Any]:
    """The message of a run that failed, as forge reports it, and its memory snapshots."""
    from forge.rundir.outcome import report_failure

    with contextlib.redirect_stderr(io.StringIO()) as reported:
        report_failure(run_dir, error)
    snapshots = [path.name for path in run_dir.rglob("out_of_memory*.pickle")]
    return {"error": reported.getvalue(), "snapshots": snapshots}


def generate(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Continue four prompts by `generate` tokens, three times."""
    from forge.models.sampling import DrawOptions, continue_rows
    from forge.parallel.modules import HALF
    from forge.parallel.ranks import Ranks
    from forge.training.models import build_model
    from forge.training.process import set_up

    config = resolved([*case["words"], f"run.dir={folder / 'run'}"]).config
    device = set_up(config)
    stand_ins.install(1)
    dtype = HALF[config.precision.mixed_precision]
    model: Any = build_model(config, device, Ranks(), dtype, filled=False).eval()
    built, steps = take_counts(folder), []
    prompts = [list(range(1, length)) for length in (9, 17, 33, 65)]
    for _ in range(STEPS):
        before = graphs()
        torch.cuda.reset_peak_memory_stats()
        continue_rows(model, prompts, case["generate"], DrawOptions(), device, range(len(prompts)))
        steps.append(take_counts(folder) | memory() | {"graphs": graphs() - before})
    return {
        "reason": "end",
        "built": built,
        "steps": steps,
        "after": take_counts(folder),
        "breaks": sum(counters["graph_break"].values()),
        "device": device.index,
        "expected": {"memory": {}, "flops_per_token": 0, "collectives": {}},
        "saved": [],
    }


def memory() -> dict[str, int]:
    """Bytes at the peak of a step, and how often the allocator had to try again."""
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
    }


def main() -> None:
    """Run a case, print its measurement, and leave at once: nothing is to be torn down."""
    case = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="fake_gpu_") as folder:
        try:
            result = (generate if case.get("generate") else train)(case, Path(folder))
        except BaseException as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result), flush=True)
    os._exit("error" in result)


if __name__ == "__main__":
    main()
