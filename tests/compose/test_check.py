"""`python -m forge.check`: the plan of a run, number by number, or every problem."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest

from forge import check, cli
from forge.compose.hydra_adapter import CONF
from forge.rundir import directory

Plan = Callable[..., str]
PINNED = """
    model.vocab_size=300 model.max_seq_len=64 model.dim=32 model.n_layers=2 model.n_heads=4
    model.n_kv_heads=2 model.ffn_hidden_dim=64 model.tie_embeddings=false model.qk_norm=false
    tokenizer.vocab_size=300 train.batch_size=4 train.seq_len=16 train.max_steps=100
    train.grad_accum_steps=2 scheduler.warmup_steps=10 run.device=cpu parallel=single"""
PINNED_SAID = """\
tokenizer=bpe model=tiny data=python eval=default objective=pretrain adapter=none optimizer=muon \
scheduler=linear precision=auto quantization=none parallel=single \
train=quick checkpoint=default metrics=default profiling=off run=default plan=here

model
  parameters                     37,792
    embedding                    9,600
    attention                    6,144
    feed-forward                 12,288
    norms                        160
    output head                  9,600
  FLOPs a token                  1.805e+05 (forward and backward, 16 tokens of context)
  FLOPs in all                   2.31e+09

optimizer
  muon                           18,432 weights of 14 parameters (matrix), lr 0.01, decay 0.1
  rest: adamw                    19,360 weights of 7 parameters (embedding, norm, head), \
lr 0.01, decay 0.1

training
  global batch                   8 sequences = 128 tokens
  learning rate                  0.01, after 10 steps of warm-up, down to 0 \
over the last 90 (linear)
  ends after                     100 steps
  tokens                         12,800
"""


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Plan:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(*arguments: str, code: int = 0) -> str:
        assert check.main(arguments) == code
        return capsys.readouterr().out.partition("\n\n")[2]  # test_verdict.py has the first line

    return run


def rows(text: str) -> dict[str, str]:
    return {
        line[2:33].strip(): line[33:].strip() for line in text.splitlines() if line.startswith("  ")
    }


def test_what_a_job_takes(plan: Plan):
    found = rows(
        plan(
            "launch=slurm",
            "launch.gpus_per_node=0",
            "launch.tasks_per_node=2",
            "parallel=tp4",
            "run.device=cpu",
        )
    )
    assert found["job"] == "2 nodes with 2 ranks, 60 minutes"
    assert "job" not in rows(plan())


def test_the_numbers_of_a_small_run(plan: Plan):
    text = plan(*PINNED.split())
    assert text.startswith(PINNED_SAID)
    matrices = 6144 + 12288 + 9600
    assert 6 * matrices + 12 * 2 * 32 * 16 == 180_480, "the 1.805e+05 above"
    found = rows(text)
    assert found["weights (fp32)"] == found["gradients (fp32)"] == "0.1 MiB"
    assert found["run.num_processes"] == "1   (from the parallel degrees)"
    assert found["train.global_batch_size"] == "8   (4 a micro-batch * 2 micro-batches * 1 ranks)"
    assert (
        found["scheduler.decay_steps"] == "90   (train.max_steps=100 - scheduler.warmup_steps=10)"
    )
    assert found["world"].startswith("1 rank on cpu, from the parallel degrees (")
    assert found["directory"] == "runs/<date>_tiny_<id>"
    assert text.endswith("(train.max_steps=100 - scheduler.warmup_steps=10)\n"), "no warnings"


def test_what_all_steps_take_is_a_bound_where_epochs_may_end_a_run(plan: Plan):
    found = rows(plan(*PINNED.split(), "train.max_epochs=2"))
    assert found["ends after"] == "100 steps or 2 epochs, whichever is first"
    assert found["tokens"] == "12,800 at most, of 100 steps"
    assert found["FLOPs in all"] == "2.31e+09 at most, of 100 steps"


def test_the_numbers_of_llama3_70b(plan: Plan):
    train = ["train.seq_len=8192", "train.batch_size=1", "tokenizer.vocab_size=128256"]
    text = plan("model=llama3_70b", "optimizer=adamw", *train, "run.device=cpu", code=2)
    found = rows(text)
    parts = {
        "embedding": 1_050_673_152,
        "attention": 12_079_595_520,
        "feed-forward": 56_371_445_760,
        "norms": 1_318_912,
        "output head": 1_050_673_152,
    }
    assert {name: int(found[name].replace(",", "")) for name in parts} == parts
    assert found["parameters"] == f"{sum(parts.values()):,}" == "70,553,706,496"
    assert found["weights (fp32)"] == "262.8 GiB"
    assert f"{4 * 70_553_706_496 / 2**30:.1f}" == "262.8"
    assert found["optimizer state"] == "525.7 GiB"
    matrices = parts["attention"] + parts["feed-forward"] + parts["output head"]
    assert found["FLOPs a token"].startswith(f"{6 * matrices + 12 * 80 * 8192 * 8192:.4g} ")
    assert found["global batch"] == "1 sequences = 8,192 tokens"
    assert text.count("warning") == 1
    assert "1 rank (from a CPU) needs a GPU, or 1,051.3 GiB of a CPU's memory" in text


def test_warnings_are_shown_and_do_not_refuse(plan: Plan):
    text = plan("scheduler.warmup_steps=20", "train.max_steps=20", "parallel.pp_schedule=gpipe")
    assert text.splitlines()[-7:] == [
        "2 warnings",
        "  scheduler.warmup_steps=20   [command line]",
        "  scheduler.warmup_steps (20) should be less than train.max_steps (20), or its peak is not"
        " reached.",
        "  -> scheduler.warmup_steps=2",
        "  parallel.pp_schedule=gpipe   [command line]",
        "  parallel.pp_schedule has no effect with parallel.pp=1.",
        "  -> parallel.pp_schedule=1f1b",
    ]


def test_an_option_in_a_folder_of_its_group_gives_one_directory(
    plan: Plan, write: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """model=nano/deep: what is shown is what is made."""
    tiny = (CONF / "model" / "tiny.yaml").read_text()
    chosen = ["model=nano/deep", "--config-dir", write("model/nano/deep.yaml", tiny)]
    shown = rows(plan(*chosen))["directory"]
    assert shown == "runs/<date>_nano-deep_<id>"
    monkeypatch.chdir(tmp_path)
    made = directory.create(cli.resolved(chosen[:1], chosen[2:])[1], overrides=[])[0]
    assert fnmatch(
        str(made.relative_to(tmp_path)), shown.replace("<date>", "*").replace("<id>", "*")
    )


def test_every_derived_value_is_listed(plan: Plan):
    arguments = [
        "scheduler=wsd",
        "scheduler.warmup_steps=10",
        "train.global_batch_tokens=4096",
        "run.device=cpu",
    ]
    found = rows(plan(*arguments))
    _, resolution = cli.resolved(arguments)
    assert len(resolution.derived) > 6
    assert all(found[d.key] == f"{d.value}   ({d.why})" for d in resolution.derived)
