"""Names of models, of the paths of their checkpoints; without torch."""

from __future__ import annotations

from pathlib import Path

from forge.rundir.checkpoints import BEST


def run_name(path: Path) -> str:
    """The name of a run: of its directory, without the folders of its checkpoints."""
    parts = [part for part in path.resolve().parts if part not in ("checkpoints", BEST)]
    return parts[-1] if not parts[-1].startswith("step_") else "/".join(parts[-2:])
