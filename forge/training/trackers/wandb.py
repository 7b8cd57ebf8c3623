"""Metrics on Weights & Biases."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.config.metrics import Metrics
from forge.config.wandb_login import sends

ID_FILE = "wandb_id"
FINISH_SECONDS = 120.0  # what is not uploaded by then stays in the run directory, for `wandb sync`


class WandB:
    """One W&B run, its files under `run_dir`/wandb; offline needs neither network nor account.

    Its id is kept in `run_dir`/wandb_id, so that a run that goes on does so in the same W&B run.
    There, a step that was logged before is not logged again: its values are the same.
    """

    def __init__(self, section: Metrics, run_dir: Path, config: dict[str, Any]) -> None:
        import wandb

        kept = run_dir / ID_FILE
        run_id = section.wandb_run_id or (
            kept.read_text(encoding="utf-8").strip() if kept.is_file() else None
        )
        recorded = config.get("run", {}).get("record_diff", True)
        settings = wandb.Settings(
            console="off", disable_git=not recorded
        )  # W&B may keep a diff of its own, and masks nothing
        if hasattr(settings, "finish_timeout"):  # later wandb only
            settings.finish_timeout = FINISH_SECONDS
        self._run = wandb.init(
            project=section.wandb_project,
            name=section.wandb_run_name or run_dir.resolve().name,
            id=run_id,
            resume="allow" if run_id and sends(section) else None,
            mode=None
            if section.wandb_mode == "online"
            else "offline",  # None: as WANDB_MODE and its settings have it
            dir=str(run_dir),
            config=config,
            settings=settings,
        )
        kept.write_text(f"{self._run.id}\n", encoding="utf-8")

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        """Raises what W&B raises where its own process is gone, as when Slurm tells all processes
        of a job to end.
        """
        import wandb

        try:
            self._run.finish()
        except Exception:
            with suppress(Exception):
                wandb.teardown()  # else W&B tries it again as Python ends, with a traceback
            raise
