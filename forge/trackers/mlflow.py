"""Metrics and the config as a run of MLflow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forge.config.regular import read_text
from forge.rundir.files import write_text
from forge.rundir.saved_config import read_plain

BATCH = 100  # parameters in a request, MLflow's limit
LONGEST = 6000  # characters of a parameter's value, MLflow's limit


class MLflow:
    """A run of MLflow; options of the config are MLflow's parameters, by dotted key.

    tracking_uri: a server or database; null = MLFLOW_TRACKING_URI, else MLflow's own default.
    experiment: made if absent. run_name: null = the name of the run directory.

    `run_dir`/mlflow_id keeps the id: a continued run continues in the same run of MLflow. A step
    logged before is not logged again, since its values are the same.
    """

    def __init__(
        self,
        run_dir: Path,
        tracking_uri: str | None = None,
        experiment: str = "forge",
        run_name: str | None = None,
    ) -> None:
        try:
            from mlflow import MlflowClient
        except ImportError as error:
            raise ImportError("mlflow is not installed; pip install 'forge-lm[mlflow]'") from error
        self._client = MlflowClient(tracking_uri)
        self._last_steps: dict[str, int] = {}
        id_file = run_dir / "mlflow_id"
        if id_file.is_file():
            self._id = read_text(id_file).strip()
            self._client.update_run(self._id, status="RUNNING")
            for name in self._client.get_run(self._id).data.metrics:
                steps = [metric.step for metric in self._client.get_metric_history(self._id, name)]
                self._last_steps[name] = max(steps)
            return
        stored = self._client.get_experiment_by_name(experiment)
        experiment_id = (
            stored.experiment_id if stored else self._client.create_experiment(experiment)
        )
        run = self._client.create_run(experiment_id, run_name=run_name or run_dir.resolve().name)
        self._id = run.info.run_id
        write_text(id_file, f"{self._id}\n")
        self._log_config(read_plain(run_dir))

    def log(self, step: int, values: dict[str, float]) -> None:
        """Send the values in a single request."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        new = [
            Metric(name, value, now, step)
            for name, value in values.items()
            if step > self._last_steps.get(name, -1)
        ]
        if new:
            self._client.log_batch(self._id, metrics=new)

    def close(self) -> None:
        """End the run in MLflow; the outcome is in the run directory."""
        self._client.set_terminated(self._id)

    def _log_config(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(key, str(value)[:LONGEST]) for key, value in _flat(config)]
        for start in range(0, len(params), BATCH):
            self._client.log_batch(self._id, params=params[start : start + BATCH])


def _flat(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
