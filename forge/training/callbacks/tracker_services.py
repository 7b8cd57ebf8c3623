"""TensorBoard and Weights & Biases as destinations of metrics and tables."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forge.config.metrics import Metrics
from forge.config.regular import read_text
from forge.config.wandb_login import sends
from forge.rundir.trusted import waits_for_trust

EVALUATIONS, EVALUATION_STEP = "eval/", "eval/step"
FINISH_SECONDS = 120.0  # unsent data then stays in the run directory for `wandb sync`


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
    logged before is not logged again: its values are the same. after_training: for evaluations of
    any step, which W&B would leave out behind a later one; they are the newest rows, and charts of
    eval/* are drawn over `eval/step`.
    """

    def __init__(
        self,
        section: Metrics,
        run_dir: Path,
        config: dict[str, Any],
        *,
        after_training: bool = False,
    ) -> None:
        import wandb

        self.after_training = after_training

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
        self._run.define_metric(f"{EVALUATIONS}*", step_metric=EVALUATION_STEP)

    def log(self, step: int, values: dict[str, float]) -> None:
        row: dict[str, float] = dict(values)
        if any(name.startswith(EVALUATIONS) for name in values):
            row[EVALUATION_STEP] = step
        self._run.log(row, step=None if self.after_training else step)

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
