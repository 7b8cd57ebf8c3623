"""A rank that the others wait for is named: of written times, and of a run with a slow rank."""

from __future__ import annotations

import json
import logging
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.going_on_helpers import take
from helpers.ranks import forking
from layouts import LAYOUTS, SMALL, rank_of

from forge.launch.local.processes import free_port
from forge.parallel.ranks import Ranks
from forge.rundir.pace import LATE, moments_of, read_paces, shares_waited, straggler
from forge.training.callbacks import stragglers


def write(run: Path, rank: int, rows: list[Any], *, host: str = "a", ahead: float = 0.0) -> None:
    (run / "alive").mkdir(exist_ok=True)
    content = {"host": host, "process": 100 + rank, "ahead": ahead, "rows": rows}
    (run / "alive" / f"pace_{rank}").write_text(json.dumps(content))


def test_the_share_is_the_time_that_others_wait(tmp_path: Path) -> None:
    """Steps of a second in which rank 2 comes 0.3 s after the others, by another host's clock."""
    for rank in range(4):
        late = 0.3 if rank == 2 else 0.0
        clock = 5.0 if rank > 1 else 0.0
        rows = [["w", n, 1000 + n + late + clock, None] for n in range(rank, 11 + rank)]
        write(tmp_path, rank, rows, host="ab"[rank > 1], ahead=clock)
    paces = read_paces(tmp_path)
    # Numbers 3 to 10 are those of all: 8 times 0.3 s in 7 s.
    assert shares_waited(paces) == pytest.approx({0: 0.0, 1: 0.0, 2: 8 * 0.3 / 7, 3: 0.0})
    assert straggler(tmp_path) == (
        "rank 2 (process 102 on b) is slow: in collectives the others wait for it 34% of the time"
    )


def test_timed_collectives_are_compared_by_their_time(tmp_path: Path) -> None:
    """Of NCCL, where a process comes early and its device late: it spends least time in them."""
    for rank in range(3):
        took = 0.05 if rank == 1 else 0.25
        write(tmp_path, rank, [["w", n, 1000 + n, took] for n in range(9)])
    assert shares_waited(read_paces(tmp_path)) == pytest.approx({0: 0, 1: 9 * 0.2 / 8, 2: 0})


def test_no_rank_is_named_without_cause(tmp_path: Path) -> None:
    assert straggler(tmp_path) == ""
    for rank in range(2):
        write(tmp_path, rank, [["w", n, n + rank * LATE * 0.7, None] for n in range(12)])
    assert straggler(tmp_path) == "", "below the bound"
    write(tmp_path, 1, [["w", n, n + 0.5, None] for n in range(5, 12)])
    assert straggler(tmp_path) == "", "too few in common"
    (tmp_path / "alive" / "pace_1").write_text("{torn")
    assert [pace.rank for pace in read_paces(tmp_path)] == [0]


def test_entries_of_the_flight_recorder() -> None:
    entry = {
        "process_group": ("7", "mesh"),
        "collective_seq_id": 4,
        "time_created_ns": 2_500_000_000,
    }
    sent = {**entry, "is_p2p": True, "collective_seq_id": 5}
    timed = {**entry, "collective_seq_id": 6, "duration_ms": 1.5}
    assert moments_of([entry, sent, timed]) == {"7": {4: (2.5, None), 6: (2.5, 0.0015)}}


@pytest.mark.nightly
def test_a_slow_rank_of_a_run_is_named(tmp_path: Path, text_file: Path, monkeypatch) -> None:
    place = f"run.dir={tmp_path / 'run'} data=text data.path={text_file} train.max_steps=60"
    seldom = "metrics.step_deviation_interval_seconds=1 train.global_batch_size=8"
    path, _ = take(*f"{SMALL} {LAYOUTS['fsdp4']} {place} {seldom}".split())
    (path / "batches").mkdir()
    (path / "alive").mkdir()
    own_batch, warnings = Ranks.own_batch, tmp_path / "warnings"

    def slow(self: Ranks, *arguments: Any) -> Any:
        if self.rank == 2:
            time.sleep(0.15)
        return own_batch(self, *arguments)

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.write_text(record.getMessage())

    monkeypatch.setattr(Ranks, "own_batch", slow)
    monkeypatch.setattr(stragglers.log, "handlers", [Notes()])
    where = {"WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    fork = multiprocessing.get_context("fork").Process
    ranks = [fork(target=rank_of, args=(path, rank, where)) for rank in range(4)]
    with forking():
        for process in ranks:
            process.start()
    for process in ranks:
        process.join(120)
    assert [process.exitcode for process in ranks] == [0] * 4
    assert warnings.read_text().startswith("rank 2 (process "), warnings.read_text()
    assert not [*(path / "alive").glob("pace_*")]
