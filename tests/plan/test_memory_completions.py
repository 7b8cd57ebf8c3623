"""The cache of rollouts in the estimate of memory, against the tensors of the sampler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.refusing import resolved

from forge.models.batching.slots import Slots
from forge.models.plain import make_model
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import Sampling
from forge.planning.memory import ROLLOUT, memory_of
from forge.rollouts import slots

GRPO = (
    "objective=grpo data=sums_demo tokenizer=bytes +reward@rewards.exact=exact "
    "model.max_seq_len=128 train.seq_len=48 train.batch_size=8 train.global_batch_size=32 "
    "rollout.max_new_tokens=32 rollout.batch_size=6 model.n_kv_heads=2 "
    "precision=fp32 run.device=cpu"
)
MLA = "+mixer@model.mixer=mla"


@pytest.mark.parametrize("mixer", ["", MLA, f"{MLA} model.mixer.mla_naive_kvcache=false"])
def test_the_cache_of_completions_is_that_of_the_sampler(
    mixer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolved([*GRPO.split(), *mixer.split()]).config
    held: list[int] = []
    join = Slots.join

    def joining(self: Slots, rows: Any) -> None:
        join(self, rows)
        held.append(sum(t.nbytes for tensors in self.store for t in tensors))

    monkeypatch.setattr(Slots, "join", joining)
    model = make_model(config.model)
    how = DrawOptions(sampling=Sampling(seed=1), ends=frozenset(), n_ids=257)
    prompts = [(1,) * 16] * 9
    slots.write_rows(model, prompts, range(9), 32, how, torch.device("cpu"), size=6)
    parts = memory_of(config).moments[ROLLOUT]
    assert held
    assert parts["cache of completions"] == max(held)


def test_many_slots_are_the_largest_need() -> None:
    few, many = (
        memory_of(resolved([*GRPO.split(), f"rollout.batch_size={size}", *batch]).config)
        for size, batch in ((1, []), (4096, ["train.global_batch_size=4096"]))
    )
    assert few.moment != ROLLOUT
    assert many.moment == ROLLOUT
    assert ROLLOUT not in memory_of(resolved().config).moments


def test_on_policy_distillation_has_the_cache_of_its_rows() -> None:
    """train.batch_size rows of train.seq_len tokens, as rollouts of that size; none at lambda 0."""
    words = ["objective=gkd", "objective.teacher=runs/none", "data=chat_demo", "data.packing=none"]
    sizes = ["train.seq_len=48", "train.batch_size=8", "model.n_kv_heads=2", "tokenizer=bytes"]
    common = [*words, *sizes, "model.max_seq_len=128", "precision=fp32", "run.device=cpu"]
    name = "cache of completions"
    parts = memory_of(resolved(common).config).moments[ROLLOUT]
    rollouts = resolved([*GRPO.split(), "rollout.batch_size=8"]).config
    assert parts[name] == memory_of(rollouts).moments[ROLLOUT][name]
    assert ROLLOUT not in memory_of(resolved([*common, "objective.lmbda=0"]).config).moments
