"""The table of rules on what cuts sequences."""

from __future__ import annotations

from rule_cases import Case

CONTEXT_CASES = [
    Case(
        "parallel.seq_len",
        "parallel.tp=4 parallel.cp=3",
        "train.seq_len (32) must be divisible by 2 for parallel.cp_load_balance * parallel.cp * parallel.tp (24).",
        "train.seq_len=24",
        "parallel.tp=4 parallel.cp=2",
    ),
    Case(
        "parallel.seq_len",
        "parallel.cp=2 train.seq_len=34",
        "train.seq_len (34) must be divisible by 2 for parallel.cp_load_balance * parallel.cp (4).",
        "train.seq_len=32",
        "parallel.cp=2 train.seq_len=34 parallel.cp_load_balance=false",
    ),
    Case(
        "parallel.seq_len",
        "parallel.cp=4 parallel.cp_method=ulysses train.seq_len=34",
        "train.seq_len (34) must be divisible by parallel.cp (4).",
        "train.seq_len=32",
        "parallel.cp=2 parallel.cp_method=ulysses train.seq_len=34",
    ),
    Case(
        "parallel.seq_len",
        "parallel.tp=2 train.seq_len=33",
        "train.seq_len (33) must be divisible by parallel.tp (2).",
        "train.seq_len=32",
        "parallel.tp=2 train.seq_len=33 parallel.sequence_parallel=false",
    ),
    Case(
        "parallel.seq_len",
        "parallel.cp=16 train.seq_len=20",
        "train.seq_len (20) must be divisible by 2 for parallel.cp_load_balance * parallel.cp (32).",
        "train.seq_len=32",
        "parallel.cp=16",
    ),
    Case(
        "parallel.ulysses_heads",
        "parallel.cp=4 parallel.tp=2 parallel.cp_method=ulysses",
        "of 2 heads and 2 key/value heads a tp rank has, parallel.cp (4) must divide both.",
        "parallel.cp=2 or parallel.cp_method=all_gather",
        "parallel.cp=2 parallel.tp=2 parallel.cp_method=ulysses",
    ),
    Case(
        "parallel.ulysses_heads",
        "parallel.cp=4 parallel.cp_method=ulysses model.n_kv_heads=2",
        "of 4 heads and 2 key/value heads a tp rank has, parallel.cp (4) must divide both.",
        "parallel.cp=2 or parallel.cp_method=all_gather",
        "parallel.cp=2 parallel.cp_method=ulysses model.n_kv_heads=2",
    ),
    Case(
        "parallel.ulysses_heads",
        "parallel.cp=2 parallel.tp=2 parallel.cp_method=ulysses model.n_kv_heads=1",
        "of 2 heads and 1 key/value heads a tp rank has, parallel.cp (2) must divide both.",
        "parallel.cp=1 or parallel.cp_method=all_gather",
        "parallel.cp=4 parallel.cp_method=ulysses",
    ),
    Case(
        "parallel.cp_kernel",
        "parallel.cp=2 model.sdpa_backend=math",
        "model.sdpa_backend=math holds for the first part of a sequence only; behind it torch chooses the kernel.",
        "model.sdpa_backend=auto",
        "parallel.cp=2 parallel.cp_method=ulysses model.sdpa_backend=math",
    ),
]
