"""What may change when a run continues: every option of the schema decided, and what two configs
differ in.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from helpers.refusing import SMALL, resolved

from forge.config import schemas
from forge.config.changes import Change, changes, permitted
from forge.config.launch import Slurm
from forge.config.optimizers.schedules import WSD
from forge.config.root import Config
from forge.config.rule import put
from forge.config.sweeper import Optuna
from forge.rundir import saved_config

FREE = {
    "": "callbacks tags techniques trackers",
    "checkpoint": "async_mode continuous enabled export_at_end export_dtype interval "
    "interval_minutes local_dir local_interval local_partner local_ranks remote "
    "keep_best keep_last_n last per_decade read_by_one_replica resume_from steps",
    "data": "cache_dir max_bad_rows num_workers pad_to_multiple_of pin_memory prefetch_factor",
    "fault_tolerance": "lighthouse min_replica_size process_group process_group_timeout_ms "
    "quorum_timeout_sec replica_id",
    "model": "fused_gate_up fused_qkv recipe",
    "objective": "teacher_tp",
    "rollout": "batch_size keep_last key_variable model reload reload_body retries table_rows "
    "timeout url",
    "train": "activation_checkpointing batch_size compile_backend compile_model gc_interval "
    "grad_accum_steps max_bad_steps max_epochs max_time max_tokens tokens_per_parameter "
    "parameters_counted nccl_health_check_interval "
    "ema_decay ema_interval ema_start_step ema_warmup "
    "optimizer_in_backward recompute recompute_every recompute_layers shutdown_timeout_sec",
}
FREE_AS_A_WHOLE = {"eval", "launch", "metrics", "parallel", "plan", "profiling", "run", "sweep"}
FREE_AS_A_WHOLE |= {"scaling", "sweeper"}
IDENTITY = {
    "": "environment hparams rewards seed",
    "checkpoint": "branch_of dir exclude_from_loading init_from init_optimizer",
    "data": "_target_ add_bos add_eos anneal_start_step anneal_weights as_messages chat_template "
    "chat_template_kwargs leave_out "
    "chat_template_path chosen_field completion_field dtype end_responses file_pattern "
    "formatting_func label_field messages_field "
    "hf_data_dir hf_data_files hf_dataset_config hf_dataset_name hf_dataset_split hf_streaming "
    "max_segments_per_seq mix_temperature on_bad_row overfit_batches pack_sequences packing "
    "packing_buffer path "
    "phases "
    "prompt_field rejected_field response_field seed shuffle shuffle_buffer shuffle_seed sources "
    "stream_parts system_prompt "
    "text_field tokens too_long train_on val_documents val_files val_fraction val_from_first "
    "validation",
    "train": "global_batch_size global_batch_tokens grad_clip_norm grad_clip_value max_steps "
    "batch_stages batch_until seq_len_stages seq_len_until "
    "rampup_increment rampup_samples rampup_start seq_len skip_step_interval skip_step_on_spikes "
    "skip_step_scaling_factor use_qk_clip qk_clip_threshold",
}
IDENTITY_AS_A_WHOLE = {"model", "objective", "optimizer", "precision", "quantization", "scheduler"}
IDENTITY_AS_A_WHOLE |= {"adapter", "diloco", "fault_tolerance", "rollout", "tokenizer"}


def test_every_option_is_decided() -> None:
    """An option that is new is put into one of the tables above."""
    for key, _, schema, field in schemas.walk_options():
        group, _, name = key.rpartition(".") if key.count(".") < 2 else key.partition(".")
        section = name.partition(".")[0]
        is_free = section in FREE.get(group, "").split() or group in FREE_AS_A_WHOLE
        as_a_whole = group in IDENTITY_AS_A_WHOLE and name not in FREE.get(group, "").split()
        is_identity = name in IDENTITY.get(group, "").split() or as_a_whole
        assert is_free != is_identity, f"say here whether {key} may change when a run continues"
        assert (schema.all_free or field.metadata.get("free", False)) is is_free, key


def test_the_tables_name_options_only() -> None:
    options = {key for key, *_ in schemas.walk_options()}
    named = {
        f"{group}.{name}".lstrip(".")
        for table in (FREE, IDENTITY)
        for group, names in table.items()
        for name in names.split()
    }
    assert named <= options | {key.rpartition(".")[0] for key in options}
    assert {*FREE_AS_A_WHOLE, *IDENTITY_AS_A_WHOLE, *FREE} == {*schemas.sections(), ""}


@pytest.fixture(scope="module")
def before() -> Config:
    callback = "+callbacks.a={_target_:mypkg.EMA,of:[1,{b:[2,null]}]}"
    return resolved(
        [*SMALL, "optimizer=adamw", "scheduler=cosine", "run.trust=[mypkg.]", callback]
    ).config


def with_values(config: Config, **values: Any) -> Config:
    """A copy with other values; a key is written train__max_steps."""
    other = copy.deepcopy(config)
    other.thaw()
    for key, value in values.items():
        put(other, key.replace("__", "."), value)
    other.freeze()
    return other


@pytest.mark.parametrize(
    ("key", "value", "free"),
    [
        ("seed", 43, False),
        ("model.n_layers", 3, False),
        ("data.num_workers", 3, True),
        ("optimizer.betas", (0.1, 0.2), False),
        ("parallel.tp", 2, True),
        ("train.global_batch_size", 1, False),
        ("train.max_steps", 99, False),
        ("train.max_steps", 101, True),
        ("checkpoint.resume_from", "3", True),
        ("checkpoint.remote", "s3://bucket/runs", True),
        ("run.trust", ("mine.",), True),
        ("callbacks", {}, True),
        ("techniques", {"t": {"_target_": "mypkg.EMA"}}, True),
        ("trackers", {"t": {"_target_": "mypkg.EMA"}}, True),
    ],
)
def test_a_change_with_its_values(before: Config, key: str, value: Any, free: bool) -> None:
    after = with_values(before, **{key: value})
    (found,) = changes(before, after)
    old: Any = before
    for name in key.split("."):
        old = getattr(old, name)
    assert found == Change(key=key, before=old, after=value, free=free)


def test_nothing_differs_from_itself_written_and_read(before: Config, tmp_path: Path) -> None:
    """Lists in the file are tuples here, in free dicts too."""
    saved_config.save_config(before, tmp_path / "config.yaml")
    again = saved_config.load_config(tmp_path / "config.yaml", trust=["mypkg."])
    assert changes(before, again) == changes(again, before) == []
    again.thaw()
    assert isinstance(again.callbacks["a"]["of"], list)
    again.optimizer.betas = list(again.optimizer.betas)  # type: ignore[attr-defined]
    assert changes(before, again) == changes(again, before) == []


def test_another_variant_is_one_change(before: Config) -> None:
    (found,) = changes(before, with_values(before, scheduler=WSD()))
    was, becomes = ("forge.optim.schedules.cosine", "forge.optim.schedules.wsd")
    assert found == Change(key="scheduler", before=was, after=becomes, free=False)
    (found,) = changes(before, with_values(before, launch=Slurm()))
    assert found == Change(key="launch", before="Local", after="Slurm", free=True)


def test_where_a_run_lies_and_in_which_sweep_is_no_change(before: Config) -> None:
    after = with_values(before, run__dir="/x", run__root="/y", run__name="z", sweep__name="other")
    assert changes(before, with_values(after, sweeper=Optuna())) == []


def schedule(*options: str) -> Config:
    return resolved([*SMALL, *options]).config


@pytest.mark.parametrize("option", ["scheduler=cosine", "scheduler=wsd"])
def test_a_schedule_that_was_worked_out_follows_a_longer_run(option: str) -> None:
    shorter, longer = schedule(option), schedule(option, "train.max_steps=200")
    found = changes(shorter, longer)
    assert {c.key for c in found} >= {"train.max_steps", "scheduler.decay_steps"}
    assert all(c.free for c in found)
    back = changes(longer, shorter)
    assert {c.key for c in back} == {c.key for c in found}
    assert [c.key for c in back if not c.free] == ["train.max_steps"], (
        "one word of the user's is enough for a shorter run"
    )


@pytest.mark.parametrize(("first", "second"), [("80", "150"), ("null", "150"), ("80", "null")])
def test_a_schedule_that_was_given_does_not_change_freely(first: str, second: str) -> None:
    shorter = schedule("scheduler=cosine", f"scheduler.decay_steps={first}")
    longer = schedule("scheduler=cosine", f"scheduler.decay_steps={second}", "train.max_steps=200")
    assert {c.key: c.free for c in changes(shorter, longer)} == {
        "train.max_steps": True,
        "scheduler.decay_steps": False,
    }


def test_without_another_horizon_no_part_of_a_schedule_follows() -> None:
    """Both are what could have been worked out, each from the other part."""
    a, b = (schedule("scheduler=wsd", f"scheduler.decay_steps={n}") for n in (20, 30))
    assert {c.key: c.free for c in changes(a, b)} == {
        "scheduler.decay_steps": False,
        "scheduler.stable_steps": False,
    }


def test_permitted() -> None:
    assert permitted("optimizer.lr", ("optimizer.lr",))
    assert permitted("optimizer.lr", ("model", "optimizer"))
    assert not permitted("optimizer.lr", ("optimizer.betas", "optimizer.l", "opt", "lr"))
    assert not permitted("optimizer", ("optimizer.lr",))
