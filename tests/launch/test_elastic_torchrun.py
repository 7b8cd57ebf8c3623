"""An elastic run under torchrun: two nodes, then one, then two again; nobody types a thing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import elastic_ranks
import pytest
from elastic_ranks import OPTIONS, STEPS, WITHIN

from forge.launch.local.elastic import SHARES
from forge.launch.local.processes import free_port
from forge.rundir.checkpoints import Saved
from forge.rundir.files import read_rows
from forge.rundir.outcome import attempts
from forge.rundir.wall_clock.goodput import read_goodput

OWN = ("run.num_processes", "train.batch_size")
WORDS = [word for word in OPTIONS if not word.startswith(OWN)]
WORDS += ["train.batch_size=6", "data=text"]
ROUNDS = "last_call_timeout=2,keep_alive_interval=1"
PATIENCE = 900.0


def steps_of(run: Path) -> int:
    return len(read_rows(run / "metrics.jsonl")) if (run / "metrics.jsonl").exists() else 0


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


@pytest.mark.nightly
def test_two_nodes_then_one_then_two(text_file: Path, tmp_path: Path) -> None:
    """A node is killed with all its processes; later another comes. Same samples, and the loss of
    each step is that of a run left alone, within 1e-5.
    """
    folder = str(Path(str(elastic_ranks.__file__)).parent)
    paths = filter(None, [folder, os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), SHARES: "1"}
    words, run, alone = [*WORDS, f"data.path={text_file}"], tmp_path / "run", tmp_path / "alone"
    single = [*words, "run.num_processes=2", f"run.dir={alone}"]
    train = [sys.executable, "-m", "forge.train"]
    subprocess.run([*train, *single], check=True, timeout=PATIENCE, env=env, capture_output=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2"]
    torchrun += ["--nproc-per-node=1", "--max-restarts=5", "--rdzv-backend=c10d", "--rdzv-id=run"]
    port = free_port()
    torchrun += [f"--rdzv-endpoint=localhost:{port}", f"--rdzv-conf={ROUNDS}"]
    command = [*torchrun, "-m", "forge.train", *words, "run.elastic=1:2", f"run.dir={run}"]
    nodes: list[subprocess.Popen[bytes]] = []

    def node() -> None:
        with (tmp_path / f"node_{len(nodes)}").open("wb") as output:
            process = subprocess.Popen(
                command, env=env, stdout=output, stderr=output, start_new_session=True
            )
        nodes.append(process)

    try:
        node()
        wait_until(lambda: listens(port))  # the first node has the store of them all
        node()
        wait_until(lambda: steps_of(run) >= 20)
        os.killpg(nodes[1].pid, signal.SIGKILL)
        killed_at = steps_of(run)
        wait_until(lambda: steps_of(run) >= killed_at + 15 and len(attempts(run)) >= 2)
        node()
        wait_until(lambda: nodes[0].poll() is not None)
        said = (tmp_path / "node_0").read_text() + (tmp_path / "node_2").read_text()
        assert nodes[0].returncode == 0, said
    finally:
        for process in nodes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    rows, expected = (read_rows(path / "metrics.jsonl") for path in (run, alone))
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row, other in zip(rows, expected, strict=True):
        assert abs(row["train/loss"] - other["train/loss"]) < WITHIN
        assert row["tokens"] == other["tokens"]
    ends = [Saved(path / "checkpoints" / f"step_{STEPS}").meta["loader"] for path in (run, alone)]
    assert ends[0] == ends[1]
    starts = [row for row in attempts(run) if row["event"] == "start"]
    assert len({row["config"] for row in starts}) >= 3  # a first node may have begun alone
    spent = read_goodput(run)
    assert spent is not None
    assert spent.seconds["restart"] > 0
    assert "idle" not in spent.seconds
