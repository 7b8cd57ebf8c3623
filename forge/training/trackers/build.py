"""The trackers that a `metrics` section asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from forge.config.metrics import Metrics
from forge.training.trackers.group import Tracker, Trackers
from forge.training.trackers.jsonl import JsonLines


def build_trackers(
    section: Metrics,
    run_dir: Path,
    *,
    total_steps: int,
    config_dict: dict[str, Any],
    resumed_at: int = 0,
    more: Iterable[tuple[str, Callable[[], Tracker]]] = (),
) -> Trackers:
    """Open the JSON lines and whatever else is enabled; what is not enabled is not imported.

    total_steps: last step of the run, for the progress bar. config_dict: the run's whole config,
    for W&B. resumed_at: the step that the run goes on from; rows of later ones that an earlier
    start left are hidden. more: further trackers, each as the name that warnings call it and the
    function that opens it. Raises OSError when the JSON lines cannot be written.
    """
    trackers = Trackers()
    trackers.add("JSON lines", lambda: JsonLines(run_dir), essential=True)
    if section.enable_tensorboard:
        from forge.training.trackers.tensorboard import TensorBoard

        trackers.add(
            "TensorBoard",
            lambda: TensorBoard(run_dir / section.tensorboard_dir, resumed_at=resumed_at),
        )
    if section.enable_wandb:
        from forge.training.trackers.wandb import WandB

        trackers.add("W&B", lambda: WandB(section, run_dir, config_dict))
    for name, open_tracker in more:
        trackers.add(name, open_tracker)
    if section.enable_console:
        from forge.training.trackers.console import console_tracker

        trackers.add("console", lambda: console_tracker(total_steps))
    return trackers
