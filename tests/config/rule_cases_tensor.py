"""The table of rules on tensor parallelism."""

from __future__ import annotations

from rule_cases import Case

TENSOR_CASES = [
    Case(
        "parallel.tp_heads",
        "parallel.tp=8",
        "model.n_heads (4) must be divisible by parallel.tp (8).",
        "parallel.tp=4",
        "parallel.tp=4",
    ),
    Case(
        "parallel.tp_heads",
        "parallel.tp=4 model.n_heads=6 model.dim=60",
        "model.n_heads (6) must be divisible by parallel.tp (4).",
        "parallel.tp=2",
        "parallel.tp=2 model.n_heads=6 model.dim=60",
    ),
    Case(
        "parallel.tp_kv_heads",
        "parallel.tp=4 model.n_heads=12 model.dim=96 model.n_kv_heads=6",
        "model.n_kv_heads (6) must be divisible by parallel.tp (4), or parallel.tp by model.n_kv_heads.",
        "parallel.tp=2",
        "parallel.tp=4 model.n_kv_heads=2",
    ),
    Case(
        "parallel.tp_kv_heads",
        "parallel.tp=3 model.n_heads=6 model.dim=96 model.n_kv_heads=2 model.ffn_hidden_dim=96 train.seq_len=36",
        "model.n_kv_heads (2) must be divisible by parallel.tp (3), or parallel.tp by model.n_kv_heads.",
        "parallel.tp=2",
        "parallel.tp=4 model.n_kv_heads=1",
    ),
    Case(
        "parallel.tp_ffn",
        "parallel.tp=4 model.ffn_hidden_dim=102",
        "the feed-forward width (102) must be divisible by parallel.tp (4).",
        "parallel.tp=2 or model.ffn_hidden_dim=104",
        "parallel.tp=4 model.ffn_hidden_dim=100",
    ),
    Case(
        "parallel.tp_vocab",
        "parallel.tp=4 model.vocab_size=9 tokenizer=file tokenizer.path={tmp}/small.json",
        "model.vocab_size (9) in parts of 3 rows is enough for 3 ranks; parallel.tp is 4.",
        "parallel.tp=2 or model.vocab_size=12",
        "parallel.tp=4 model.vocab_size=301",
    ),
    Case(
        "parallel.tp_loss",
        "parallel.tp=2 parallel.loss_parallel=false objective.loss_fn=chunked_cross_entropy",
        "chunked_cross_entropy makes logits a chunk at a time and never gathers them, as parallel.loss_parallel=false asks.",
        "parallel.loss_parallel=true",
        "parallel.tp=2 parallel.loss_parallel=false",
    ),
]
