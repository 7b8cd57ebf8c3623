"""The table of rules on pipelines."""

from __future__ import annotations

from rule_cases import Case

FOUR = "parallel.pp=2 model.n_layers=4"
LOOP = f"{FOUR} parallel.pp_schedule=interleaved_1f1b"
ZBV = f"{FOUR} parallel.pp_schedule=zbv_zero_bubble train.compile_model=false"

PIPELINE_CASES = [
    Case(
        "parallel.pp_stages",
        f"{FOUR} parallel.pp_stages_per_rank=2",
        "parallel.pp_schedule=1f1b has one stage a rank, not 2.",
        "parallel.pp_stages_per_rank=null",
        f"{FOUR} parallel.pp_stages_per_rank=1",
    ),
    Case(
        "parallel.pp_stages",
        f"{LOOP} parallel.pp_stages_per_rank=1",
        "parallel.pp_schedule=interleaved_1f1b has two stages or more a rank, not 1.",
        "parallel.pp_stages_per_rank=null",
        f"{LOOP} parallel.pp_stages_per_rank=3 model.n_layers=6",
    ),
    Case(
        "parallel.pp_stages",
        f"{ZBV} parallel.pp_stages_per_rank=3 model.n_layers=6",
        "parallel.pp_schedule=zbv_zero_bubble has two stages a rank, not 3.",
        "parallel.pp_stages_per_rank=null",
        f"{ZBV} parallel.pp_stages_per_rank=2",
    ),
    Case(
        "parallel.pp_layers",
        "parallel.pp=3 train.batch_size=3",
        "parallel.pp (3) * parallel.pp_stages_per_rank (1) = 3 stages cannot share 2 blocks.",
        "parallel.pp=2 or model.n_layers=3",
        "parallel.pp=2",
    ),
    Case(
        "parallel.pp_layers",
        "parallel.pp=2 parallel.pp_schedule=interleaved_1f1b model.n_layers=3",
        "parallel.pp (2) * parallel.pp_stages_per_rank (2) = 4 stages cannot share 3 blocks.",
        "parallel.pp=1 or model.n_layers=4",
        LOOP,
    ),
    Case(
        "parallel.pp_layers",
        "parallel.pp=2 model.n_layers=5 parallel.pp_layers=[2,2]",
        "it has 2 stages and 4 blocks; there are parallel.pp (2) * parallel.pp_stages_per_rank (1) = 2 stages and 5 blocks.",
        "parallel.pp_layers=[2,3]",
        "parallel.pp=2 model.n_layers=5 parallel.pp_layers=[4,1]",
    ),
    Case(
        "parallel.pp_layers",
        f"{LOOP} parallel.pp_layers=[2,2]",
        "it has 2 stages and 4 blocks; there are parallel.pp (2) * parallel.pp_stages_per_rank (2) = 4 stages and 4 blocks.",
        "parallel.pp_layers=[1,1,1,1]",
        f"{LOOP} parallel.pp_layers=[1,1,1,1]",
    ),
    Case(
        "parallel.pp_microbatches",
        "parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=3",
        "train.batch_size (8) * train.grad_accum_steps (1) = 8 sequences must be divisible by parallel.pp_microbatches (3).",
        "parallel.pp_microbatches=2",
        "parallel.pp=2 train.batch_size=8 parallel.pp_microbatches=4",
    ),
    Case(
        "parallel.pp_microbatches",
        "parallel.pp=2 train.batch_size=1",
        "train.batch_size (1) * train.grad_accum_steps (1) = 1 sequences go through in 1 parts, "
        "and 1f1b needs one or more for each of parallel.pp (2) stages.",
        "parallel.pp_schedule=gpipe",
        "parallel.pp=2 train.batch_size=2",
    ),
    Case(
        "parallel.pp_microbatches",
        "parallel.pp=2 train.batch_size=4 train.grad_accum_steps=2 parallel.pp_microbatches=1",
        "train.batch_size (4) * train.grad_accum_steps (2) = 8 sequences go through in 1 parts, "
        "and 1f1b needs one or more for each of parallel.pp (2) stages.",
        "parallel.pp_microbatches=2",
        "parallel.pp=2 train.batch_size=4 train.grad_accum_steps=2 parallel.pp_microbatches=2",
    ),
    Case(
        "parallel.pp_microbatches",
        f"{LOOP} train.batch_size=10 parallel.pp_microbatches=5",
        "train.batch_size (10) * train.grad_accum_steps (1) = 10 sequences go through in 5 parts, "
        "which do not make 2 equal rounds of parallel.pp (2) or more.",
        "parallel.pp_microbatches=2",
        f"{LOOP} train.batch_size=10 parallel.pp_microbatches=10",
    ),
    Case(
        "parallel.pp_reshard",
        "parallel.pp=2 parallel.reshard_after_forward=always",
        "each of 2 micro-batches would gather a stage's weights twice, which torch's schedules do not do.",
        "parallel.reshard_after_forward=never",
        "parallel.dp_shard=2 parallel.reshard_after_forward=always",
    ),
    Case(
        "parallel.pp_reduce",
        "parallel.pp=2 parallel.reduce_gradients=micro_batch",
        "torch's schedules reduce the gradients of all micro-batches when the last of a stage is done.",
        "parallel.reduce_gradients=step",
        "parallel.dp_shard=2 train.grad_accum_steps=2 parallel.reduce_gradients=micro_batch",
    ),
    Case(
        "parallel.pp_tied",
        f"{ZBV} model.tie_embeddings=true",
        "the first and the last stage are on one rank, and FSDP cannot share a tied table between the two.",
        "model.tie_embeddings=false, or another schedule",
        f"{LOOP} model.tie_embeddings=true",
    ),
    Case(
        "parallel.pp_compile",
        f"{FOUR} parallel.pp_schedule=interleaved_zero_bubble train.compile_model=true",
        "interleaved_zero_bubble finds gradients of inputs and of weights apart; backward of a compiled block is one piece.",
        "train.compile_model=false",
        f"{LOOP} train.compile_model=true",
    ),
    Case(
        "parallel.pp_selective",
        f"{ZBV} model.tie_embeddings=false train.activation_checkpointing=selective",
        "zbv_zero_bubble goes backward through a block twice; torch keeps what selective recompute saved for one time.",
        "train.activation_checkpointing=full, or another schedule",
        f"{ZBV} model.tie_embeddings=false train.activation_checkpointing=full",
    ),
    Case(
        "parallel.pp_torch",
        f"{ZBV} model.tie_embeddings=false parallel.tp=2",
        "torch 2.11 loses the graph of a layer's weights when it finds their gradients apart from those of its inputs.",
        "parallel.pp_schedule=interleaved_1f1b, or torch 2.13",
        f"{ZBV} model.tie_embeddings=false parallel.tp=2 parallel.pp_schedule=interleaved_1f1b",
        torch=(2, 11),
    ),
    Case(
        "parallel.pp_torch",
        f"{LOOP} parallel.pp_schedule=interleaved_zero_bubble train.compile_model=false model.moe.num_experts=4",
        "torch 2.11 loses the graph of a layer's weights when it finds their gradients apart from those of its inputs.",
        "parallel.pp_schedule=interleaved_1f1b, or torch 2.13",
        f"{LOOP} model.moe.num_experts=4",
        torch=(2, 11),
    ),
    Case(
        "parallel.pp_torch",
        f"{ZBV} model.tie_embeddings=false",
        "torch 2.12 lets a rank send to itself, which gloo cannot.",
        "parallel.pp_schedule=interleaved_zero_bubble, or torch 2.13",
        f"{ZBV} model.tie_embeddings=false",
        torch=(2, 12),
    ),
    Case(
        "parallel.pp_fp16",
        "parallel.pp=2 precision=fp16",
        "the pipeline calls backward itself, and does not scale the loss as fp16 needs.",
        "precision.mixed_precision=bf16",
        "parallel.pp=2 precision=bf16",
    ),
]
PIPELINE_CASES = [
    case._replace(
        **{k: f"model.tie_embeddings=false {getattr(case, k)}" for k in ("breaks", "keeps")}
    )
    for case in PIPELINE_CASES
]
