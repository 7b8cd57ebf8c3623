"""Killed runs continue as if nothing had been; benchmarks/checkpoints/kill_resume.py
and kill_ranks.py do it at length.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import kill_compare
import kill_ranks
import pytest
from helpers.tiny import TINY
from kill_resume import HERE, TRUST, Kill, Outcome, marks, run_killed

from forge import cli, train

SMALL = [
    *TINY,
    "train.global_batch_size=8",
    "train.max_steps=24",
    "optimizer.lr=0.001",
    "metrics.log_interval=4",
    "checkpoint.interval=5",
    "checkpoint.async_mode=async",
    "checkpoint.keep_last_n=2",
    "metrics.enable_console=true",
    "eval.enabled=true",
    "eval.interval=7",
    "eval.steps=4",
    "eval.sample_prompts=[ship]",
    "eval.sample_tokens=8",
    TRUST,
]
Command = Callable[..., list[str]]
Starter = Callable[..., list[Outcome]]


@pytest.fixture
def options() -> str:
    """Further ones, of all starts."""
    return ""


@pytest.fixture
def command(text_file: Path, options: str, tmp_path: Path) -> Command:
    """forge.train of a small model into a directory."""
    rows = tmp_path / "rows.jsonl"
    pairs = (
        {"prompt": f"{n}+1=", "chosen": f"{n + 1}", "rejected": f"{n}"}
        | {"completion": f"{n + n % 2}", "label": n % 2 == 1}
        for n in range(300)
    )
    rows.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    options = options.replace("{rows}", str(rows))
    common = [sys.executable, "-m", "forge.train", "data=text", f"data.path={text_file}", *SMALL]
    common += options.split()
    return lambda run_dir, batch_size=4, *more: [
        *common,
        f"run.dir={run_dir}",
        f"train.batch_size={batch_size}",
        *more,
    ]


@pytest.fixture
def undisturbed(command: Command, tmp_path: Path) -> Path:
    path = tmp_path / "undisturbed"
    subprocess.run(command(path), check=True, capture_output=True, timeout=60)
    return path


@pytest.fixture
def killed(command: Command, tmp_path: Path) -> Starter:
    """The outcomes of the starts of tmp_path/run; each takes the next batch size."""

    def run(kills: list[Kill], batch_sizes: tuple[int, ...] = (4,)) -> list[Outcome]:
        scratch, place = tmp_path / "marks", tmp_path / "run"
        scratch.mkdir()
        sizes = [*batch_sizes, *([batch_sizes[-1]] * len(kills))]
        env, more = {**os.environ, "PYTHONPATH": str(HERE)}, marks(scratch)
        starts = run_killed(
            lambda n: command(place, sizes[n], *more), place, kills, scratch=scratch, env=env
        )
        return list(starts)

    return run


SFT = (
    "objective=sft objective.weighting=example objective.neftune_alpha=5 model.dropout=0.2 "
    "data.pack_sequences=true"
)
DPO = "data=preference data.path={rows} objective=dpo data.val_fraction=0.2"
LORA = "adapter=lora adapter.rank=2 adapter.dropout=0.1 adapter.dora=true optimizer=adamw"
QLORA = "adapter=qlora adapter.rank=2 optimizer=adamw model.dim=64"
KTO = "data=labelled data.path={rows} objective=kto data.val_fraction=0.2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "",
        *(
            pytest.param(words, marks=pytest.mark.nightly)
            for words in (
                SFT,
                f"{SFT} {LORA}",
                f"{SFT} {QLORA}",
                DPO,
                f"{DPO} objective.reference=adapter {LORA}",
                f"{DPO} objective.reference=adapter {QLORA}",
                KTO,
            )
        ),
    ],
    ids=["pretrain", "sft", "sft, lora", "sft, qlora", "dpo", "dpo, lora", "dpo, qlora", "kto"],
)
def test_a_run_that_is_killed_three_times_ends_with_the_same_bits(
    killed: Starter, undisturbed: Path, tmp_path: Path
) -> None:
    first, save, evaluation, last = killed(
        [
            Kill(place="step", step=3),
            Kill(place="commit", step=10, delay=0.2),
            Kill(place="evaluation", step=21, skip=1),
        ]
    )
    assert (first.step, first.left) == (3, "no checkpoint")
    assert (save.went_on_from, save.left) == ("the beginning", ".step_10.partial, step_5")
    assert (evaluation.went_on_from, evaluation.step) == ("step_5", 21)
    assert last.went_on_from in ("step_15", "step_20")  # the save of step 20 was under way or done
    assert (last.left, last.code) == ("step_20, step_24", 0)
    same, different = kill_compare.compare(undisturbed, tmp_path / "run")
    assert not different
    assert len(same) == 7


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_two_ranks_one_of_whose_processes_is_killed_end_with_the_same_bits(
    text_file: Path, tmp_path: Path
) -> None:
    """Five times inside the loop; whoever is left ends by itself."""
    alone, run, kills = tmp_path / "alone", tmp_path / "run", 5
    data = ["data=text", f"data.path={text_file}"]
    command = kill_ranks.command_of(alone, kills, data)
    subprocess.run(command, check=True, capture_output=True, timeout=200)
    again = kill_ranks.command_of(run, kills, data)
    deaths = [*kill_ranks.storm(again, run, kills, random.Random(1), dict(os.environ))]
    assert {one.victim for one in deaths} == {*kill_ranks.VICTIMS, ""}
    assert all(one.step > 0 for one in deaths), "the loop had begun"
    assert deaths[-1].went_on_from.startswith("step_")
    assert not kill_compare.compare(alone, run, tidy=False)[1]


@pytest.mark.nightly
def test_a_run_that_is_stopped_saves_and_goes_on_with_the_same_bits(
    killed: Starter, undisturbed: Path, tmp_path: Path
) -> None:
    outcomes = killed(
        [
            Kill(place="evaluation", step=7, number=signal.SIGTERM),
            Kill(place="commit", step=10, number=signal.SIGTERM, to="parent"),
            Kill(place="step", step=18, to="parent"),
        ]
    )
    assert [one.code for one in outcomes] == [143, 143, -9, 0]
    assert outcomes[0].left == "step_5, step_7"
    # The worker of a killed parent saves.
    assert outcomes[3].went_on_from in ("step_18", "step_19", "step_20")
    assert not kill_compare.compare(undisturbed, tmp_path / "run", tidy=False)[1]


@pytest.mark.nightly
def test_a_run_goes_on_with_another_micro_batch(
    killed: Starter, undisturbed: Path, tmp_path: Path
) -> None:
    kills = [Kill(place="step", step=12), Kill(place="step", step=22)]
    outcomes = killed(kills, batch_sizes=(4, 8, 2))
    assert [one.went_on_from.startswith("step_") for one in outcomes] == [False, True, True]
    same, different = kill_compare.compare(undisturbed, tmp_path / "run", exact=False)
    assert not different, same
    assert (tmp_path / "run" / "config.3.yaml").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="prctl")
def test_a_command_that_is_killed_while_its_worker_starts_leaves_none_behind(
    command: Command, tmp_path: Path
) -> None:
    process = subprocess.Popen(command(tmp_path / "run"), stdout=subprocess.DEVNULL)
    _wait_for(lambda: _child(process.pid) is not None)
    rank = _child(process.pid)
    process.kill()
    process.wait()
    _wait_for(lambda: not _alive(rank))
    assert not (tmp_path / "run" / "attempts.jsonl").exists()


UNCATCHABLE = """
import os, signal, time
from forge import worker
signal.signal(signal.SIGINT, signal.default_int_handler)
worker.end_on_interrupt()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
except BaseException:
    pass
"""


def test_an_interrupt_before_the_loop_cannot_be_caught() -> None:
    done = subprocess.run([sys.executable, "-c", UNCATCHABLE], timeout=60)
    assert done.returncode == -signal.SIGINT


def test_an_interrupt_of_a_verb_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """Also in the background of a script, whose shell has interrupts ignored."""

    def verb(*_: object) -> int:
        return signal.raise_signal(signal.SIGINT) or 0

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert cli.refuse(verb) == 130
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert train.on_ranks(verb) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "")


def _child(pid: int) -> int | None:
    """The worker that a process has started."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            if "forge.worker" in Path(f"/proc/{child}/cmdline").read_text():
                return int(child)
        except (FileNotFoundError, ProcessLookupError):  # ended since it was listed
            continue
    return None


def _alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
