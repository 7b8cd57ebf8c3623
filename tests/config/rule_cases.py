"""The table of rules: overrides that break each, what it says then and what to do, and overrides
that keep it.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """`{tmp}` is a folder of the test."""

    rule: str
    breaks: str
    what: str
    fix: str
    keeps: str
    gpus: int = 0
    memory: int | None = None
    world_size: int | None = None
    world_size_kept: int | None = None
    torch: tuple[int, int] = (2, 13)


CASES = [
    Case(
        "train.global_batch_size",
        "train.global_batch_size=4 train.batch_size=4 parallel.dp_shard=2",
        "train.global_batch_size (4) is not a multiple of train.batch_size (4) * 2 ranks = 8.",
        "train.batch_size=2",
        "train.global_batch_size=4 train.batch_size=2 parallel.dp_shard=2",
    ),
    Case(
        "train.batch_size",
        "train.batch_size=0",
        "a micro-batch of no sequence trains nothing.",
        "train.batch_size=1, or -1 to work it out",
        "train.batch_size=-1",
    ),
    Case(
        "train.seq_len",
        "train.seq_len=129",
        "train.seq_len (129) exceeds model.max_seq_len (128).",
        "train.seq_len=128 or model.max_seq_len=129",
        "train.seq_len=128",
    ),
    Case(
        "model.heads",
        "model.n_heads=5",
        "model.dim (64) is not divisible by model.n_heads (5).",
        "model.n_heads=4",
        "model.n_heads=8",
    ),
    Case(
        "precision.residual_dtype",
        "precision=bf16 precision.residual_dtype=fp16",
        "with precision.mixed_precision=bf16 hidden states are kept in fp32 or in bf16.",
        "precision.residual_dtype=auto",
        "precision=bf16 precision.residual_dtype=fp32",
    ),
    Case(
        "model.sdpa_backend",
        "model.sdpa_backend=cudnn",
        "torch has no cudnn kernel on a CPU.",
        "model.sdpa_backend=auto",
        "model.sdpa_backend=flash",
    ),
    Case(
        "model.sdpa_backend",
        "run.device=cuda precision=fp32 model.sdpa_backend=flash",
        "the flash kernel takes 16 bits, and precision.mixed_precision is fp32.",
        "model.sdpa_backend=auto or precision=bf16",
        "run.device=cuda precision=bf16 model.sdpa_backend=flash",
        gpus=1,
    ),
    Case(
        "model.sdpa_backend",
        "run.device=cuda precision=bf16 model.sdpa_backend=efficient model.n_kv_heads=2",
        "the efficient kernel takes as many key heads as heads, not 2 for 4.",
        "model.sdpa_backend=auto",
        "run.device=cuda precision=bf16 model.sdpa_backend=efficient",
        gpus=1,
    ),
    Case(
        "model.sdpa_backend",
        "run.device=cuda precision=bf16 run.deterministic=true model.sdpa_backend=cudnn",
        "the cudnn kernel is not deterministic, and run.deterministic is true.",
        "model.sdpa_backend=auto",
        "run.device=cuda precision=bf16 model.sdpa_backend=cudnn",
        gpus=1,
    ),
    Case(
        "model.kv_heads",
        "model.n_kv_heads=3",
        "model.n_heads (4) is not divisible by model.n_kv_heads (3).",
        "model.n_kv_heads=2",
        "model.n_kv_heads=2",
    ),
    Case(
        "model.rope_head_dim",
        "model.dim=60",
        "the head dimension is model.dim / model.n_heads = 15, and model.position=rope needs an even one.",
        "another model.dim or model.n_heads, or model.position=learned",
        "model.dim=60 model.position=learned",
    ),
    Case(
        "model.vocab_size",
        "model.vocab_size=299",
        "the tokenizer has 300 ids, the model only 299 rows for them.",
        "model.vocab_size=300",
        "model.vocab_size=300",
    ),
    Case(
        "model.vocab_size",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json model.vocab_size=11",
        "the tokenizer has 12 ids, the model only 11 rows for them.",
        "model.vocab_size=12",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json model.vocab_size=12",
    ),
    Case(
        "model.vocab_unused",
        "model.vocab_size=601",
        "the tokenizer has 300 ids, so 301 of the 601 embedding rows are never trained.",
        "model.vocab_size=300, or tokenizer.vocab_size=601",
        "model.vocab_size=600",
    ),
    Case(
        "tokenizer.path",
        "tokenizer=file",
        "tokenizer=file needs the path of a tokenizer.json.",
        "tokenizer.path=my/tokenizer.json",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json",
    ),
    Case(
        "tokenizer.path",
        "tokenizer=file tokenizer.path={tmp}/absent.json",
        "there is no file {tmp}/absent.json.",
        "check the path; it is relative to where you are",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json",
    ),
    Case(
        "tokenizer.path",
        "tokenizer=file tokenizer.path={tmp}/my.txt",
        "{tmp}/my.txt cannot be used: it is not a tokenizer.json of the tokenizers library.",
        "one that tokenizer.save() wrote, or that of a transformers model",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json",
    ),
    Case(
        "tokenizer.path",
        "tokenizer=file tokenizer.path={tmp}/empty",
        "the directory {tmp}/empty has no tokenizer.json.",
        "the path of a directory that has one, or of the file",
        "tokenizer=file tokenizer.path={tmp}",
    ),
    Case(
        "tokenizer.eos_token",
        "tokenizer=file tokenizer.path={tmp}/no_end.json",
        "{tmp}/no_end.json has none of the usual tokens that end a document (<|endoftext|>, </s>, <|end_of_text|>, <eos>, [EOS], ...).",
        "\"tokenizer.eos_token='<pad>'\", if that ends a document; its added tokens: <pad>, <end>",
        "tokenizer=file tokenizer.path={tmp}/no_end.json \"tokenizer.eos_token='<end>'\"",
    ),
    Case(
        "tokenizer.eos_token",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json tokenizer.eos_token=[SEP]",
        "there is no token [SEP] in {tmp}/tokenizer.json.",
        "\"tokenizer.eos_token='<pad>'\", if that ends a document; its added tokens: <pad>, <end>",
        "tokenizer=file tokenizer.path={tmp}/tokenizer.json tokenizer.eos_token=a",
    ),
    Case(
        "objective.chunk_size_unused",
        "objective.ce_chunk_size=8",
        "objective.ce_chunk_size has no effect with objective.loss_fn=cross_entropy.",
        "objective.loss_fn=chunked_cross_entropy",
        "objective.ce_chunk_size=8 objective.loss_fn=chunked_cross_entropy",
    ),
    Case(
        "train.global_batch_tokens",
        "train.global_batch_tokens=100",
        "train.global_batch_tokens (100) is not train.global_batch_size (3) * train.seq_len (32).",
        "train.global_batch_tokens=128",
        "train.global_batch_tokens=128",
    ),
    Case(
        "train.global_batch_tokens",
        "train.global_batch_tokens=64 train.global_batch_size=4",
        "train.global_batch_tokens (64) is not train.global_batch_size (4) * train.seq_len (32).",
        "train.global_batch_tokens=128",
        "train.global_batch_tokens=128 train.global_batch_size=4",
    ),
    Case(
        "train.global_batch_size",
        "train.global_batch_size=7",
        "train.global_batch_size (7) is not a multiple of train.batch_size (2) * 1 ranks = 2.",
        "train.global_batch_size=8",
        "train.global_batch_size=8",
    ),
    Case(
        "train.recompute_every",
        "train.recompute_every=2",
        "train.recompute_every has no effect with train.activation_checkpointing=none.",
        "train.activation_checkpointing=full",
        "train.recompute_every=2 train.activation_checkpointing=selective",
    ),
    Case(
        "scheduler.warmup",
        "scheduler.warmup_steps=100",
        "warm-up (100 steps) does not end before train.max_steps (100).",
        "scheduler.warmup_steps=10",
        "scheduler.warmup_steps=99",
    ),
    Case(
        "scheduler.horizon",
        "scheduler.decay_steps=80",
        "the schedule spans 90 steps and the run 100: the learning rate stays at the floor from there.",
        "scheduler.decay_steps=null spans what is left of the run",
        "scheduler.decay_steps=90",
    ),
    Case(
        "scheduler.horizon",
        "scheduler=wsd scheduler.warmup_steps=10 scheduler.decay_steps=20 scheduler.stable_steps=80",
        "the schedule spans 110 steps and the run 100: the learning rate never reaches its floor.",
        "scheduler.decay_steps=null spans what is left of the run",
        "scheduler=wsd scheduler.warmup_steps=10 scheduler.decay_steps=20 scheduler.stable_steps=70",
    ),
    Case(
        "eval.stop_needs_eval",
        "eval=off eval.target=1.5",
        "eval.target needs evaluation, and eval.enabled is false.",
        "eval.enabled=true",
        "eval.target=1.5",
    ),
    Case(
        "eval.stop_needs_eval",
        "eval=off eval.patience=2",
        "eval.patience needs evaluation, and eval.enabled is false.",
        "eval.enabled=true",
        "eval=off eval.patience=0",
    ),
    Case(
        "eval.interval",
        "eval.patience=2 eval.interval=100",
        "eval.patience=2 never acts: the only evaluation is at the end (train.max_steps=100).",
        "eval.interval=10",
        "eval.patience=2 eval.interval=99",
    ),
    Case(
        "checkpoint.pinned",
        "checkpoint.async_mode=async_with_pinned_mem",
        "page-locked memory needs a GPU; this run is on the CPU.",
        "checkpoint.async_mode=async",
        "checkpoint.async_mode=async_with_pinned_mem run.device=cuda",
        gpus=1,
    ),
    Case(
        "checkpoint.exclude_unused",
        "checkpoint.exclude_from_loading=[head]",
        "checkpoint.exclude_from_loading has no effect without checkpoint.init_from.",
        "checkpoint.init_from=..., or checkpoint.exclude_from_loading=[]",
        "checkpoint.exclude_from_loading=[head] checkpoint.init_from={tmp}",
    ),
    Case(
        "profiling.window",
        "profiling.start_step=8 profiling.end_step=8",
        "profiling.end_step (8) must be greater than profiling.start_step (8).",
        "profiling.end_step=11",
        "profiling.start_step=8 profiling.end_step=9",
    ),
    Case(
        "profiling.ranks",
        "profiling=on profiling.ranks=[0,2] parallel=fsdp run.num_processes=2",
        "there is no rank 2: the run has 2 ranks, counted from 0.",
        "profiling.ranks=[0], or profiling.ranks=[] for all",
        "profiling=on profiling.ranks=[1] parallel=fsdp run.num_processes=2",
    ),
    Case(
        "profiling.beyond",
        "profiling=on profiling.end_step=101",
        "the run ends at step 100, so the trace is cut there.",
        "train.max_steps=101",
        "profiling=on profiling.end_step=100",
    ),
    Case(
        "data.path",
        "data=text",
        "data=text needs the path of your text.",
        "data.path=my.txt, a directory, or 'data.path=corpus/**/*.jsonl'",
        "data=text data.path={tmp}",
    ),
    Case(
        "data.path",
        "data=text data.path=\"'{tmp}/*.md'\"",
        "there is no file or directory {tmp}/*.md, and as a glob it matches nothing.",
        "check the path; it is relative to where you are",
        "data=text data.path=\"'{tmp}/*.txt'\"",
    ),
    Case(
        "run.device",
        "run.device=cuda",
        "no GPU can be used here (the test).",
        "run.device=cpu",
        "run.device=cpu",
    ),
    Case(
        "run.inline",
        "run.inline=true run.num_processes=2",
        "2 ranks cannot share one process.",
        "run.inline=false",
        "run.inline=true",
    ),
    *(
        Case(
            "metrics.wandb_login",
            "metrics.enable_wandb=true",
            "W&B has no login to api.wandb.ai here, so nothing would be logged there.",
            "type wandb login, or metrics.wandb_mode=offline",
            f"metrics.enable_wandb=true {kept}",
        )
        for kept in ("metrics.wandb_mode=offline", "launch=slurm launch.setup=['. secrets.sh']")
    ),
    Case(
        "precision.fp16_cpu",
        "precision=bf16",
        "bf16 matrix products on a CPU without hardware for them are many times slower than fp32.",
        "precision=auto",
        "precision=bf16 run.device=cuda",
        gpus=1,
    ),
    Case(
        "target",
        "optimizer._target_=os.system",
        "os.system may not be built for optimizer: it is under no trusted prefix.",
        "if you trust it: run.trust=[os.]",
        "optimizer._target_=os.system run.trust=[os.]",
    ),
    Case(
        "target",
        "optimizer._target_=forge.optim.adamw.adamv",
        "forge.optim.adamw.adamv may not be built for optimizer.",
        "did you mean optimizer._target_=forge.optim.adamw.adamw?",
        "optimizer._target_=forge.optim.adamw.adamw",
    ),
    Case(
        "target",
        "+callbacks.ema._target_=mypkg.EMA",
        "mypkg.EMA may not be built for callbacks: it is under no trusted prefix.",
        "if you trust it: run.trust=[mypkg.]",
        "+callbacks.ema._target_=mypkg.EMA run.trust=[mypkg.]",
    ),
    Case(
        "target",
        "+trackers.csv._target_=3",
        "'3' is not the path of a class or function.",
        "such as trackers.csv._target_=mypkg.Mine",
        "+trackers.csv._target_=mypkg.CSV run.trust=[mypkg.]",
    ),
    Case(
        "entries",
        "+trackers.csv.path=x",
        "it has no _target_, the class that is built for it.",
        "+trackers.csv._target_=mypkg.Mine",
        "+trackers.csv.path=x +trackers.csv._target_=mypkg.Mine run.trust=[mypkg.]",
    ),
    Case(
        "entries",
        "+callbacks.ema=5",
        "an entry has a _target_ and keywords; this is a value.",
        "~callbacks.ema, or callbacks.ema={_target_:mypkg.Mine}",
        "callbacks={}",
    ),
    Case(
        "entries",
        "+callbacks.ema={_target_:mypkg.EMA,of:${model}} run.trust=[mypkg.]",
        "callbacks.ema.of is a Decoder, which no file can keep.",
        "~callbacks.ema, or give it texts, numbers, booleans, null, lists and dicts of them",
        "+callbacks.ema={_target_:mypkg.EMA,of:${model.dim}} run.trust=[mypkg.]",
    ),
]
