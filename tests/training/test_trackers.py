"""Trackers, each read back with its own reader and compared with metrics.jsonl."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import forge
from forge.config.metrics import Metrics
from forge.evaluation.run import TaskResult
from forge.statistics.interval import Interval
from forge.training.callbacks.build_trackers import build_trackers
from forge.training.callbacks.tracker_services import FINISH_SECONDS, WandB
from forge.training.evaluating import give_to_trackers

LOGS = [
    (10, {"train/loss": 3.141592653589793, "lr": 3e-4, "tokens_per_second": 12345.6}),
    (20, {"train/loss": 2.718281828459045, "lr": 1e-4, "tokens_per_second": 23456.7}),
    (20, {"eval/loss": 2.5, "eval/bits_per_byte": 1.9}),
    (30, {"train/loss": 1e-7, "lr": 0.0, "tokens_per_second": 1.5e9}),
]
QUIET = {"enable_console": False}


def write(section: Metrics, run_dir: Path):
    config = {"seed": 7, "optimizer": {"lr": 3e-4}}
    trackers = build_trackers(section, run_dir, total_steps=30, config_dict=config).open()
    with closing(trackers):
        for step, values in LOGS:
            trackers.log(step, values)


def read_jsonl(run_dir: Path, *files: str) -> list[dict[str, float]]:
    """The rows of both files, or of one."""
    files = files or ("metrics.jsonl", "performance.jsonl")
    return [
        json.loads(line) for file in files for line in (run_dir / file).read_text().splitlines()
    ]


def scalars(rows: list[dict[str, float]]) -> dict[tuple[int, str], float]:
    """Every scalar by its step and name."""
    return {
        (int(row["step"]), name): value
        for row in rows
        for name, value in row.items()
        if name not in ("step", "time")
    }


def test_what_the_config_determines_and_what_the_clock_does_are_in_two_files(tmp_path):
    start = time.time()
    write(Metrics(**QUIET), tmp_path)
    metrics, performance = (
        read_jsonl(tmp_path, f"{name}.jsonl") for name in ("metrics", "performance")
    )
    speed = "tokens_per_second"
    rest = [{"step": step, **values} for step, values in LOGS]
    fast = [{"step": row["step"], speed: row.pop(speed)} for row in rest if speed in row]
    assert all(start <= row.pop("time") <= time.time() for row in performance)
    assert (metrics, performance) == (rest, fast)


def tensorboard(folder: Path) -> dict[tuple[int, str], float]:
    """Every scalar as TensorBoard shows it; each step once."""
    package = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(package).EventAccumulator(str(folder)).Reload()
    found = [
        ((event.step, name), event.value)
        for name in reader.Tags()["scalars"]
        for event in reader.Scalars(name)
    ]
    assert len(found) == len(dict(found))
    return dict(found)


def test_tensorboard_scalars_equal_the_jsonl(tmp_path):
    write(Metrics(enable_tensorboard=True, tensorboard_dir="events", **QUIET), tmp_path)
    logged = scalars(read_jsonl(tmp_path))
    # exact, in the fp32 of the event file
    expected = {key: float(np.float32(value)) for key, value in logged.items()}
    assert tensorboard(tmp_path / "events") == expected


def test_tensorboard_of_a_run_that_goes_on_shows_each_step_once(tmp_path):
    section = Metrics(enable_tensorboard=True, **QUIET)

    def shown(resumed_at: int, steps: range, value: float) -> list[float]:
        made = build_trackers(section, tmp_path, total_steps=9, config_dict={})
        made.resumed_at = resumed_at
        with closing(made.open()) as trackers:
            for step in steps:
                trackers.log(step, {"train/loss": value})
        found = tensorboard(tmp_path / "tb_logs")
        return [found[step, "train/loss"] for step in range(1, len(found) + 1)]

    assert shown(0, range(1, 8), 1.0) == [1.0] * 7
    assert shown(4, range(5, 7), 2.0) == [1.0] * 4 + [2.0] * 2, "7 is gone"
    assert shown(0, range(1, 4), 3.0) == [3.0] * 3
    assert shown(3, range(4, 5), 4.0) == [3.0] * 3 + [4.0]


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


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    """The package, without settings of this machine."""
    package = pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    return package


def test_offline_wandb_scalars_equal_the_jsonl(tmp_path, wandb):
    run_dir = tmp_path / "my-run"
    run_dir.mkdir()
    write(
        Metrics(
            enable_wandb=True,
            wandb_mode="offline",
            wandb_project="trial",
            wandb_run_id="abc123",
            **QUIET,
        ),
        run_dir,
    )
    wandb.teardown()  # waits for the process that writes the file
    (path,) = run_dir.glob("wandb/offline-run-*/*.wandb")
    records = read_wandb(path)
    (run, *_) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.run_id, run.display_name) == ("trial", "abc123", "my-run")
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config["seed"] == 7
    assert config["optimizer"] == {"lr": 3e-4}
    found = {
        (row["_step"], name): value
        for row in wandb_rows(path)
        for name, value in row.items()
        if name != "_step"
    }
    assert found.pop((20, "eval/step")) == 20
    assert found == scalars(read_jsonl(run_dir))


def test_offline_wandb_has_tables(tmp_path, wandb):
    section = Metrics(enable_wandb=True, wandb_mode="offline", **QUIET)
    trackers = build_trackers(section, tmp_path, total_steps=9, config_dict={}).open()
    rows = [{"text": "a|b", "reward": 1.0, "style": None}, {"text": "é", "reward": 0, "style": 2.5}]
    trackers.table(3, "train/completions", rows)
    trackers.close()
    wandb.teardown()
    (path,) = tmp_path.glob("wandb/offline-run-*/files/media/table/train/*.table.json")
    table = json.loads(path.read_text())
    assert table["columns"] == ["text", "reward", "style"]
    assert table["data"] == [["a|b", 1.0, None], ["é", 0, 2.5]]


def wandb_rows(path: Path) -> list[dict[str, Any]]:
    """The history of an offline file, W&B's own columns but its step left out."""
    rows = [
        {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in read_wandb(path)
        if record.HasField("history")
    ]
    return [{k: v for k, v in row.items() if k[0] != "_" or k == "_step"} for row in rows]


def test_offline_wandb_has_evaluations_of_earlier_steps(tmp_path, wandb):
    """W&B leaves out a step below the last one, so these are its newest rows, by their own step."""
    section = Metrics(enable_wandb=True, wandb_mode="offline", **QUIET)
    loop = WandB(section, tmp_path, {})
    loop.log(20, {"train/loss": 2.5})
    loop.log(20, {"eval/arc/accuracy": 0.5})
    loop.log(10, {"eval/arc/accuracy": 0.25})  # as a resumed run that repeats itself
    loop.log(30, {"train/loss": 2.0})
    loop.close()
    later = WandB(section, tmp_path, {}, after_training=True)
    for step, accuracy in ((30, 0.75), (12, 0.125)):
        later.log(step, {"eval/arc/accuracy": accuracy})
    later.close()
    wandb.teardown()
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"))
    at = "eval/step"
    first, second = map(wandb_rows, files)
    assert first == [
        {"_step": 20, "train/loss": 2.5, "eval/arc/accuracy": 0.5, at: 20},
        {"_step": 30, "train/loss": 2.0},
    ]
    assert [(row[at], row["eval/arc/accuracy"]) for row in second] == [(30, 0.75), (12, 0.125)]
    defined = [r.metric for file in files for r in read_wandb(file) if r.HasField("metric")]
    assert any((m.glob_name, m.step_metric) == ("eval/*", at) for m in defined)


def test_offline_wandb_goes_on_under_its_id(tmp_path, wandb):
    for _ in range(2):
        write(Metrics(enable_wandb=True, wandb_mode="offline", **QUIET), tmp_path)
    write(Metrics(enable_wandb=True, wandb_mode="offline", wandb_run_id="given", **QUIET), tmp_path)
    wandb.teardown()
    kept = (tmp_path / "wandb_id").read_text()
    assert kept == "given\n"
    ids = [path.stem.removeprefix("run-") for path in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    first, second, third = sorted(ids, key="given".__eq__)
    assert first == second != third == "given"


@pytest.mark.nightly
def test_a_wandb_process_that_is_ended_is_one_warning(tmp_path, wandb):
    script = f"""
import os, signal
from contextlib import closing
from pathlib import Path
from forge.config.metrics import Metrics
from forge.training.callbacks.build_trackers import build_trackers

section = Metrics(enable_wandb=True, wandb_mode="offline", enable_console=False)
trackers = build_trackers(section, Path({str(tmp_path)!r}), total_steps=3, config_dict={{}}).open()
with closing(trackers):
    trackers.log(1, {{"train/loss": 2.5}})
    children = [task / "children" for task in Path("/proc/self/task").iterdir()]
    (service,) = [pid for file in children for pid in file.read_text().split()]
    os.kill(int(service), signal.SIGTERM)
    os.waitid(os.P_PID, int(service), os.WEXITED | os.WNOWAIT)
    trackers.log(2, {{"train/loss": 2.0}})
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    *_, told = done.stderr.splitlines()
    assert told.startswith("W&B failed and is off for the rest of this run, which continues: ")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert [row["step"] for row in read_jsonl(tmp_path, "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    ("section", "kept", "expected"),
    [("", None, (None, None)), ("", "abc\n", ("abc", "allow")), ("own", "abc", ("own", "allow"))],
)
def test_online_wandb_is_asked_to_resume_the_id_it_has(
    tmp_path, wandb, monkeypatch, section, kept, expected
):
    asked = {}

    def init(**options):
        asked.update(options)
        ignored = dict.fromkeys(("finish", "define_metric"), lambda *_, **__: None)
        return SimpleNamespace(id=options["id"] or "new", **ignored)

    monkeypatch.setattr(wandb, "init", init)
    if kept:
        (tmp_path / "wandb_id").write_text(kept)
    WandB(Metrics(enable_wandb=True, wandb_run_id=section), tmp_path, {})
    assert (asked["id"], asked["resume"], asked["mode"]) == (*expected, None)
    assert asked["settings"].finish_timeout == FINISH_SECONDS
    assert (tmp_path / "wandb_id").read_text() == f"{expected[0] or 'new'}\n"
    assert not asked["settings"].disable_git
    WandB(Metrics(enable_wandb=True), tmp_path, {"run": {"record_diff": False}})
    assert asked["settings"].disable_git, "W&B has a diff of its own"


def test_a_full_disk_ends_the_run_and_the_other_trackers_are_closed(tmp_path):
    did: list[str] = []
    other = SimpleNamespace(log=lambda *_: did.append("log"), close=lambda: did.append("close"))
    options: Any = {"total_steps": 1, "config_dict": {}, "more": {"other": lambda: other}}
    trackers = build_trackers(Metrics(**QUIET), tmp_path, **options).open()
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"metrics\.jsonl cannot be written"), closing(trackers):
        trackers.log(1, {"a": 1.0})
    assert did == ["close"]


def test_what_is_not_enabled_is_not_imported(tmp_path):
    script = f"""
import sys
from pathlib import Path
from forge.config.metrics import Metrics
from forge.training.callbacks.build_trackers import build_trackers
section = Metrics(enable_console=False)
build_trackers(section, Path({str(tmp_path)!r}), total_steps=1, config_dict={{}}).open().close()
print(sorted({{"torch", "tensorboard", "wandb", "rich"}} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.stdout.strip() == "[]"


def test_an_evaluation_after_training_joins_what_was_logged(tiny_run: Path) -> None:
    """Of an earlier step too: the later logs of the training stay."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    section = Metrics(enable_console=False, enable_tensorboard=True)
    write(section, tiny_run)
    csv = {"_target_": "forge.trackers.csv_file.CSVFile", "file_name": "own.csv"}
    config = replace(forge.load(tiny_run).config, metrics=section, trackers={"own": csv})
    accuracy = Interval(value=0.25, n=4, stderr=0.1)
    result = TaskResult(name="arc", rows=[], metrics={"accuracy": accuracy}, of=4)
    give_to_trackers(config, tiny_run, [result], 12)
    give_to_trackers(config, tiny_run / "elsewhere", [result], 13)
    events = EventAccumulator(str(tiny_run / section.tensorboard_dir)).Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [10, 20, 30]
    assert [(event.step, event.value) for event in events.Scalars("eval/arc/accuracy")] == [
        (12, 0.25)
    ]
    assert "0.25" in (tiny_run / "own.csv").read_text()
