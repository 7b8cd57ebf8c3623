"""What a layout demands of micro-batches and models, and what is said where it does not fit, each
against something independent.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from refusing import SMALL, problems, resolved
from torch import nn
from torch.distributed.pipelining import schedules

from forge.compose import composition
from forge.config.model import Model
from forge.config.problems import ConfigError
from forge.plan.layout import best_microbatches, legal_microbatches

NAMES = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved_1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv_zero_bubble": schedules.ScheduleZBVZeroBubble,
}


def torch_takes(schedule: str, pp: int, parts: int) -> bool:
    """Whether torch makes the schedule of the first rank; ValueError is its refusal."""
    single = schedule in ("gpipe", "1f1b")
    count = pp * (1 if single else 2)
    indices = [0] if single else [0, count - 1] if schedule == "zbv_zero_bubble" else [0, pp]
    stages = [
        SimpleNamespace(
            num_stages=count,
            group_size=pp,
            group_rank=0,
            stage_index=index,
            is_first=index == 0,
            submod=nn.Identity(),
        )
        for index in indices
    ]
    try:
        NAMES[schedule](stages[0] if single else stages, parts, loss_fn=None)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("schedule", NAMES)
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_legal_micro_batches_are_those_that_torch_takes(schedule: str, pp: int):
    for sequences in (1, 2, 6, 12, 20):
        parts = [part for part in range(1, sequences + 1) if sequences % part == 0]
        assert legal_microbatches(sequences, pp, schedule) == [
            part for part in parts if torch_takes(schedule, pp, part)
        ]


@pytest.mark.parametrize(
    ("sequences", "accumulation", "pp", "schedule", "parts"),
    [
        (64, 1, 4, "1f1b", 8),  # the fewest from 2 * pp on
        (64, 16, 4, "1f1b", 16),  # no larger than a micro-batch
        (48, 6, 4, "1f1b", 12),
        (4, 1, 4, "1f1b", 4),  # the most there are
        (2, 1, 4, "gpipe", 2),
        (2, 1, 4, "1f1b", 2),  # none is legal, and the rule says so
        (15, 1, 2, "interleaved_1f1b", 3),  # 5 and 15 parts make no equal rounds of two
        (6, 3, 2, "zbv_zero_bubble", 6),
    ],
)
def test_the_micro_batches_that_are_chosen(
    sequences: int, accumulation: int, pp: int, schedule: str, parts: int
):
    assert best_microbatches(sequences, accumulation, pp, schedule) == parts


@pytest.mark.parametrize("axis", ["tp", "pp", "cp", "dp_shard", "dp_replicate"])
def test_only_a_decoder_is_cut_and_any_model_is_sharded(axis: str):
    config = composition.config([*SMALL, f"parallel.{axis}=2"])
    config.model = Model(_target_="torch.nn.Linear", vocab_size=300, max_seq_len=128)
    if axis.startswith("dp_"):
        assert config.validate().world.size == 2
        return
    with pytest.raises(ConfigError) as refused:
        config.validate()
    (found,) = [p for p in refused.value.problems if p.rule == "parallel.needs_decoder"]
    assert (found.key, found.fix) == (
        f"parallel.{axis}=2",
        f"parallel.{axis}=1; parallel.dp_shard and dp_replicate take any model",
    )
    assert (
        found.what
        == f"torch.nn.Linear is no Decoder of forge, and parallel.{axis} knows the layers of that only."
    )


def test_one_gpu_and_a_layout_of_four():
    (found,) = problems(["model=llama7b", "parallel=tp4"], gpus=1)[:1]
    assert found.what == "4 ranks (from the parallel degrees) need 4 GPUs; there is 1 (the test)."
    assert found.fix == "parallel=auto, parallel=fsdp, parallel=single, or run.device=cpu"


def test_the_presets_that_are_named_are_accepted():
    (found,) = problems(["model=llama7b", "train.batch_size=8", "parallel=fsdp", "parallel.tp=8"], gpus=4)[:1]
    named = [word for word in found.fix.split(", ") if word.startswith("parallel=")]
    assert len(named) > 10
    for preset in named:
        assert resolved(["model=llama7b", "train.batch_size=8", preset], gpus=4).world.size == 4


def test_layouts_of_experts_are_for_models_that_have_some():
    for model, named in (("moe_tiny", {"parallel=ep2", "parallel=fsdp", "parallel.ep=2"}), ("tiny", set())):
        (found,) = [
            p
            for p in problems([f"model={model}", "parallel=fsdp", "parallel.tp=4"], gpus=2)
            if p.rule == "parallel.world_size"
        ]
        assert {word for word in found.fix.split(", ") if "ep" in word.partition("=")[2]} == named


def test_on_a_cpu_a_layout_has_as_many_ranks_as_it_asks_for():
    assert resolved(["parallel=tp4", "parallel.pp=2"]).world.size == 8
    assert resolved(["parallel=hsdp", "parallel.tp=2"]).config.parallel.dp_shard == 1
    assert resolved(["parallel=hsdp", "parallel.tp=2", "run.num_processes=8"]).config.parallel.dp_shard == 2
