"""`python -m forge.checkpoints RUN`: the checkpoints of a run, and which of them can be used.

Examples:
    python -m forge.checkpoints runs/mine
    python -m forge.checkpoints runs/mine --verify
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.cli import Parser, printable
from forge.config.numbers import aligned, byte_size
from forge.rundir import directory, saved_config
from forge.rundir.checkpoints import (
    WEIGHTS,
    CheckpointError,
    Saved,
    best_of,
    list_checkpoints,
    saved_folder,
)
from forge.rundir.tensor_sums import tensor_damage


def main(argv: Sequence[str] | None = None) -> int:
    """List checkpoints, oldest first; exit 2 for no run directory, and with --verify 1 for an
    unusable checkpoint.
    """
    parser = Parser("forge.checkpoints", "List the checkpoints of a run.")
    parser.add_argument("run", type=Path, help="a run directory")
    parser.add_argument("--json", action="store_true", help="as JSON")
    verify = "read all tensors too, and compare them with their checksums"
    parser.add_argument("--verify", action="store_true", help=verify)
    options = parser.parse_args(argv)
    try:
        rows = describe_checkpoints(options.run, verify=options.verify)
    except CheckpointError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    print(
        json.dumps(rows, indent=1)
        if options.json
        else printable(checkpoint_table(options.run, rows))
    )
    return 1 if options.verify and any(row["fault"] for row in rows) else 0


def describe_checkpoints(run_dir: Path, *, verify: bool = False) -> list[dict[str, Any]]:
    """step, time, reason, bytes, metrics, best_by, best, weights_only, fault (null for a usable
    checkpoint) and verified of every checkpoint. verify: read the tensors too.

    Raises CheckpointError for no run.
    """
    if not saved_config.is_run(run_dir):
        raise CheckpointError(f"{run_dir} is no run directory: it has no {saved_config.CONFIG}")
    try:
        identity = directory.run_id(run_dir)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    checkpoints = list_checkpoints(saved_folder(run_dir))
    best = best_of(checkpoints)
    return [_row(saved, identity, best=saved == best, verify=verify) for saved in checkpoints]


def checkpoint_table(run_dir: Path, rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return f"{run_dir} has no checkpoints"
    heads = ("step", "saved at", "because of", "size", "evaluation", "")
    cells = [heads, *(_cells(row) for row in rows)]
    return "\n".join(aligned(cells))


def _row(saved: Saved, run_id: str, *, best: bool, verify: bool) -> dict[str, Any]:
    meta, fault = saved.meta, saved.fault(run_id)
    if verify and fault is None:
        text = tensor_damage(saved.path / WEIGHTS)
        fault = text and text.replace(f"{saved.path}/", "")
    return {
        "step": saved.step,
        "path": str(saved.path),
        **{name: meta.get(name) for name in ("time", "reason", "metrics", "best_by")},
        "weights_only": bool(meta.get("weights_only")),
        "best": best,
        "bytes": saved.size,
        "fault": fault,
        "verified": verify and fault is None,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    metrics = [
        f"{name} {'not finite' if value is None else f'{value:.4g}'}"
        for name, value in (row["metrics"] or {}).items()
        if name in ("loss", "bits_per_byte", row["best_by"])
    ]
    notes = (
        ["verified" if row["verified"] else "complete"]
        + ["the best"] * row["best"]
        + ["weights alone"] * row["weights_only"]
    )
    state = f"cannot be used: {row['fault']}" if row["fault"] else ", ".join(notes)
    about = str(row["step"]), row["time"] or "", row["reason"] or ""
    return *about, byte_size(row["bytes"]), ", ".join(metrics), state


if __name__ == "__main__":
    sys.exit(main())
