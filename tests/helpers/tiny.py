"""Overrides of a run whose steps take milliseconds."""

TINY = [
    "tokenizer.vocab_size=300",
    "model.vocab_size=300",
    "model.dim=16",
    "model.n_heads=2",
    "model.ffn_hidden_dim=32",
    "model.max_seq_len=32",
    "train.seq_len=16",
    "train.batch_size=4",
    "train.max_steps=6",
    "scheduler.warmup_steps=2",
    "optimizer.lr=0.01",
    "eval.enabled=false",
    "metrics.enable_console=false",
    "metrics.log_interval=1",
    "run.device=cpu",
    "run.num_threads=1",
]
# Two layers, and a schedule that ends: what tests of training run.
TWO_LAYERS = [
    *TINY,
    "scheduler=cosine",
    "model.qk_norm=false",
    "optimizer=adamw",
    "optimizer.betas=[0.9,0.95]",
    "model.n_layers=2",
]
