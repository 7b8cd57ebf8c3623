"""The trackers that a `metrics` section asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forge.config.metrics import Metrics
from forge.training.trackers.group import Trackers
from forge.training.trackers.jsonl import JsonLines

METRICS_FILE = "metrics.jsonl"


def build_trackers(section: Metrics, run_dir: Path, *, total_steps: int, config_dict: dict[str, Any]) -> Trackers:
    """Open metrics.jsonl and whatever else is enabled; what is not enabled is not imported.

    total_steps: last step of the run, for the progress bar. config_dict: the run's whole config, for W&B.
    """
    trackers = Trackers()
    trackers.add(METRICS_FILE, lambda: JsonLines(run_dir / METRICS_FILE))
    if section.enable_tensorboard:
        from forge.training.trackers.tensorboard import TensorBoard

        trackers.add("TensorBoard", lambda: TensorBoard(run_dir / section.tensorboard_dir))
    if section.enable_wandb:
        from forge.training.trackers.wandb import WandB

        trackers.add("W&B", lambda: WandB(section, run_dir, config_dict))
    if section.enable_console:
        from forge.training.trackers.console import console_tracker

        trackers.add("console", lambda: console_tracker(total_steps))
    return trackers
