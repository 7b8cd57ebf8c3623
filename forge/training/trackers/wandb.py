"""Metrics on Weights & Biases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.metrics import Metrics


class WandB:
    """One W&B run, its files under `run_dir`/wandb; offline needs neither network nor account."""

    def __init__(self, section: Metrics, run_dir: Path, config: dict[str, Any]) -> None:
        import wandb

        online = section.wandb_mode == "online"
        self._run = wandb.init(
            project=section.wandb_project,
            name=section.wandb_run_name or run_dir.resolve().name,
            id=section.wandb_run_id or None,
            resume="allow" if section.wandb_run_id and online else None,
            mode="online" if online else "offline",
            dir=str(run_dir),
            config=config,
            settings=wandb.Settings(console="off"),
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()
