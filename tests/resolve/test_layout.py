"""What a layout demands of micro-batches and models, each against something independent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from helpers.refusing import SMALL
from torch import nn
from torch.distributed.pipelining import schedules

from forge.compose import composition
from forge.config.model.layer import Model
from forge.config.problems import ConfigError
from forge.planning.layout import best_microbatches, legal_microbatches

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
    same = {"num_stages": count, "group_size": pp, "group_rank": 0, "submod": nn.Identity()}
    stages = [SimpleNamespace(stage_index=n, is_first=n == 0, **same) for n in indices]
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
        taken = [part for part in parts if torch_takes(schedule, pp, part)]
        assert legal_microbatches(sequences, pp, schedule) == taken


def test_the_micro_batches_that_are_chosen():
    for sequences, accumulation, pp, schedule, parts in [
        (64, 1, 4, "1f1b", 8),  # the fewest from 2 * pp on
        (64, 16, 4, "1f1b", 16),  # no larger than a micro-batch
        (48, 6, 4, "1f1b", 12),
        (4, 1, 4, "1f1b", 4),  # the most there are
        (2, 1, 4, "gpipe", 2),
        (2, 1, 4, "1f1b", 2),  # none is legal, and the rule says so
        (15, 1, 2, "interleaved_1f1b", 3),  # 5 and 15 parts make no equal rounds of two
        (6, 3, 2, "zbv_zero_bubble", 6),
    ]:
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
    assert found.key == f"parallel.{axis}=2"


def test_quantization_and_adapters_are_of_a_decoder():
    lora = "adapter=lora"
    config = composition.config([*SMALL, "quantization=fp8", "quantization.emulate=true", lora])
    config.model = Model(_target_="torch.nn.Linear", vocab_size=300, max_seq_len=128)
    with pytest.raises(ConfigError) as refused:
        config.validate()
    found = {p.rule: p.fix for p in refused.value.problems}
    assert found["quantization.needs_decoder"] == "quantization=none"
    assert found["adapter.needs_decoder"] == "adapter=none"
