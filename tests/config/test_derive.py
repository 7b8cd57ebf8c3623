"""Every value that is worked out, with its reason."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path

import pytest
from refusing import SMALL, only, problems, resolved

from forge.compose import composition
from forge.config.problems import ConfigError
from forge.config.tokenizer import Tokenizer
from forge.plan.memory import memory_by_part
from forge.resolve.derivations import DERIVATIONS, SCHEDULE, Derived, fit_epochs
from forge.resolve.resolve import resolve

LOOPED = "parallel.pp=2 model.n_layers=4 train.compile_model=false model.tie_embeddings=false"


def derived(overrides: list[str], **where) -> dict[str, tuple[object, str]]:
    return {d.key: (d.value, d.why) for d in resolved([*SMALL, *overrides], **where).derived}


@pytest.mark.parametrize(
    ("overrides", "key", "value", "why"),
    [
        ("", "model.n_kv_heads", 4, "as many as model.n_heads"),
        ("model.activation=silu", "model.gated_mlp", True, "model.activation=silu"),
        ("model.activation=gelu", "model.gated_mlp", False, "model.activation=gelu"),
        ("", "model.ffn_hidden_dim", 256, "256 * ceil(int(4 * 64 * 2/3 * 1) / 256)"),
        ("run.device=auto", "run.device", "cpu", "0 GPUs: the test"),
        ("", "precision.mixed_precision", "fp32", "run.device=cpu"),
        ("", "run.num_processes", 1, "from the parallel degrees"),
        ("parallel.dp_shard=-1", "run.num_processes", 1, "from a CPU"),
        ("parallel.dp_shard=-1", "parallel.dp_shard", 1, "1 ranks / 1 of the other degrees"),
        ("", "parallel.reshard_after_forward", "never", "one device in fp32 gathers nothing"),
        ("parallel.dp_shard=2", "parallel.reshard_after_forward", "always", "2 shards"),
        ("", "parallel.reduce_gradients", "step", "one micro-batch a step"),
        ("precision=bf16", "precision.residual_dtype", "bf16", "precision.mixed_precision=bf16"),
        ("precision=fp16", "precision.residual_dtype", "fp32", "precision.mixed_precision=fp16"),
        ("parallel.pp=2", "parallel.reshard_after_forward", "never", "parallel.pp=2"),
        (
            "parallel.pp_schedule=interleaved_1f1b",
            "parallel.pp_stages_per_rank",
            1,
            "parallel.pp=1",
        ),
        ("", "parallel.pp_microbatches", 1, "parallel.pp=1"),
        ("parallel.pp=2", "parallel.pp_stages_per_rank", 1, "parallel.pp_schedule=1f1b"),
        *(
            (
                f"{LOOPED} parallel.pp_schedule={name}",
                "parallel.pp_stages_per_rank",
                2,
                f"parallel.pp_schedule={name}",
            )
            for name in ("interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble")
        ),
        (
            "parallel.pp=2",
            "parallel.pp_microbatches",
            2,
            "2 sequences a rank and step, parallel.pp=2",
        ),
        (
            "parallel.pp=2 train.batch_size=16",
            "parallel.pp_microbatches",
            4,
            "16 sequences a rank and step, parallel.pp=2",
        ),
        (
            "parallel.pp=2 train.global_batch_size=12",
            "parallel.pp_microbatches",
            6,
            "12 sequences a rank and step, parallel.pp=2",
        ),
        ("", "train.global_batch_size", 2, "2 a micro-batch * 1 micro-batches * 1 ranks"),
        (
            "train.grad_accum_steps=3",
            "train.global_batch_size",
            6,
            "2 a micro-batch * 3 micro-batches * 1 ranks",
        ),
        (
            "train.batch_size=-1",
            "train.global_batch_size",
            4,
            "4 sequences, or one for each of 1 ranks",
        ),
        ("train.batch_size=-1", "train.batch_size", 2, "at most 2, of 4 sequences a rank and step"),
        (
            "train.batch_size=-1",
            "train.grad_accum_steps",
            2,
            "4 sequences / (2 a micro-batch * 1 ranks)",
        ),
        (
            "train.batch_size=-1 parallel.dp_shard=2",
            "train.batch_size",
            2,
            "at most 2, of 2 sequences a rank and step",
        ),
        (
            "train.batch_size=-1 parallel.dp_shard=8",
            "train.global_batch_size",
            8,
            "4 sequences, or one for each of 8 ranks",
        ),
        (
            "train.batch_size=-1 train.global_batch_size=9",
            "train.batch_size",
            1,
            "at most 2, of 9 sequences a rank and step",
        ),
        (
            "train.batch_size=-1 train.grad_accum_steps=3",
            "train.global_batch_size",
            6,
            "2 a micro-batch * 3 micro-batches * 1 ranks",
        ),
        ("", "train.global_batch_tokens", 64, "2 sequences * 32 tokens"),
        (
            "train.global_batch_size=10",
            "train.grad_accum_steps",
            5,
            "10 sequences / (2 a micro-batch * 1 ranks)",
        ),
        (
            "train.global_batch_size=10",
            "train.global_batch_tokens",
            320,
            "10 sequences * 32 tokens",
        ),
        (
            "train.global_batch_tokens=320",
            "train.global_batch_size",
            10,
            "320 tokens / 32 a sequence",
        ),
        (
            "train.global_batch_tokens=320",
            "train.grad_accum_steps",
            5,
            "10 sequences / (2 a micro-batch * 1 ranks)",
        ),
        ("", "scheduler.decay_steps", 90, "train.max_steps=100 - scheduler.warmup_steps=10"),
        (
            "scheduler.warmup_steps=null",
            "scheduler.warmup_steps",
            10,
            "a tenth, at most 40, of train.max_steps=100",
        ),
        (
            "scheduler.warmup_steps=null train.max_steps=401",
            "scheduler.warmup_steps",
            40,
            "a tenth, at most 40, of train.max_steps=401",
        ),
        (
            "scheduler=constant scheduler.warmup_steps=null train.max_steps=9",
            "scheduler.warmup_steps",
            0,
            "a tenth, at most 40, of train.max_steps=9",
        ),
        (
            "scheduler=linear scheduler.warmup_steps=100",
            "scheduler.decay_steps",
            1,
            "train.max_steps=100 - scheduler.warmup_steps=100",
        ),
        (
            "scheduler=wsd scheduler.warmup_steps=10",
            "scheduler.decay_steps",
            20,
            "a fifth of train.max_steps=100",
        ),
        (
            "scheduler=wsd scheduler.warmup_steps=10",
            "scheduler.stable_steps",
            70,
            "train.max_steps=100 - 10 of warm-up - 20 of decay",
        ),
        (
            "scheduler=wsd scheduler.warmup_steps=10 scheduler.decay_steps=50",
            "scheduler.stable_steps",
            40,
            "train.max_steps=100 - 10 of warm-up - 50 of decay",
        ),
        (
            "scheduler=wsd scheduler.warmup_steps=10 scheduler.stable_steps=60",
            "scheduler.decay_steps",
            30,
            "what warm-up and stable steps leave of train.max_steps=100",
        ),
        (
            "scheduler=wsd scheduler.warmup_steps=90",
            "scheduler.decay_steps",
            10,
            "what warm-up and stable steps leave of train.max_steps=100",
        ),
    ],
)
def test_a_derived_value_and_its_reason(overrides: str, key: str, value: object, why: str):
    assert derived(overrides.split())[key] == (value, why)


def test_time_is_saved_where_there_is_memory_for_it():
    """Replicas keep their 16-bit weights, and gradients of several micro-batches add up unreduced,
    or not.
    """
    llama, twice = (
        ["model=llama7b", "precision=bf16", "train.batch_size=1"],
        "train.grad_accum_steps=2",
    )
    for layout, gib, reshard, reduce in [
        ("parallel.dp_replicate=16", 400, "never", "step"),
        ("parallel.dp_replicate=16", 120, "always", "micro_batch"),
        ("parallel.dp_shard=16", 80, "always", "step"),
        ("parallel.dp_shard=16", 30, "always", "micro_batch"),
    ]:
        parallel = resolved(
            [*llama, layout, twice, "run.device=cuda"], gpus=16, memory=gib << 30
        ).config.parallel
        assert (parallel.reshard_after_forward, parallel.reduce_gradients) == (reshard, reduce), (
            layout,
            gib,
        )
    found = {
        d.key: (d.value, d.why)
        for d in resolved(
            [*llama, "parallel.dp_shard=16", twice, "run.device=cuda"], gpus=16, memory=30 << 30
        ).derived
    }
    assert re.fullmatch(
        r"reduce_gradients=step needs [\d.]+ GiB, and a device has 30.0 GiB",
        found["parallel.reduce_gradients"][1],
    )


def test_what_is_given_is_not_worked_out():
    given = [
        "model.n_kv_heads=2",
        "model.gated_mlp=false",
        "model.ffn_hidden_dim=96",
        "scheduler.decay_steps=90",
        "run.num_processes=1",
    ]
    given += [
        "precision=fp32",
        "train.global_batch_size=2",
        "train.global_batch_tokens=64",
        "run.objective=eval/loss",
    ]
    given += [
        "precision.residual_dtype=fp32",
        "parallel.reduce_gradients=step",
        "parallel.reshard_after_forward=never",
    ]
    given += ["parallel.pp_stages_per_rank=1", "parallel.pp_microbatches=1"]
    assert derived(given) == {}


@pytest.mark.parametrize("dim", [64, 104, 256, 384, 768, 1000, 4096, 5120, 8192])
@pytest.mark.parametrize("multiplier", [0.5, 1.0, 1.3])
def test_the_feed_forward_width_is_kempnerforges(dim: int, multiplier: float):
    wanted = 256 * math.ceil(int(4 * dim * 2 / 3 * multiplier) / 256)
    config = resolved([*SMALL, f"model.dim={dim}", f"model.ffn_dim_multiplier={multiplier}"]).config
    assert config.model.ffn_hidden_dim == wanted


def test_published_widths():
    assert [
        resolved([f"model={name}"]).config.model.ffn_hidden_dim for name in ("llama7b", "llama13b")
    ] == [11008, 13824]


def test_fsdp_takes_what_the_other_degrees_leave():
    found = derived(["parallel.dp_shard=-1", "parallel.tp=2"], world_size=8)
    assert found["parallel.dp_shard"] == (4, "8 ranks / 2 of the other degrees")


def test_the_arithmetic_of_a_layout_that_does_not_fit():
    config = composition.config(
        [*SMALL, "parallel.dp_shard=-1", "parallel.tp=2", "parallel.cp=3", "train.seq_len=36"]
    )
    with pytest.raises(ConfigError) as refused:
        config.validate(world_size=8)
    assert (
        "dp_replicate=1 * dp_shard=1 * tp=2 * pp=1 * cp=3 * ep=1 = 6, and there are 8 ranks (from the caller)."
        in str(refused.value)
    )


def test_every_rank_that_draws_its_own_data_counts():
    overrides = [
        *SMALL,
        "parallel.dp_shard=2",
        "parallel.dp_replicate=3",
        "parallel.ep=5",
        "parallel.tp=2",
        "train.global_batch_size=59",
    ]
    (found,) = [
        p for p in problems(overrides, world_size=60) if p.rule == "train.global_batch_size"
    ]
    assert (
        found.what
        == "train.global_batch_size (59) is not a multiple of train.batch_size (2) * 30 ranks = 60."
    )
    assert found.fix == "train.global_batch_size=60"


def test_a_gpu_decides_device_and_format():
    found = derived(["run.device=auto", "parallel.dp_shard=-1"], gpus=1)
    assert found["run.device"] == ("cuda", "1 GPUs: the test")
    assert found["precision.mixed_precision"] == ("bf16", "run.device=cuda")


def test_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    found = derived(["data=text", "data.path=my.txt", "data.cache_dir='~/cache'"])
    assert found["data.path"] == (str(tmp_path / "my.txt"), "from where the command was typed")
    assert found["data.cache_dir"][0] == os.path.expanduser("~/cache")


def test_a_directory_with_a_tokenizer_is_a_path_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "</s>": 7}}}')
    monkeypatch.chdir(tmp_path)
    found = {
        one.key: (one.value, one.why)
        for one in resolved(["tokenizer=file", "tokenizer.path=mine"]).derived
    }
    assert found["tokenizer.path"] == (
        str(tmp_path / "mine" / "tokenizer.json"),
        "the file of that name in the directory",
    )
    assert found["model.vocab_size"] == (8, "the tokenizer has 8 ids")


@pytest.mark.parametrize(
    ("given", "rows", "why"),
    [
        ("auto", 300, "tokenizer.vocab_size=300"),
        (
            "auto model.pad_vocab_to=128",
            384,
            "tokenizer.vocab_size=300, a multiple of model.pad_vocab_to=128",
        ),
        (
            "3e3 model.pad_vocab_to=128",
            3072,
            "3000 rounded up, a multiple of model.pad_vocab_to=128",
        ),
        ("384 model.pad_vocab_to=128", 384, None),
        ("384", 384, None),
    ],
)
def test_rows_follow_from_the_tokenizer(given: str, rows: int, why: str | None):
    overrides = [*SMALL, *f"model.vocab_size={given}".split()]
    resolution = resolved(overrides)
    assert resolution.config.model.vocab_size == rows
    assert {one.key: one.why for one in resolution.derived}.get("model.vocab_size") == why
    plain = resolved([*SMALL, f"model.vocab_size={rows}"]).config
    assert resolution.config.model.params_by_part() == plain.model.params_by_part()  # type: ignore[attr-defined]
    assert sum(memory_by_part(resolution.config).values()) == sum(memory_by_part(plain).values())


def test_rows_of_a_tokenizer_that_says_nothing_of_itself():
    """A user's own, whose section has no n_ids; a file that cannot be read is one problem, not two."""

    @dataclasses.dataclass(kw_only=True)
    class Mine(Tokenizer):
        _target_: str = "forge.data.tokenizer.train_bpe"

    config = composition.config([*SMALL, "model.vocab_size=auto"])
    config.tokenizer = Mine()
    with pytest.raises(ConfigError) as refused:
        resolve(config)
    assert [(p.key, p.what) for p in refused.value.problems] == [
        (
            "model.vocab_size=auto",
            "how many ids the tokenizer has is not known before it is built: Mine has no n_ids.",
        )
    ]
    (found,) = problems(["tokenizer=file", "tokenizer.path=nowhere", "model=tiny"])
    assert found.rule == "tokenizer.path"


@pytest.mark.parametrize("value", ["true", "abc", "300.5", "null", "[1]", "{a: 1}"])
def test_rows_are_an_integer_or_auto(value: str):
    assert (
        only([f"model.vocab_size={value}"]).what == "model.vocab_size must be an integer or auto."
    )


def epochs(overrides: list[str], samples: int):
    resolution = resolved([*SMALL, "train.max_steps=1000", "scheduler.warmup_steps=10", *overrides])
    config = resolution.config
    config.thaw()
    return config, fit_epochs(config, samples, {d.key for d in resolution.derived})


def test_epochs_cut_the_run_once_the_number_of_samples_is_known():
    config, found = epochs(["train.max_epochs=1.5", "train.batch_size=4"], samples=101)
    steps = math.ceil(1.5 * 101 / 4)
    assert config.train.max_steps == steps
    assert found[0] == Derived(
        key="train.max_steps", value=steps, why="1.5 epochs * 101 sequences / 4 a step"
    )
    assert config.scheduler.decay_steps == steps - 10


def test_a_decay_that_was_given_is_kept_and_wsd_is_split_again():
    config, _ = epochs(["train.max_epochs=1", "scheduler.decay_steps=500"], samples=200)
    assert (config.train.max_steps, config.scheduler.decay_steps) == (100, 500)
    config, found = epochs(
        ["scheduler=wsd", "scheduler.warmup_steps=10", "train.max_epochs=1"], samples=200
    )
    assert (config.scheduler.decay_steps, config.scheduler.stable_steps) == (20, 70)
    assert [d.key for d in found] == [
        "train.max_steps",
        "scheduler.decay_steps",
        "scheduler.stable_steps",
    ]


def test_a_warm_up_that_was_worked_out_fits_the_epochs():
    config, found = epochs(
        ["scheduler=wsd", "scheduler.warmup_steps=null", "train.max_epochs=1"], samples=200
    )
    assert (
        config.scheduler.warmup_steps,
        config.scheduler.decay_steps,
        config.scheduler.stable_steps,
    ) == (10, 20, 70)
    assert [d.key for d in found] == ["train.max_steps", *SCHEDULE]


@pytest.mark.parametrize(
    "limit", ["train.max_epochs=0", "train.max_epochs=10", "train.max_epochs=1e18"]
)
def test_epochs_never_lengthen_a_run(limit: str):
    config, found = epochs([limit], samples=200)
    assert (config.train.max_steps, found) == (1000, [])


def test_the_exact_end_of_an_epoch_is_not_a_cut():
    assert epochs(["train.max_epochs=1"], samples=2000)[1] == []
    assert epochs(["train.max_epochs=1"], samples=1998)[0].train.max_steps == 999


def test_a_derivation_declares_what_it_writes():
    declared = {key for derivation in DERIVATIONS for key in derivation.writes}
    for overrides in (
        [],
        ["scheduler=wsd"],
        ["train.global_batch_tokens=128"],
        ["data.cache_dir=x", "parallel.dp_shard=-1", "run.device=auto"],
    ):
        assert set(derived(overrides)) <= declared
