"""Every value that is worked out, with its reason."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path

import pytest
from helpers.refusing import SMALL, only, resolved

from forge.compose import composition
from forge.config.horizon import SCHEDULE
from forge.config.problems import ConfigError
from forge.config.rule import Derived
from forge.config.tokenizers.tokenizer import Tokenizer
from forge.resolve.derivations import DERIVATIONS
from forge.resolve.horizon import fit_epochs
from forge.resolve.resolve import resolve

WORKED_OUT = """
given
  model.n_kv_heads = 4: as many as model.n_heads
  model.ffn_hidden_dim = 256: 256 * ceil(int(4 * 64 * 2/3 * 1) / 256)
  precision.mixed_precision = fp32: run.device=cpu
  run.num_processes = 1: from the parallel degrees
  parallel.reshard_after_forward = never: one device in fp32 gathers nothing
  parallel.reduce_gradients = step: one micro-batch a step
  parallel.pp_microbatches = 1: parallel.pp=1
  train.global_batch_size = 2: 2 a micro-batch * 1 micro-batches * 1 ranks
  train.global_batch_tokens = 64: 2 sequences * 32 tokens
  scheduler.decay_steps = 90: train.max_steps=100 - scheduler.warmup_steps=10
given model.activation=gelu
  model.gated_mlp = False: model.activation=gelu
given run.device=auto
  run.device = cpu: 0 GPUs: the test
given parallel.dp_shard=-1
  run.num_processes = 1: from a CPU
  parallel.dp_shard = 1: 1 ranks / 1 of the other degrees
given parallel.dp_shard=2
  parallel.reshard_after_forward = always: 2 shards
given precision=fp16
  precision.residual_dtype = fp32: precision.mixed_precision=fp16
given parallel.pp=2
  parallel.reshard_after_forward = never: parallel.pp=2
  parallel.pp_stages_per_rank = 1: parallel.pp_schedule=1f1b
  parallel.pp_microbatches = 2: 2 sequences a rank and step, parallel.pp=2
given parallel.pp=2 model.n_layers=4 parallel.pp_schedule=interleaved_1f1b
  parallel.pp_stages_per_rank = 2: parallel.pp_schedule=interleaved_1f1b
given model.tie_embeddings=false parallel.pp=2 model.n_layers=4 parallel.pp_schedule=zbv_zero_bubble
  parallel.pp_stages_per_rank = 2: parallel.pp_schedule=zbv_zero_bubble
given parallel.pp=2 train.batch_size=16
  parallel.pp_microbatches = 4: 16 sequences a rank and step, parallel.pp=2
given train.grad_accum_steps=3
  train.global_batch_size = 6: 2 a micro-batch * 3 micro-batches * 1 ranks
given train.batch_size=-1
  train.global_batch_size = 4: 4 sequences, or one for each of 1 ranks
  train.batch_size = 2: at most 2, of 4 sequences a rank and step
  train.grad_accum_steps = 2: 4 sequences / (2 a micro-batch * 1 ranks)
given train.batch_size=-1 parallel.dp_shard=2
  train.batch_size = 2: at most 2, of 2 sequences a rank and step
given train.batch_size=-1 train.global_batch_size=9
  train.batch_size = 1: at most 2, of 9 sequences a rank and step
given train.batch_size=-1 train.grad_accum_steps=3
  train.global_batch_size = 6: 2 a micro-batch * 3 micro-batches * 1 ranks
given train.global_batch_size=10
  train.grad_accum_steps = 5: 10 sequences / (2 a micro-batch * 1 ranks)
  train.global_batch_tokens = 320: 10 sequences * 32 tokens
given train.global_batch_tokens=320
  train.global_batch_size = 10: 320 tokens / 32 a sequence
  train.grad_accum_steps = 5: 10 sequences / (2 a micro-batch * 1 ranks)
given scheduler.warmup_steps=null
  scheduler.warmup_steps = 10: a tenth, at most 40, of train.max_steps=100
given scheduler.warmup_steps=null train.max_steps=401
  scheduler.warmup_steps = 40: a tenth, at most 40, of train.max_steps=401
given scheduler.warmup_steps=null scheduler.warmup_ratio=0.25
  scheduler.warmup_steps = 25: 0.25 of train.max_steps=100
  scheduler.decay_steps = 75: train.max_steps=100 - scheduler.warmup_steps=25
given scheduler=wsd scheduler.warmup_steps=null scheduler.warmup_ratio=0 scheduler.decay_ratio=0.65
  scheduler.warmup_steps = 0: 0 of train.max_steps=100
  scheduler.decay_steps = 65: 0.65 of train.max_steps=100
  scheduler.stable_steps = 35: train.max_steps=100 - 0 of warm-up - 65 of decay
given scheduler=linear scheduler.warmup_steps=100
  scheduler.decay_steps = 1: train.max_steps=100 - scheduler.warmup_steps=100
given scheduler=wsd scheduler.warmup_steps=10
  scheduler.decay_steps = 20: a fifth of train.max_steps=100
  scheduler.stable_steps = 70: train.max_steps=100 - 10 of warm-up - 20 of decay
given scheduler=wsd scheduler.warmup_steps=10 scheduler.decay_steps=50
  scheduler.stable_steps = 40: train.max_steps=100 - 10 of warm-up - 50 of decay
given scheduler=wsd scheduler.warmup_steps=10 scheduler.stable_steps=60
  scheduler.decay_steps = 30: what warm-up and stable steps leave of train.max_steps=100
"""


def derived(overrides: list[str], **where) -> dict[str, tuple[object, str]]:
    found = resolved([*SMALL, *overrides], as_point=True, **where).derived
    return {d.key: (d.value, d.why) for d in found}


@pytest.mark.parametrize("group", WORKED_OUT.strip().split("given")[1:])
def test_a_derived_value_and_its_reason(group: str):
    overrides, *lines = group.splitlines()
    found = [f"  {k} = {value}: {why}" for k, (value, why) in derived(overrides.split()).items()]
    assert set(lines) <= set(found)


@pytest.mark.parametrize(
    ("layout", "gib", "reshard", "reduce"),
    [
        ("parallel.dp_replicate=16", 400, "never", "step"),
        ("parallel.dp_replicate=16", 120, "always", "micro_batch"),
        ("parallel.dp_shard=16", 80, "always", "step"),
        ("parallel.dp_shard=16", 30, "always", "micro_batch"),
    ],
)
def test_time_is_saved_where_there_is_memory(layout: str, gib: int, reshard: str, reduce: str):
    """Replicas keep 16-bit weights, and gradients of several micro-batches add up unreduced."""
    llama = [
        "model=llama7b",
        "optimizer=adamw",
        "precision=bf16",
        "train.batch_size=1",
        "train.grad_accum_steps=2",
    ]
    overrides = [*llama, layout, "run.device=cuda"]
    found = resolved(overrides, gpus=16, memory=gib << 30, as_point=True)
    parallel = found.config.parallel
    assert (parallel.reshard_after_forward, parallel.reduce_gradients) == (reshard, reduce)
    (why,) = [d.why for d in found.derived if d.key == "parallel.reduce_gradients"]
    said = rf"reduce_gradients=step needs [\d.]+ GiB, and a device has {gib}.0 GiB"
    assert re.fullmatch(said, why)


def test_a_gpu_decides_device_and_format():
    found = derived(["run.device=auto", "parallel.dp_shard=-1"], gpus=1)
    assert found["run.device"] == ("cuda", "1 GPUs: the test")
    assert found["precision.mixed_precision"] == ("bf16", "run.device=cuda")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my.txt").write_text("text")
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "tokenizer.json"
    file.write_text('{"model": {"vocab": {"a": 0, "</s>": 7}}}')
    monkeypatch.chdir(tmp_path)
    data = ["data=text", "data.path=my.txt", "data.cache_dir='~/cache'"]
    tokenizer = ["tokenizer=file", "tokenizer.path=mine"]
    found = {d.key: (d.value, d.why) for d in resolved([*data, *tokenizer]).derived}
    assert found["data.path"] == (str(tmp_path / "my.txt"), "from where the command was typed")
    assert found["data.cache_dir"][0] == os.path.expanduser("~/cache")
    assert found["tokenizer.path"] == (str(file), "the file of that name in the directory")
    assert found["model.vocab_size"] == (8, "the tokenizer has 8 ids")


@pytest.mark.parametrize(("place", "named"), [("tokenizer", ""), ("", ""), ("tokenizer", "best")])
def test_the_tokenizer_of_a_base(tmp_path: Path, place: str, named: str):
    file = tmp_path / "base" / place / "tokenizer.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"model": {"vocab": {"a": 0, "</s>": 7}}}')
    told = ["tokenizer=file", f"checkpoint.init_from={tmp_path / 'base' / named}"]
    found = {one.key: (one.value, one.why) for one in resolved(told).derived}
    assert found["tokenizer.path"] == (str(file), "that of checkpoint.init_from")


@pytest.mark.parametrize(
    ("given", "rows", "why"),
    [
        ("auto", 300, "tokenizer.vocab_size=300"),
        ("auto padded", 384, "tokenizer.vocab_size=300, a multiple of model.pad_vocab_to=128"),
        ("3e3 padded", 3072, "3000 rounded up, a multiple of model.pad_vocab_to=128"),
        ("384 padded", 384, None),
    ],
)
def test_rows_follow_from_the_tokenizer(given: str, rows: int, why: str | None):
    text = f"model.vocab_size={given}".replace("padded", "model.pad_vocab_to=128")
    resolution = resolved([*SMALL, *text.split()], as_point=True)
    assert resolution.config.model.vocab_size == rows
    assert {one.key: one.why for one in resolution.derived}.get("model.vocab_size") == why


def test_rows_of_a_tokenizer_that_says_nothing_of_itself():
    """A user's own, without n_ids; a file that cannot be read is one problem, not two."""

    @dataclasses.dataclass(kw_only=True)
    class Mine(Tokenizer):
        _target_: str = "forge.data.tokenizers.tokenizer.train_bpe"

    config = composition.config([*SMALL, "model.vocab_size=auto"])
    config.tokenizer = Mine()
    with pytest.raises(ConfigError, match="not known before Mine is built") as refused:
        resolve(config)
    assert [p.key for p in refused.value.problems] == ["model.vocab_size=auto"]
    assert only(["tokenizer=file", "tokenizer.path=nowhere", "model=tiny"]).rule == "tokenizer.path"


def epochs(overrides: list[str], samples: int):
    resolution = resolved([*SMALL, "train.max_steps=1000", "scheduler.warmup_steps=10", *overrides])
    config = resolution.config
    config.thaw()
    return config, fit_epochs(config, samples, {d.key for d in resolution.derived})


def test_epochs_cut_the_run_once_the_number_of_samples_is_known():
    config, found = epochs(["train.max_epochs=1.5", "train.batch_size=4"], samples=101)
    steps = math.ceil(1.5 * 101 / 4)
    assert config.train.max_steps == steps
    why = "1.5 epochs * 101 sequences / 4 a step"
    assert found[0] == Derived("train.max_steps", steps, why)
    assert config.scheduler.decay_steps == steps - 10


def test_the_parts_of_a_schedule_that_were_worked_out_fit_the_epochs():
    wsd = ["scheduler=wsd", "scheduler.warmup_steps=null", "train.max_epochs=1"]
    config, found = epochs(wsd, samples=200)
    parts = config.scheduler.warmup_steps, config.scheduler.decay_steps
    assert (*parts, config.scheduler.stable_steps) == (10, 20, 70)
    assert [d.key for d in found] == ["train.max_steps", *SCHEDULE]


@pytest.mark.parametrize(
    ("limit", "samples"), [("0", 200), ("10", 200), ("1e18", 200), ("1", 2000)]
)
def test_epochs_never_lengthen_a_run(limit: str, samples: int):
    config, found = epochs([f"train.max_epochs={limit}"], samples)
    assert (config.train.max_steps, found) == (1000, [])


def test_a_derivation_declares_what_it_writes():
    declared = {key for derivation in DERIVATIONS for key in derivation.writes}
    given = ["data.cache_dir=x", "parallel.dp_shard=-1", "run.device=auto", "scheduler=wsd"]
    assert set(derived(given)) | set(derived(["train.global_batch_tokens=128"])) <= declared
