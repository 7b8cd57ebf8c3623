"""Objectives on preferences compute the same on every layout, whatever the reference is."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import on_ranks
from parity_models import TOKENIZER
from parity_run import Tokens, config_of, this_rank, world_of

from forge.data.batches.examples import plan_examples
from forge.data.batches.mixture import Mixture
from forge.data.tokens.store import COUNTS, LIKED
from forge.parallel.ranks import Ranks
from forge.parity.side import Record, measure
from forge.parity.verdict import BOUNDS, compare_records, may_vanish, verdict_table

FP64 = torch.float64
DPO, KTO = "objective=dpo", "objective=kto"
PP2 = "parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=4"
CASES = [
    (DPO, "llama", "parallel.tp=2"),
    (DPO, "llama", PP2),
    (DPO, "llama", "parallel.dp_shard=2"),
    (DPO, "llama", "parallel.dp_shard=2 train.batch_size=1"),
    (DPO, "llama", "parallel.dp_replicate=2 train.batch_size=2"),
    (DPO, "llama", "parallel.tp=2 parallel.sequence_parallel=false"),
    (DPO, "gemma2", "parallel.tp=2"),
    (DPO, "moe", "parallel.ep=2"),
    (DPO, "moe", "parallel.ep=2 parallel.ep_method=all_gather"),
    (DPO, "llama", "parallel.cp=2"),
    (DPO, "llama", "parallel.cp=2 parallel.tp=2"),
    (DPO, "delta", "parallel.cp=2 parallel.cp_method=ulysses"),
    (f"{DPO} objective.reference=copy", "llama", "parallel.cp=2"),
    (f"{DPO} objective.reference=adapter", "lora", "parallel.cp=2 parallel.dp_shard=2"),
    ("objective=orpo", "llama", "parallel.cp=2"),
    ("objective=reward_model", "llama", "parallel.cp=2"),
    ("objective=reward_model", "llama", "parallel.cp=2 parallel.tp=2"),
    (KTO, "moe", "parallel.cp=2 parallel.ep=2"),
    (f"{DPO} objective.reference=copy", "llama", "parallel.dp_shard=2"),
    (f"{DPO} objective.reference=copy objective.loss_fn=ipo", "llama", "parallel.tp=2"),
    (f"{DPO} objective.reference=adapter", "lora", "parallel.dp_shard=2"),
    (f"{DPO} objective.reference=adapter", "lora", "parallel.tp=2"),
    ("objective=orpo", "llama", "parallel.tp=2"),
    ("objective=simpo", "llama", PP2),
    ("objective=reward_model", "llama", "parallel.tp=2"),
    ("objective=reward_model", "llama", "parallel.dp_shard=2"),
    ("objective=reward_model", "llama", PP2),
    ("objective=cpo", "gpt2", "parallel.tp=2 parallel.dp_shard=2 train.batch_size=2"),
    (KTO, "llama", PP2),
    (KTO, "llama", "parallel.tp=2"),
    (KTO, "llama", "parallel.dp_shard=2 train.batch_size=1"),
    (KTO, "moe", "parallel.ep=2"),
    (f"{KTO} objective.reference=copy", "llama", "parallel.dp_shard=2"),
    (f"{KTO} objective.reference=adapter", "lora", "parallel.tp=2"),
]
# The first pass of a pipeline has more to get wrong with kto.
CI = [CASES[0], (DPO, "llama", "parallel.cp=2"), (KTO, "llama", PP2)]


class Preferred(Tokens):
    """Examples of two documents of 3 to 16 tokens, of which the last ones are the response."""

    together, fingerprint, stamp = 2, "drawn", "drawn"

    def __init__(self) -> None:
        super().__init__()
        draw = np.random.default_rng(1)
        lengths = draw.integers(3, 17, size=400)
        self.offsets = np.append(0, lengths.cumsum())
        self.ids, self.counted = self.ids[: self.offsets[-1]], Tokens()
        self.counted.ids = np.zeros(len(self.ids), dtype=np.uint8)
        for start, length in zip(self.offsets, lengths, strict=False):
            self.counted.ids[start + draw.integers(1, length) : start + length] = COUNTS
            if start % 3 == 0:
                self.counted.ids[start : start + length] |= LIKED


def record(objective: str, model: str, layout: str, ranks: Ranks, folder: Path) -> Record:
    data = f"data=preference data.path={__file__} data.cache_dir={folder} objective.beta=0.5"
    if objective.startswith(KTO):
        data = data.replace("data=preference", "data=labelled objective.undesirable_weight=0.7")
    if objective == "objective=orpo":
        data = data.replace("objective.beta", "objective.lambda_weight")
    if objective == "objective=reward_model":
        data = data.replace("objective.beta=0.5", "objective.center_rewards=0.1")
    config = config_of(model, f"{objective} {data} {layout}")
    store = Preferred()
    plan = plan_examples(store, seq_len=16, too_long="refuse")  # type: ignore[arg-type]
    text = Mixture(stores={"": store}, plans={"": plan})  # type: ignore[dict-item]
    tokenizer = TOKENIZER if "reward_model" in objective else None
    return measure(config, ranks, text, dtype=FP64, steps=3, lr=0.05, tokenizer=tokenizer)


@cache
def reference(objective: str, model: str, folder: Path) -> Record:
    return record(objective, model, "", Ranks(), folder)


@pytest.mark.parametrize(
    ("objective", "model", "layout"),
    [pytest.param(*case, marks=[] if case in CI else pytest.mark.nightly) for case in CASES],
)
def test_a_layout_equals_one_device(objective, model, layout, tmp_path) -> None:
    """The reference is computed by each side itself, in caches of their own."""
    one = reference(objective, model, tmp_path / "one")
    assert len(set(one.losses)) == 3
    many = config_of(model, layout)

    def work(rank: int) -> None:
        found = record(objective, model, layout, this_rank(many), tmp_path / "many")
        if rank == 0:
            verdict = compare_records(one, found, BOUNDS[FP64], may_vanish=may_vanish(many))
            assert not verdict.faults, verdict_table(verdict, BOUNDS[FP64])

    on_ranks(world_of(many), work)
    cached = (tmp_path / "many" / "references").is_dir()
    assert cached == (objective in (DPO, KTO))
