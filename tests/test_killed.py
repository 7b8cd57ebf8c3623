"""Runs that are killed, and go on as if nothing had been; benchmarks/kill_resume.py does it at
length.
"""

from __future__ import annotations

import os
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kill_compare
import pytest
from kill_resume import HERE, TRUST, Kill, Outcome, marks, run_killed

from forge import cli, train
from forge.rundir.lock import InUse, Lock

SMALL = [
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "model.dim=32",
    "model.n_layers=2",
    "model.n_heads=2",
    "model.ffn_hidden_dim=64",
    "model.max_seq_len=64",
    "train.seq_len=16",
    "train.global_batch_size=8",
    "train.max_steps=24",
    "scheduler.warmup_steps=2",
    "optimizer.lr=0.001",
    "metrics.log_interval=4",
    "checkpoint.interval=5",
    "checkpoint.async_mode=async",
    "checkpoint.keep_last_n=2",
    "eval.interval=7",
    "eval.steps=4",
    "eval.sample_prompts=[ship]",
    "eval.sample_tokens=8",
    "run.device=cpu",
    "run.num_threads=1",
    TRUST,
]
Starter = Callable[..., list[Outcome]]


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """forge.train of a small model into a directory."""
    draw, words = (
        random.Random(0),
        ["the", "sea", "ship", "whale", "white", "captain", "said", "and"],
    )
    text = tmp_path_factory.mktemp("corpus") / "text.txt"
    text.write_text("".join(f"{i} {' '.join(draw.choices(words, k=8))}\n" for i in range(300)))
    common = [sys.executable, "-m", "forge.train", "data=text", f"data.path={text}", *SMALL]
    return lambda run_dir, batch_size=4, *more: [
        *common,
        f"run.dir={run_dir}",
        f"train.batch_size={batch_size}",
        *more,
    ]


@pytest.fixture(scope="module")
def undisturbed(
    command: Callable[..., list[str]], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    subprocess.run(command(path), check=True, capture_output=True, timeout=60)
    return path


@pytest.fixture
def killed(command: Callable[..., list[str]], tmp_path: Path) -> Starter:
    """The outcomes of the starts of tmp_path/run; the n-th takes the n-th batch size, the last the
    last.
    """

    def run(kills: list[Kill], batch_sizes: tuple[int, ...] = (4,)) -> list[Outcome]:
        scratch = tmp_path / "marks"
        scratch.mkdir()
        sizes = [*batch_sizes, *([batch_sizes[-1]] * len(kills))]
        env = {**os.environ, "PYTHONPATH": str(HERE)}
        more = marks(scratch)
        return list(
            run_killed(
                lambda n: command(tmp_path / "run", sizes[n], *more),
                tmp_path / "run",
                kills,
                scratch=scratch,
                env=env,
            )
        )

    return run


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_ends_with_the_same_bits(
    killed: Starter, undisturbed: Path, tmp_path: Path
) -> None:
    kills = [
        Kill(place="step", step=3),
        Kill(place="commit", step=10, delay=0.2),
        Kill(place="evaluation", step=21, skip=1),
    ]
    first, save, evaluation, last = killed(kills)
    assert (first.step, first.left) == (3, "no checkpoint")
    assert (save.went_on_from, save.left) == ("the beginning", ".step_10.partial, step_5")
    assert (evaluation.went_on_from, evaluation.step) == ("step_5", 21)
    assert last.went_on_from in ("step_15", "step_20")  # the save of step 20 was under way or done
    assert (last.left, last.code) == ("step_20, step_24", 0)
    same, different = kill_compare.compare(undisturbed, tmp_path / "run")
    assert not different
    assert len(same) == 7


@pytest.mark.slow
def test_a_run_that_is_told_to_stop_saves_and_goes_on_with_the_same_bits(
    killed: Starter, undisturbed: Path, tmp_path: Path
) -> None:
    stops = [
        Kill(place="evaluation", step=7, number=signal.SIGTERM),
        Kill(place="commit", step=10, number=signal.SIGTERM, to="parent"),
        Kill(place="step", step=18, to="parent"),
    ]
    outcomes = killed(stops)
    assert [one.code for one in outcomes] == [143, 143, -9, 0]
    assert outcomes[0].left == "step_5, step_7"
    assert outcomes[3].went_on_from in (
        "step_18",
        "step_19",
        "step_20",
    )  # its worker is told by the end of its parent, and saves
    assert not kill_compare.compare(undisturbed, tmp_path / "run", tidy=False)[1]


@pytest.mark.slow
def test_a_run_goes_on_with_another_micro_batch(
    killed: Starter, undisturbed: Path, tmp_path: Path
) -> None:
    outcomes = killed(
        [Kill(place="step", step=12), Kill(place="step", step=22)], batch_sizes=(4, 8, 2)
    )
    assert [one.went_on_from.startswith("step_") for one in outcomes] == [False, True, True]
    same, different = kill_compare.compare(undisturbed, tmp_path / "run", exact=False)
    assert not different, same
    assert (tmp_path / "run" / "config.3.yaml").exists()


@pytest.mark.slow
def test_a_second_process_is_refused_and_a_kill_lets_the_directory_go(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    endless = command(run_dir, 4, "train.max_steps=1000000", "eval=off")
    process = subprocess.Popen(endless, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        _wait_for(lambda: (run_dir / "metrics.jsonl").exists())
        second = subprocess.run(endless, capture_output=True, text=True, timeout=60)
        assert second.returncode == 2
        rank = _child(process.pid)
        said = f"{run_dir} is in use by process {rank} on {platform.node()} since "
        assert said in second.stderr
        assert "-> Wait for it, end it, or give another run.dir" in second.stderr
        assert "Traceback" not in second.stderr
        with pytest.raises(InUse, match=f"process {rank} on"):
            Lock(run_dir).acquire(patience=0)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    Lock(run_dir).acquire().release()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_command_that_is_killed_while_its_worker_starts_leaves_none_behind(
    command: Callable[..., list[str]], tmp_path: Path
) -> None:
    process = subprocess.Popen(command(tmp_path / "run"), stdout=subprocess.DEVNULL)
    _wait_for(lambda: _child(process.pid) is not None)
    rank = _child(process.pid)
    process.kill()
    process.wait()
    _wait_for(lambda: not _alive(rank))
    assert not (tmp_path / "run" / "attempts.jsonl").exists()


def test_an_interrupt_before_the_loop_cannot_be_caught() -> None:
    code = "import os, signal, time; from forge import worker; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "worker.end_on_interrupt()\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(5)\nexcept BaseException:\n    pass"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -signal.SIGINT


def test_an_interrupt_while_the_config_is_composed_is_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def verb() -> int:
        raise KeyboardInterrupt

    assert cli.refuse(verb) == 130
    assert capsys.readouterr() == ("", "")


def test_a_command_in_the_background_of_a_script_hears_interrupts_from_its_beginning() -> None:
    """The shell of the script has them ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert train.on_ranks(lambda _: signal.raise_signal(signal.SIGINT) or 0) == 130
    finally:
        signal.signal(signal.SIGINT, before)


def _child(pid: int) -> int | None:
    """The worker that a process has started."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if "forge.worker" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        except FileNotFoundError:
            continue
    return None


def _alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
