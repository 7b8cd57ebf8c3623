"""`python -m forge.parity`: exit codes, what is printed, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from forge.config.problems import ConfigError
from forge.parity import __main__ as parity
from forge.parity import worker

SIZES = (
    "model.dim=20 model.n_heads=2 model.n_layers=2 model.ffn_hidden_dim=34 model.max_seq_len=32 "
    "tokenizer.vocab_size=300 model.vocab_size=301 train.seq_len=16 train.batch_size=2 "
    "run.device=cpu data=text data.path=text.txt"
)
SMALL = SIZES.split()
FAULTY = """
import os
from forge.objectives.pretrain import Pretrain

class OnRankOne(Pretrain):
    def __call__(self, model, batch):
        if os.environ["RANK"] == "1":
            raise RuntimeError("out of luck")
        return super().__call__(model, batch)
"""


@pytest.fixture
def text_here(text_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """text.txt in the directory that the verb is typed in."""
    (tmp_path / "text.txt").symlink_to(text_file)
    monkeypatch.chdir(tmp_path)


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "forge.parity", *words, *SMALL]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.usefixtures("text_here")
def test_two_layouts_that_are_equal() -> None:
    b = "parallel.tp=2 parallel.pp=1"
    done = verb("a=parallel=single", f"b={b}", "steps=2", "train.global_batch_size=4")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("data: ")]
    assert lines[:5] == [
        "a: parallel=single   (1 rank on cpu, from the parallel degrees)",
        "b: parallel.tp=2 parallel.pp=1   (2 ranks on cpu, from the parallel degrees)",
        "both: 2 steps of SGD with lr=0.1 in float64, 4 sequences of 16 tokens a step, seed 42",
        "",
        "weights at step 0: bit-equal (24 parameters, 13,440 numbers)",
    ]
    assert [line.split()[0] for line in lines[6:9]] == ["step", "1", "2"]
    bounds = "losses 1e-12, gradients 1e-10, weights at the end 1e-09"
    assert lines[-1] == f"equal, within the bounds: {bounds}"
    assert not list(Path().glob("runs")), "it leaves nothing behind"


@pytest.mark.nightly
@pytest.mark.usefixtures("text_here")
def test_a_rank_behind_the_first_that_fails_says_why() -> None:
    """The first only loses it, and says nothing of that."""
    Path("faulty.py").write_text(FAULTY)
    target = "objective._target_=faulty.OnRankOne"
    done = verb("a=parallel=ddp", "b=", "run.trust=[faulty.]", target)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1
    assert "RuntimeError: out of luck" in done.stderr
    assert done.stderr.endswith("a failed; nothing was compared\n")


@pytest.fixture
def in_process(text_here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A side of one rank is measured in this process."""
    start = lambda place, ranks, module: worker.main([str(place)])  # noqa: E731
    monkeypatch.setattr(parity.processes, "start", start)


@pytest.mark.usefixtures("in_process")
def test_two_models_that_are_not_equal(capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main(["a=", "b=model.norm_eps=1e-6", "steps=1", "dtype=float32", *SMALL]) == 1
    said = capsys.readouterr().out
    assert "weights at step 0: bit-equal" in said
    bounds = "losses 1e-06, gradients 1e-05, weights at the end 2e-05"
    assert f"NOT equal; the bounds are {bounds}\n  step 1: the " in said


@pytest.mark.usefixtures("in_process")
def test_what_a_rank_refuses_ends_the_comparison(capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.txt").write_text("the sea")
    assert parity.main(["a=", "b=", "steps=1", *SMALL, "data.path=short.txt"]) == 2
    said = capsys.readouterr()
    assert "short.txt: 7 bytes of text are too few to hold some out" in said.err
    assert said.err.endswith("\na failed; nothing was compared\n")
    assert said.err.strip().count("\n") == 1
    assert "weights at step 0" not in said.out


WORDS = "a='seed=1 b= b=seed=1 steps=many lr=inf dtype=bf16"
REFUSED = """5 problems; nothing was started or written.
  1. b=seed=1   [command line]
     b is given twice.
     -> one b=...
  2. a='seed=1   [command line]
     its quotes do not match: No closing quotation.
     -> a="key=value key=value"
  3. steps=many   [command line]
     steps is a positive number.
     -> steps=5
  4. lr=inf   [command line]
     lr is a positive number.
     -> lr=0.1
  5. dtype=bf16   [command line]
     dtype is float64 or float32.
     -> dtype=float64
"""


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert parity.main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def test_all_that_is_wrong_with_the_words_is_said_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert refused(capsys, *WORDS.split()) == REFUSED
    missing = "1. b=   [command line]\n     the overrides of side b are missing."
    assert missing in refused(capsys, "a=parallel=single")


def test_problems_of_both_sides_come_together(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "a=parallel.tp=3", "b=model=lama7b", "train.max_steps=x")
    assert "[side a; command line]" in said
    assert "[side b; command line]" in said
    assert said.count("train.max_steps is an integer") == 2


def test_sides_that_read_different_batches_or_16_bits_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, "a=seed=1", "b=", "precision=bf16")
    seeds = "seed is 1 in a and 42 in b, so that they read different batches."
    assert f"1. seed   [a and b]\n     {seeds}" in said
    assert said.count("parity is of sums in float64 or float32.") == 2
    said = refused(capsys, "a=precision.param_dtype=bf16", "b=", "precision=fp32")
    assert said.count("parity is of weights in float64 or float32.") == 1


def test_another_launcher_is_refused_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RANK", "1")
    assert refused(capsys, "a=", "b=") == ""
    monkeypatch.setenv("RANK", "0")
    what = "forge.parity starts the ranks of both sides itself."
    assert f"1. WORLD_SIZE=2   [environment]\n     {what}" in refused(capsys, "a=", "b=")


def both(*words: str) -> list[tuple[int | None, int, int]]:
    """Of each side: sequences a step, of a micro-batch, and micro-batches; it computes in fp32."""
    sides = parity.resolve_sides(parity.parse_words([*words, "run.device=cpu"])).values()
    assert {side.config.precision.mixed_precision for side in sides} == {"fp32"}
    trains = [side.config.train for side in sides]
    return [(each.global_batch_size, each.batch_size, each.grad_accum_steps) for each in trains]


def test_both_sides_have_the_same_global_batch() -> None:
    assert both("a=", "b=parallel=ddp") == [(4, 2, 2), (4, 2, 1)]
    assert both("a=parallel.dp_shard=2", "b=parallel.dp_shard=3") == [(12, 2, 3), (12, 2, 2)]
    given = both("a=", "b=parallel=ddp", "train.global_batch_size=16")
    assert given == [(16, 2, 8), (16, 2, 4)]
    with pytest.raises(ConfigError, match=r"train\.global_batch_size is 16 in a and 4 in b"):
        both("a=train.global_batch_size=16", "b=parallel=ddp")
