"""The local launcher with several ranks: what each is told, who is heard, and that none outlives a
run.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_local import Stub, alive, read_pid, stub, wait_for

from forge.launch.local import processes

__all__ = ["stub"]
RANK = "rank = int(os.environ['RANK'])\n"
PID = "(RUN_DIR / f'pid{rank}').write_text(str(os.getpid()))\n"
FAIL = """
from forge.rundir.outcome import record_failure
record_failure(RUN_DIR, rank=rank, kind='KeyError', message='wk', trace='the trace', said='rank 1 of 2 failed: wk', code=1)
sys.exit(1)
"""


@pytest.fixture
def start(stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """local.start of that many ranks, with this code in the worker's place."""

    def run(code: str, ranks: int = 2) -> int:
        monkeypatch.setattr(processes.sys, "executable", stub(RANK + code))
        return processes.start(tmp_path, ranks)

    return run


def test_each_rank_is_told_who_it_is(
    start: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    names = "('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'TORCHELASTIC_USE_AGENT_STORE')"
    code = f"(RUN_DIR / f'seen{{rank}}').write_text(' '.join(os.environ.get(name, '-') for name in {names}))\n"
    assert start(code + "(RUN_DIR / f'port{rank}').write_text(os.environ['MASTER_PORT'])", 3) == 0
    assert [(tmp_path / f"seen{rank}").read_text() for rank in range(3)] == [
        f"{rank} {rank} 3 127.0.0.1 -" for rank in range(3)
    ]
    assert len({(tmp_path / f"port{rank}").read_text() for rank in range(3)}) == 1


def test_the_terminal_is_the_main_ranks(
    start: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = "print('out', rank)\nsys.stdout.flush()\nprint('error', rank, file=sys.stderr)"
    assert start(code) == 0
    assert capfd.readouterr() == ("out 0\n", "error 0\n")
    assert (tmp_path / "logs" / "rank_1.log").read_text() == "out 1\nerror 1\n"


@pytest.mark.parametrize("first", [0, 1, 2])
def test_whichever_rank_dies_is_seen_at_once(
    first: int,
    start: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The others, which would wait for ever, are ended."""
    monkeypatch.setattr(processes, "GRACE", 0.3)
    began = time.monotonic()
    assert (
        start(
            f"{PID}os.kill(os.getpid(), signal.SIGKILL) if rank == {first} else time.sleep(60)", 3
        )
        == 137
    )
    assert time.monotonic() - began < 4
    hint = " (out of memory? lower train.batch_size)"
    assert (
        capfd.readouterr().err
        == f"rank {first} of 3 was ended by SIGKILL{hint}; the run goes on with: python -m forge.resume {tmp_path}\n"
    )
    pids = [tmp_path / f"pid{rank}" for rank in range(3)]
    assert not [file for file in pids if file.exists() and alive(int(file.read_text()))]


def test_a_rank_that_fails_is_heard_with_its_own_words(
    start: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Also where the main rank, which only lost it, ends before it does."""
    code = "while rank == 0 and not (RUN_DIR / 'error.json').exists(): time.sleep(0.01)\nif rank == 0: sys.exit(1)\n"
    assert start(code + FAIL) == 1
    assert capfd.readouterr().err == "rank 1 of 2 failed: wk\n"


def test_what_the_main_rank_has_said_is_not_said_again(
    start: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert start(FAIL.replace("rank=rank", "rank=0")) == 1
    assert capfd.readouterr().err == ""


def test_the_reason_that_was_there_first_stays(
    start: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A rank that fails and is then ended by a signal, as by an abort of NCCL, failed for its first
    reason.
    """
    assert (
        start("if rank == 0: time.sleep(60)\n" + FAIL.replace("sys.exit(1)", "os.abort()")) == 134
    )
    assert capfd.readouterr().err == "rank 1 of 2 failed: wk\n"


def test_a_signal_before_the_ranks_listen_ends_all(
    start: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing was trained yet, so none waits for the other, and it is no failure."""

    def send() -> None:
        for rank in (0, 1):
            read_pid(tmp_path / f"pid{rank}")
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=send).start()
    began = time.monotonic()
    assert (
        start(
            f"if rank: signal.signal(signal.SIGTERM, lambda *_: None)\n{PID}\nwhile True: time.sleep(60)"
        )
        == 143
    )
    assert time.monotonic() - began < processes.GRACE
    assert "was ended by SIGTERM" in capfd.readouterr().err
    assert not (tmp_path / "error.json").exists()
    wait_for(lambda: not any(alive(int((tmp_path / f"pid{rank}").read_text())) for rank in (0, 1)))


def test_a_log_that_cannot_be_opened_stops_nothing(
    start: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "logs").write_text("in the way")
    assert start("print(rank)") == 0
