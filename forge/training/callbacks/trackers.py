"""Destinations of metrics: a file, console, TensorBoard, Weights & Biases, the user's trackers."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.build import bind
from forge.config.metrics import Metrics
from forge.config.regular import read_text
from forge.config.wandb_login import sends
from forge.rundir.files import append_row
from forge.rundir.history import METRICS, PERFORMANCE
from forge.rundir.saved_config import to_plain
from forge.rundir.trusted import waits_for_trust
from forge.training.tracker import Steps, Tables, Tracker

if TYPE_CHECKING:
    from forge.training.session import Session

log = logging.getLogger(__name__)
WALL_CLOCK = frozenset({"tokens_per_second", "step_seconds", "data_seconds", "mfu", "memory_gib"})
WALL_CLOCK |= {"writing_seconds", "rewards_seconds", "log_probs_seconds"}  # of rollouts
CONSOLE = "console"
FINISH_SECONDS = 120.0  # unsent data then stays in the run directory for `wandb sync`


class Trackers:
    """Several trackers as one; a failing tracker is closed and left out from then on.

    Each failure gives one warning. An error of JsonLines ends the run.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Tracker]] | None = None) -> None:
        """makers: opens each tracker, by its name in warnings. resumed_at: the step the run goes on
        from, known before trackers open.
        """
        self._makers, self._active = makers or {}, dict[str, Tracker]()
        self.resumed_at = 0

    def open(self) -> Trackers:
        """Open all trackers without errors; returns self."""
        for name, make in self._makers.items():
            try:
                self._active[name] = make()
            except Exception as error:
                _warn(name, error)
        return self

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, tracker in list(self._active.items()):
            self._give(name, tracker, lambda tracker=tracker: tracker.log(step, values))

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Give a table to the trackers that show tables."""
        for tracker_name, tracker in list(self._active.items()):
            if isinstance(tracker, Tables):
                self._give(tracker_name, tracker, partial(tracker.table, step, name, rows))

    def step(self, step: int) -> None:
        """Move the bar after an update, without reading any of its numbers."""
        tracker = self._active.get(CONSOLE)
        if isinstance(tracker, Steps):
            self._give(CONSOLE, tracker, lambda: tracker.step(step))

    def _give(self, name: str, tracker: Tracker, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            if isinstance(tracker, JsonLines):
                raise
            _warn(name, error)
            del self._active[name]
            with contextlib.suppress(Exception):
                tracker.close()

    def close(self) -> None:
        while self._active:
            name, tracker = self._active.popitem()
            try:
                tracker.close()
            except Exception as error:
                _warn(name, error)


def _warn(name: str, error: Exception) -> None:
    message = "%s failed and is off for the rest of this run, which goes on: %s: %s"
    log.warning(message, name, type(error).__name__, error)


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
    if section.enable_tensorboard:
        folder = run_dir / section.tensorboard_dir
        makers["TensorBoard"] = lambda: TensorBoard(folder, resumed_at=trackers.resumed_at)
    if section.enable_wandb:
        makers["W&B"] = partial(WandB, section, run_dir, config_dict)
    makers |= more or {}
    if section.enable_console:
        from forge.training.callbacks.console import console_tracker

        makers[CONSOLE] = lambda: console_tracker(total_steps, resumed_at=trackers.resumed_at)
    trackers = Trackers(makers)
    return trackers


def trackers_of(session: Session) -> Trackers:
    """The trackers of a run, on its main rank. Raises ConfigError for an impossible entry."""
    config, run_dir = session.config, session.run_dir
    user_makers = {}
    for name, entry in config.trackers.items():
        path = f"trackers.{name}"
        user_makers[path] = bind(entry, path=path, trust=config.run.trust, run_dir=run_dir)
    if not session.ranks.main:
        return Trackers()
    return build_trackers(
        config.metrics,
        run_dir,
        total_steps=config.train.max_steps,
        config_dict=to_plain(config),
        more=user_makers,
    )


class JsonLines:
    """Writes metrics.jsonl and performance.jsonl.

    Rows are {"step": ..., **values}, and {"step": ..., "time": seconds since 1970, **WALL_CLOCK
    values}. A log without a value for a file adds no row.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def log(self, step: int, values: dict[str, float]) -> None:
        metrics = {name: value for name, value in values.items() if name not in WALL_CLOCK}
        performance = {name: value for name, value in values.items() if name in WALL_CLOCK}
        if metrics:
            append_row(self.run_dir / METRICS, {"step": step, **metrics})
        if performance:
            row = {"step": step, "time": time.time(), **performance}
            append_row(self.run_dir / PERFORMANCE, row)

    def close(self) -> None:
        """Nothing to release."""


class TensorBoard:
    """One scalar a metric, in the format's fp32; for `tensorboard --logdir DIRECTORY`.

    Logs of earlier starts of the run after step `resumed_at` are hidden from readers. Each log is
    flushed, so a killed process leaves all rows up to its last checkpoint.
    """

    def __init__(self, directory: Path, *, resumed_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(directory), purge_step=resumed_at + 1)

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """As text, in Markdown."""
        self._writer.add_text(name, markdown(rows), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """One W&B run, with files under `run_dir`/wandb; offline needs neither network nor account.

    The id is kept in `run_dir`/wandb_id, for a resumed run to log to the same W&B run. A step
    logged before is not logged again: its values are the same.
    """

    def __init__(self, section: Metrics, run_dir: Path, config: dict[str, Any]) -> None:
        import wandb

        id_file = run_dir / "wandb_id"
        run_id = section.wandb_run_id
        if not run_id and id_file.is_file():
            run_id = read_text(id_file).strip()
        # W&B may keep a git diff of its own, and masks nothing.
        recorded = config.get("run", {}).get("record_diff", True)
        recorded = recorded and not waits_for_trust(Path.cwd())
        settings = wandb.Settings(console="off", disable_git=not recorded)
        if hasattr(settings, "finish_timeout"):  # later wandb only
            settings.finish_timeout = FINISH_SECONDS
        self._run = wandb.init(
            project=section.wandb_project,
            entity=section.wandb_entity,
            group=section.wandb_group,
            notes=section.wandb_notes,
            name=section.wandb_run_name or run_dir.resolve().name,
            id=run_id or None,
            resume="allow" if run_id and sends(section) else None,
            # None: as WANDB_MODE and W&B's own settings have it
            mode=None if section.wandb_mode == "online" else "offline",
            dir=str(run_dir),
            config=config,
            tags=config.get("tags") or None,
            settings=settings,
        )
        id_file.write_text(f"{self._run.id}\n", encoding="utf-8")

    def log(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def table(self, step: int, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """A wandb.Table of the step."""
        import wandb

        columns: list[Any] = list(rows[0])
        data: list[Any] = [[row.get(key) for key in columns] for row in rows]
        table = wandb.Table(columns=columns, data=data, allow_mixed_types=True)
        self._run.log({name: table}, step=step)

    def close(self) -> None:
        """Raises W&B's error if its process is gone, as when Slurm ends all of a job."""
        import wandb

        try:
            self._run.finish()
        except Exception:
            with contextlib.suppress(Exception):
                wandb.teardown()  # else W&B tries again as Python ends, with a traceback
            raise


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table in Markdown; signs of Markdown in texts stay as they are typed."""
    lines = [list(rows[0]), ["---"] * len(rows[0])]
    lines += [[cell(value) for value in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    signs = str("" if value is None else value).replace("\\", "\\\\")
    for sign in "|`*_<[":
        signs = signs.replace(sign, f"\\{sign}")
    return signs.replace("\r", "").replace("\n", "<br>")
