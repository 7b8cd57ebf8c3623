"""What torchtitan, Megatron, HF Trainer, nanochat and MaxText call options, for did-you-mean."""

from __future__ import annotations

ALIASES = {
    word: ours
    for ours, words in {
        "optimizer.lr": "learning_rate",
        "optimizer.weight_decay": "wd",
        "scheduler": "lr_scheduler_type",
        "scheduler.warmup_steps": "warmup warmup_iters",
        "scheduler.warmup_ratio": "warmup_fraction",
        "train.max_steps": "steps max_iters train_iters num_iterations",
        "train.max_epochs": "epochs num_train_epochs",
        "train.batch_size": "per_device_train_batch_size micro_batch_size device_batch_size",
        "train.global_batch_tokens": "total_batch_size",
        "train.grad_accum_steps": "gradient_accumulation_steps",
        "train.seq_len": "block_size seq_length max_seq_length",
        "train.grad_clip_norm": "grad_clip clip_grad max_grad_norm",
        "train.compile_model": "compile torch_compile",
        "train.activation_checkpointing=full": "gradient_checkpointing",
        "precision=bf16": "bf16",
        "precision.mixed_precision": "dtype",
        "model": "model_name_or_path",
        "model.dim": "hidden_size n_embd d_model",
        "model.n_layers": "n_layer num_layers num_hidden_layers",
        "model.n_heads": "n_head num_attention_heads",
        "model.n_kv_heads": "num_key_value_heads",
        "model.ffn_hidden_dim": "intermediate_size",
        "data=text data.path=": "dataset data_path",
        "parallel=fsdp": "fsdp",
        "parallel.tp": "tensor_parallel_degree tensor_model_parallel_size",
        "parallel.pp": "pipeline_parallel_degree pipeline_model_parallel_size",
        "run.num_processes": "nproc_per_node world_size",
        "launch=slurm launch.nodes=": "nnodes",
        "run.dir": "output_dir out_dir",
        "metrics.enable_wandb=true": "wandb",
    }.items()
    for word in words.split()
}
"""By word the key that takes its value, the group that has it as an option, or a text to type; one
that ends in = goes before the value.
"""

BETAS = "the two of optimizer.betas, like optimizer.betas=[0.9,0.95]"
HINTS = {
    "beta1": BETAS,
    "beta2": BETAS,
    "adam_beta1": BETAS,
    "adam_beta2": BETAS,
    "min_lr": "scheduler.min_lr_ratio=0.1, a share of optimizer.lr",
    "report_to": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "resume_from_checkpoint": "a run goes on with python -m forge.resume runs/<run>",
}
"""By word what to do where no option takes its place."""
