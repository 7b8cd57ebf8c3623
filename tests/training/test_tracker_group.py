"""The options of the tracker group, each read back by the reader that its users have."""

from __future__ import annotations

import csv
import logging
import socket
import sys
import urllib.request
from pathlib import Path

import pytest

from forge.config.problems import ConfigError
from forge.rundir.files import cut_rows, read_rows, row_sizes
from forge.rundir.history import history
from forge.rundir.untrusted import reaching_out
from forge.trackers.csv_file import CSVFile
from forge.trackers.mlflow import MLflow
from forge.trackers.prometheus import Prometheus

SMALL = "train.max_steps=4 metrics.log_interval=1 eval.interval=2"


def assert_table_is_the_history(path: Path):
    import pandas

    table = pandas.read_csv(path / "metrics.csv").set_index("step")
    logged = pandas.DataFrame(history(path)).drop(columns="time").set_index("step")
    assert set(table.columns) == set(logged.columns)
    pandas.testing.assert_frame_equal(table, logged[table.columns], check_dtype=False)


def test_csv_is_one_table_of_all_that_was_logged_also_when_a_run_goes_on(trained):
    path = trained(SMALL, "+tracker=csv")
    assert_table_is_the_history(path)
    files = [path / "metrics.jsonl", path / "performance.jsonl"]
    sizes = row_sizes(files)
    for step in (5, 6, 7):  # killed after step 7, and to resume from step 4
        with files[0].open("a") as file:
            file.write(f'{{"step": {step}, "train/loss": 9.0}}\n')
    cut_rows(files, sizes)
    table = CSVFile(path)
    table.log(5, {"train/loss": 1.5})
    table.log(5, {"eval/new": 2.5})
    table.close()
    assert_table_is_the_history_and(path, {"train/loss": 1.5, "eval/new": 2.5})


def assert_table_is_the_history_and(path: Path, last: dict[str, float]):
    with (path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5]
    assert {name: float(text) for name, text in rows[-1].items() if text} == {"step": 5, **last}


def test_mlflow_has_the_config_and_every_metric_once(trained, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = (tmp_path / "mlruns").as_uri()
    path = trained(SMALL, "+tracker=mlflow", f"trackers.mlflow.tracking_uri={address}")
    again = MLflow(path, tracking_uri=address)  # as a run that resumes from step 2
    for row in read_rows(path / "metrics.jsonl"):
        again.log(row.pop("step"), row)
    again.log(5, {"train/loss": 1.5})
    again.close()
    client = mlflow.MlflowClient(address)
    (run,) = client.search_runs([client.get_experiment_by_name("forge").experiment_id])
    assert (run.info.run_name, run.info.status) == (path.name, "FINISHED")
    assert run.data.params["train.max_steps"] == "4"
    losses = {row["step"]: row["train/loss"] for row in history(path, "train/loss")} | {5: 1.5}
    sent = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "train/loss")]
    assert sorted(sent) == sorted(losses.items())


def test_prometheus_answers_over_http_and_in_a_file(tmp_path):
    pytest.importorskip("prometheus_client")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tracker = Prometheus(tmp_path, port=port)
    tracker.log(10, {"train/loss": 2.5})
    tracker.log(20, {"train/loss": 1.25, "lr": 3e-4})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        served = answer.read().decode()
    tracker.close()
    run = tmp_path.name
    for text in (served, (tmp_path / "metrics.prom").read_text()):
        lines = text.splitlines()
        for name, value in (("step", "20.0"), ("train_loss", "1.25"), ("lr", "0.0003")):
            assert f'forge_{name}{{run="{run}"}} {value}' in lines


def test_a_package_that_is_missing_is_a_warning_that_says_what_to_install(
    trained, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with caplog.at_level(logging.WARNING):
        trained(SMALL, "+tracker=mlflow")
    assert "pip install 'forge-lm[mlflow]'" in caplog.text


def test_a_mistyped_option_is_refused(new_run):
    with pytest.raises(ConfigError, match=r"trackers\.csv\.file_nam"):
        new_run("+tracker=csv", "trackers.csv.file_nam=x")


def test_what_a_handed_over_directory_sends_or_serves_is_asked_for():
    entries = {
        "csv": {"_target_": "forge.trackers.csv_file.CSVFile", "file_name": "../x.csv"},
        "mlflow": {"tracking_uri": "http://example.invalid", "experiment": "forge"},
        "prometheus": {"port": 9000, "textfile": "metrics.prom"},
    }
    named = ["csv.file_name", "mlflow.tracking_uri", "prometheus.port"]
    assert reaching_out({"trackers": entries}) == [f"trackers.{name}" for name in named]
