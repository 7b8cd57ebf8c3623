"""Trackers, each read back with its own reader and compared with metrics.jsonl."""

from __future__ import annotations

import json
import logging
import math
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forge.config.metrics import Metrics
from forge.training.trackers import Trackers, build_trackers
from forge.training.trackers.jsonl import JsonLines

LOGS = [
    (10, {"train/loss": 3.141592653589793, "lr": 3e-4, "tokens_per_second": 12345.6}),
    (20, {"train/loss": 2.718281828459045, "lr": 1e-4, "tokens_per_second": 23456.7}),
    (20, {"eval/loss": 2.5, "eval/bits_per_byte": 1.9}),
    (30, {"train/loss": 1e-7, "lr": 0.0, "tokens_per_second": 1.5e9}),
]
QUIET = {"enable_console": False}


def write(section: Metrics, run_dir: Path) -> None:
    with build_trackers(section, run_dir, total_steps=30, config_dict={"seed": 7, "optimizer": {"lr": 3e-4}}) as trackers:
        for step, values in LOGS:
            trackers.log(step, values)


def read_jsonl(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def scalars(rows: list[dict[str, float]]) -> dict[tuple[int, str], float]:
    """Every scalar by its step and name."""
    return {(int(row["step"]), name): value for row in rows for name, value in row.items() if name not in ("step", "time")}


EXPECTED = {(step, name): value for step, values in LOGS for name, value in values.items()}


def test_jsonl_has_one_line_a_log_with_step_time_and_every_value(tmp_path):
    start = time.time()
    write(Metrics(**QUIET), tmp_path)
    rows = read_jsonl(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [step for step, _ in LOGS]
    assert scalars(rows) == EXPECTED
    assert all(start <= row["time"] <= time.time() for row in rows)


def test_jsonl_line_is_there_before_close_and_a_second_run_appends(tmp_path):
    first = JsonLines(tmp_path / "metrics.jsonl")
    first.log(1, {"a": 1.0, "b": math.nan})
    (row,) = read_jsonl(tmp_path / "metrics.jsonl")
    assert row["a"] == 1
    assert math.isnan(row["b"])
    first.close()
    second = JsonLines(tmp_path / "metrics.jsonl")
    second.log(2, {"a": math.inf})
    second.close()
    assert [row["a"] for row in read_jsonl(tmp_path / "metrics.jsonl")] == [1, math.inf]


def test_tensorboard_scalars_equal_the_jsonl(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write(Metrics(enable_tensorboard=True, tensorboard_dir="events", **QUIET), tmp_path)
    reader = event_accumulator.EventAccumulator(str(tmp_path / "events")).Reload()
    found = {(event.step, name): event.value for name in reader.Tags()["scalars"] for event in reader.Scalars(name)}
    expected = {key: float(np.float32(value)) for key, value in scalars(read_jsonl(tmp_path / "metrics.jsonl")).items()}
    assert found == expected  # exact, in the fp32 of the event file


def read_wandb(path: Path) -> list:
    """Records of an offline .wandb file: a 7-byte header, then LevelDB log blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, position, records, parts = path.read_bytes(), 7, [], b""
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:  # no header fits into what is left of the block
            position += 32768 - position % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # full, or the last part
            records.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return records


def test_offline_wandb_scalars_equal_the_jsonl(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    run_dir = tmp_path / "my-run"
    run_dir.mkdir()
    write(Metrics(enable_wandb=True, wandb_mode="offline", wandb_project="trial", wandb_run_id="abc123", **QUIET), run_dir)
    wandb.teardown()  # waits for the process that writes the file
    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    records = read_wandb(path)
    (run, *_) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.run_id, run.display_name) == ("trial", "abc123", "my-run")
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config["seed"] == 7
    assert config["optimizer"] == {"lr": 3e-4}
    found = {}
    for record in records:
        if record.HasField("history"):
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            found |= {(row["_step"], name): value for name, value in row.items() if not name.startswith("_")}
    assert found == scalars(read_jsonl(run_dir / "metrics.jsonl"))


class Recorder:
    """Remembers what it was told, and fails at one step if asked to."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.fail_at, self.steps, self.closed = fail_at, [], 0

    def log(self, step: int, values: dict[str, float]) -> None:
        if step == self.fail_at:
            raise OSError("disk full")
        self.steps.append(step)

    def close(self) -> None:
        self.closed += 1


def test_a_failing_tracker_is_closed_and_disabled_with_one_warning(caplog):
    failing, healthy, trackers = Recorder(fail_at=2), Recorder(), Trackers()
    trackers.add("failing", lambda: failing)
    trackers.add("healthy", lambda: healthy)
    with caplog.at_level(logging.WARNING), trackers:
        for step in range(1, 5):
            trackers.log(step, {"a": 1.0})
    assert failing.steps == [1]
    assert healthy.steps == [1, 2, 3, 4]
    assert (failing.closed, healthy.closed) == (1, 1)
    assert [record.getMessage() for record in caplog.records] == [
        "failing failed and is off for the rest of this run, which goes on: OSError: disk full"
    ]


def test_a_tracker_that_cannot_be_opened_or_closed_is_a_warning(caplog):
    def cannot_open() -> Recorder:
        raise ConnectionError("no network")

    class CannotClose(Recorder):
        def close(self) -> None:
            raise OSError("gone")

    trackers, healthy = Trackers(), Recorder()
    with caplog.at_level(logging.WARNING):
        trackers.add("remote", cannot_open)
        trackers.add("healthy", lambda: healthy)
        trackers.add("stuck", CannotClose)
        trackers.log(1, {"a": 1.0})
        trackers.close()
        trackers.close()
    assert healthy.closed == 1
    assert ["no network" in record.getMessage() for record in caplog.records] == [True, False]
    assert "stuck" in caplog.records[1].getMessage()


def test_trackers_are_closed_when_the_run_fails():
    recorder, trackers = Recorder(), Trackers()
    trackers.add("recorder", lambda: recorder)
    with pytest.raises(KeyError), trackers:
        raise KeyError("the run")
    assert recorder.closed == 1


def test_a_run_directory_that_takes_no_file_does_not_fail_the_run(tmp_path, caplog):
    (tmp_path / "run").write_text("not a directory")
    with caplog.at_level(logging.WARNING):
        write(Metrics(**QUIET), tmp_path / "run")
    assert "metrics.jsonl failed" in caplog.records[0].getMessage()


def test_what_is_not_enabled_is_not_imported(tmp_path):
    script = f"""
import sys
from pathlib import Path
from forge.config.metrics import Metrics
from forge.training.trackers import build_trackers
build_trackers(Metrics(enable_console=False), Path({str(tmp_path)!r}), total_steps=1, config_dict={{}}).close()
print(sorted({{"torch", "tensorboard", "wandb", "rich"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "[]"
