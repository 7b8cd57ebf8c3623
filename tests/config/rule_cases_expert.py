"""The table of rules on expert parallelism, and on experts under tensor parallelism."""

from __future__ import annotations

from rule_cases import Case

EIGHT, SIX = "model.moe.num_experts=8", "model.moe.num_experts=6"

EXPERT_CASES = [
    Case(
        "parallel.ep_needs_moe",
        "parallel.ep=2",
        "parallel.ep > 1 needs a mixture-of-experts model; this one is dense.",
        "parallel.ep=1 or a model with experts",
        "parallel.ep=1",
    ),
    Case(
        "parallel.ep_needs_moe",
        "parallel=fsdp", "parallel.ep=2",
        "parallel.ep > 1 needs a mixture-of-experts model; this one is dense.",
        "parallel.ep=1 or a model with experts",
        f"parallel=fsdp parallel.ep=2 {EIGHT}",
        world_size=8,
        world_size_kept=8,
    ),
    Case(
        "parallel.ep_experts",
        f"parallel.ep=4 {SIX}",
        "model.moe.num_experts (6) must be divisible by parallel.ep (4).",
        "parallel.ep=2 parallel.dp_shard=-1",
        f"parallel.ep=4 {EIGHT}",
        world_size=4,
        world_size_kept=4,
    ),
    Case(
        "parallel.ep_experts",
        "parallel=ep2 model.moe.num_experts=3 parallel.dp_shard=2",
        "model.moe.num_experts (3) must be divisible by parallel.ep (2).",
        "parallel.ep=1 parallel.dp_shard=-1",
        f"parallel=ep2 {SIX} parallel.dp_shard=2",
        world_size=4,
        world_size_kept=4,
    ),
    Case(
        "parallel.tp_experts",
        f"parallel.tp=4 {EIGHT} model.moe.ffn_hidden_dim=54",
        "the width of an expert (54) must be divisible by parallel.tp (4).",
        "parallel.tp=2 or model.moe.ffn_hidden_dim=56",
        f"parallel.tp=2 {EIGHT} model.moe.ffn_hidden_dim=54",
    ),
    Case(
        "parallel.tp_experts",
        f"parallel.tp=4 {EIGHT} model.ffn_hidden_dim=54 model.moe.shared_experts=2",
        "the width of an expert (54) must be divisible by parallel.tp (4).",
        "parallel.tp=2 or model.moe.ffn_hidden_dim=56",
        f"parallel.tp=4 {EIGHT} model.ffn_hidden_dim=54 model.moe.ffn_hidden_dim=56",
    ),
    Case(
        "parallel.tp_ffn",
        f"parallel.tp=4 {EIGHT} model.ffn_hidden_dim=54 model.moe.ffn_hidden_dim=56 model.moe.frequency=2",
        "the feed-forward width (54) must be divisible by parallel.tp (4).",
        "parallel.tp=2 or model.ffn_hidden_dim=56",
        f"parallel.tp=4 {EIGHT} model.ffn_hidden_dim=54 model.moe.ffn_hidden_dim=56",
    ),
]
