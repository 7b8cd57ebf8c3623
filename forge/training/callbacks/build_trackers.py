"""The trackers of a run, opened only when its training starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.build import bind
from forge.config.metrics import Metrics
from forge.rundir.saved_config import to_plain
from forge.training.callbacks.trackers import CONSOLE, WANDB, JsonLines, Trackers
from forge.training.tracker import Tracker

if TYPE_CHECKING:
    from forge.config.root import Config
    from forge.training.session import Session


def build_trackers(
    section: Metrics,
    run_dir: Path,
    *,
    total_steps: int,
    config_dict: dict[str, Any],
    more: Mapping[str, Callable[[], Tracker]] | None = None,
) -> Trackers:
    """Build the JSON lines and all enabled trackers, still closed.

    Disabled trackers are not imported. total_steps: of the run, for the progress bar. config_dict:
    the whole config, for W&B. more: makers of further trackers, by name.
    """
    makers: dict[str, Callable[[], Tracker]] = {"JSON lines": partial(JsonLines, run_dir)}
    makers |= _services(section, run_dir, config_dict, lambda: trackers.resumed_at)
    makers |= more or {}
    if section.enable_console:
        from forge.training.callbacks.console import console_tracker

        makers[CONSOLE] = lambda: console_tracker(total_steps, resumed_at=trackers.resumed_at)
    trackers = Trackers(makers)
    return trackers


def _services(
    section: Metrics, run_dir: Path, config_dict: dict[str, Any], resumed_at: Callable[[], int]
) -> dict[str, Callable[[], Tracker]]:
    """The makers of the enabled services, by name."""
    makers: dict[str, Callable[[], Tracker]] = {}
    if section.enable_tensorboard:
        from forge.training.callbacks.tracker_services import TensorBoard

        folder = run_dir / section.tensorboard_dir
        makers["TensorBoard"] = lambda: TensorBoard(folder, resumed_at=resumed_at())
    if section.enable_wandb:
        from forge.training.callbacks.tracker_services import WandB

        makers[WANDB] = partial(WandB, section, run_dir, config_dict)
    return makers


NEVER = 1 << 40
"""A step that no run resumes at: nothing logged before is hidden."""


def services_after(config: Config, run_dir: Path) -> Trackers:
    """The services and the user's trackers of a run, for results that come after its training."""
    makers = _services(config.metrics, run_dir, to_plain(config), lambda: NEVER)
    if config.metrics.enable_wandb:
        make: Callable[..., Tracker] = makers[WANDB]
        makers[WANDB] = partial(make, after_training=True)
    return Trackers(makers | _user_makers(config, run_dir))


def _user_makers(config: Config, run_dir: Path) -> dict[str, Callable[[], Tracker]]:
    """The makers of the user's trackers. Raises ConfigError for an impossible entry."""
    makers = {}
    for name, entry in config.trackers.items():
        path = f"trackers.{name}"
        makers[path] = bind(entry, path=path, trust=config.run.trust, run_dir=run_dir)
    return makers


def trackers_of(session: Session) -> Trackers:
    """The trackers of a run, on its main rank. Raises ConfigError for an impossible entry."""
    config, run_dir = session.config, session.run_dir
    user_makers = _user_makers(config, run_dir)
    if not session.ranks.main:
        return Trackers()
    return build_trackers(
        config.metrics,
        run_dir,
        total_steps=config.train.max_steps,
        config_dict=to_plain(config),
        more=user_makers,
    )
