"""`python -m forge.parity`: exit codes, what is printed, and what is refused before anything
starts.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from forge.config.problems import ConfigError
from forge.parity import __main__ as parity
from forge.parity import worker

SMALL = [
    "model.dim=20",
    "model.n_heads=2",
    "model.n_layers=2",
    "model.ffn_hidden_dim=34",
    "model.max_seq_len=32",
    "tokenizer.vocab_size=300",
    "model.vocab_size=301",
    "train.seq_len=16",
    "train.batch_size=2",
    "run.device=cpu",
    "data=text",
    "data.path=text.txt",
]


FAULTY = """
import os
from forge.config.objective import Pretrain as Section
from forge.objectives.pretrain import Pretrain


class OnRankOne(Pretrain):
    def __init__(self, section: Section) -> None:
        super().__init__(section)

    def __call__(self, model, batch):
        if os.environ["RANK"] == "1":
            raise RuntimeError("out of luck")
        return super().__call__(model, batch)
"""


@pytest.fixture
def text_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """text.txt in the directory that the verb is typed in."""
    draw = random.Random(0)
    words = ["the", "sea", "ship", "whale", "white", "captain", "said", "and"]
    (tmp_path / "text.txt").write_text(
        "".join(f"{' '.join(draw.choices(words, k=8))} {draw.random()}\n" for _ in range(200))
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.parity", *words, *SMALL]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("text_here")
def test_two_layouts_that_are_equal() -> None:
    done = verb(
        "a=parallel=single", "b=parallel.tp=2 parallel.pp=1", "steps=2", "train.global_batch_size=4"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "a: parallel=single   (1 rank on cpu, from the parallel degrees)",
        "b: parallel.tp=2 parallel.pp=1   (2 ranks on cpu, from the parallel degrees)",
        "both: 2 steps of SGD with lr=0.1 in float64, 4 sequences of 16 tokens a step, seed 42",
    ]
    assert "weights at step 0: bit-equal (24 parameters, 13,440 numbers)" in lines
    assert [line.split()[0] for line in lines if "blocks." in line and line[0].isdigit()] == [
        "1",
        "2",
    ]
    assert (
        lines[-1]
        == "equal, within the bounds: losses 1e-12, gradients 1e-10, weights at the end 1e-09"
    )
    assert not list(Path().glob("runs")), "it leaves nothing behind"


@pytest.mark.usefixtures("text_here")
def test_a_rank_behind_the_first_that_fails_is_heard() -> None:
    """The first only loses it, and says nothing of that."""
    Path("faulty.py").write_text(FAULTY)
    done = verb(
        "a=parallel=ddp", "b=", "run.trust=[faulty.]", "objective._target_=faulty.OnRankOne"
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "RuntimeError: out of luck" in done.stderr
    assert done.stderr.endswith("a failed; nothing was compared\n")


@pytest.fixture
def in_process(text_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side of one rank is measured in this process."""
    monkeypatch.setattr(
        parity.local, "start", lambda place, ranks, module: worker.main([str(place)])
    )


@pytest.mark.usefixtures("in_process")
def test_two_models_that_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main(["a=", "b=model.norm_eps=1e-6", "steps=1", "dtype=float32", *SMALL]) == 1
    said = capsys.readouterr().out
    assert "weights at step 0: bit-equal" in said
    assert (
        "NOT equal; the bounds are losses 1e-06, gradients 1e-05, weights at the end 1e-05\n  step 1: the "
        in said
    )


@pytest.mark.usefixtures("in_process")
def test_what_a_rank_refuses_ends_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.txt").write_text("the sea")
    assert parity.main(["a=", "b=", "steps=1", *SMALL, "data.path=short.txt"]) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    assert said.err.endswith("a failed; nothing was compared\n")
    assert said.err.count("\n") == 2
    assert "weights at step 0" not in said.out


@pytest.mark.usefixtures("in_process")
def test_a_rank_that_fails_shows_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.parity.side.measure", lambda *_, **__: 1 / 0)
    assert parity.main(["a=", "b=", *SMALL]) == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert parity.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


REFUSED = {
    ("a=parallel=single",): "1. b=   [command line]\n     the overrides of side b are missing.",
    ("a=", "b=", "b=seed=1"): "1. b=seed=1   [command line]\n     b is given twice.",
    (
        "a=",
        "b=",
        "steps=0",
    ): "1. steps=0   [command line]\n     steps is a positive number.\n     -> steps=5",
    ("a=", "b=", "steps=many"): "1. steps=many   [command line]\n     steps is a positive number.",
    (
        "a=",
        "b=",
        "lr=-1",
    ): "1. lr=-1   [command line]\n     lr is a positive number.\n     -> lr=0.1",
    ("a=", "b=", "lr=inf"): "1. lr=inf   [command line]\n     lr is a positive number.",
    (
        "a=",
        "b=",
        "dtype=bf16",
    ): "1. dtype=bf16   [command line]\n     dtype is float64 or float32.\n     -> dtype=float64",
    (
        "a='seed=1",
        "b=",
    ): "1. a='seed=1   [command line]\n     its quotes do not match: No closing quotation.",
    (
        "a=",
        "b=optimizer.lrr=1",
    ): "1. optimizer.lrr=1   [side b; command line]\n     AdamW has no option 'lrr'.",
    (
        "a=seed=1",
        "b=",
    ): "1. seed   [a and b]\n     seed is 1 in a and 42 in b, so that they read different batches.",
    (
        "a=",
        "b=",
        "precision=bf16",
    ): "1. precision.mixed_precision=bf16   [side a]\n     parity is of sums in float64 or float32.",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert REFUSED[words] in refused(capsys, *words)


def test_another_launcher_is_refused_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
    assert refused(capsys, "a=", "b=") == ""
    monkeypatch.setenv("RANK", "0")
    assert (
        "1. WORLD_SIZE=2   [environment]\n     forge.parity starts the ranks of both sides itself."
        in refused(capsys, "a=", "b=")
    )


def test_problems_of_both_sides_come_together(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "a=parallel.tp=3", "b=model=lama7b", "train.max_steps=x")
    assert "[side a; command line]" in said
    assert "[side b; command line]" in said
    assert said.count("train.max_steps is an integer") == 2


def both(*words: str) -> dict[str, tuple[int | None, int, int]]:
    """Of each side: sequences a step, of a micro-batch, and micro-batches."""
    sides = parity.resolved(parity.read([*words, "run.device=cpu"]))
    return {
        name: (
            side.config.train.global_batch_size,
            side.config.train.batch_size,
            side.config.train.grad_accum_steps,
        )
        for name, side in sides.items()
    }


def test_both_sides_have_the_same_global_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert both("a=", "b=parallel=ddp") == {"a": (4, 2, 2), "b": (4, 2, 1)}
    assert both("a=parallel.dp_shard=2", "b=parallel.dp_shard=3") == {
        "a": (12, 2, 3),
        "b": (12, 2, 2),
    }
    assert both("a=", "b=parallel=ddp", "train.global_batch_size=16") == {
        "a": (16, 2, 8),
        "b": (16, 2, 4),
    }
    with pytest.raises(ConfigError, match=r"train\.global_batch_size is 16 in a and 4 in b"):
        both("a=train.global_batch_size=16", "b=parallel=ddp")


def test_the_sides_compute_in_fp32_where_nothing_else_is_said() -> None:
    sides = parity.resolved(parity.read(["a=", "b=parallel=ddp"]))
    assert {side.config.precision.mixed_precision for side in sides.values()} == {"fp32"}
