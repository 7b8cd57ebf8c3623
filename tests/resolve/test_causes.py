"""What comes of one wrong degree of parallelism is one problem, and its advice is a degree that
works.
"""

from __future__ import annotations

import pytest
from helpers.advice import alternatives
from helpers.refusing import SMALL, problems

TP = "must be divisible by parallel.tp"
TP3 = f"model.n_heads (4), the feed-forward width (256) and train.seq_len (32) {TP} (3)."
CP3 = "train.seq_len (32) must be divisible by 2 for parallel.cp_load_balance * parallel.cp (6)."
STAGES = (
    "Each of parallel.pp ({0}) * parallel.pp_stages_per_rank (1) stages has a block or more of"
    " model.n_layers (2), or as many as parallel.pp_layers says"
)
PARTS = (
    "train.batch_size (2) * train.grad_accum_steps (1) = 2 sequences cannot go"
    " through parallel.pp (5) ranks in 2 parts under 1f1b."
)
CASES = [
    (0, "parallel.tp=3", {TP3: "parallel.tp=2"}),
    (1, "parallel.tp=3", {TP3: "parallel.tp=1"}),
    (4, "parallel.tp=8", {f"model.n_heads (4) {TP} (8).": "parallel.tp=4"}),
    (4, "parallel.cp=3", {CP3: "parallel.cp=2"}),
    (4, "parallel.pp=5", {f"{STAGES.format(5)}; {PARTS}": "parallel.pp=2"}),
    (
        0,
        "parallel.tp=3 parallel.pp=3 train.batch_size=4",
        {TP3: "parallel.tp=2", f"{STAGES.format(3)}.": "parallel.pp=2 or model.n_layers=3"},
    ),
    (
        8,
        "parallel.ep=3 model.moe.num_experts=8",
        {"model.moe.num_experts (8) must be divisible by parallel.ep (3).": "parallel.ep=2"},
    ),
    (
        0,
        "parallel.tp=3 run.num_processes=4 parallel.dp_shard=1",
        {TP3: "parallel.tp=2 parallel.dp_shard=-1"},
    ),
]


@pytest.mark.parametrize(("gpus", "typed", "fixes"), CASES, ids=str)
def test_problems_of_one_cause_are_one(gpus: int, typed: str, fixes: dict[str, str]):
    small = [text for text in SMALL if text not in ("run.device=cpu", "parallel=single")]
    overrides = [*small, *typed.split()]
    found = problems(overrides, gpus=gpus)
    assert {p.what: p.fix for p in found} == fixes
    assert all(p.where == "command line" for p in found if "parallel=" not in typed)
    fixed = [word for fix in fixes.values() for word in alternatives(fix)[0]]
    assert [p for p in problems([*overrides, *fixed], gpus=gpus) if not p.warning] == []


def test_a_degree_that_is_right_stays_beside_another_problem():
    found = problems([*SMALL, "parallel.tp=2", "train.seq_len=33", "optimizer.lr=-1"])
    assert [(p.key, p.fix) for p in found] == [
        ("train.seq_len=33", "train.seq_len=32"),
        ("optimizer.lr=-1.0", ""),
    ]
