"""What options are called elsewhere, and what newcomers type for them."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig

from forge.compose.tree import in_force
from forge.config.problems import shown

ALIASES = {
    word: ours
    for ours, words in {
        "optimizer": "optim",
        "optimizer.lr": "learning_rate",
        "optimizer.weight_decay": "wd",
        "scheduler": "lr_scheduler lr_scheduler_type",
        "scheduler.warmup_steps": "warmup warmup_iters",
        "train.max_steps": "steps max_iters num_steps",
        "train.max_epochs": "epochs num_epochs num_train_epochs",
        "train.batch_size": "train_batch_size per_device_train_batch_size local_batch_size",
        "train.grad_accum_steps": "grad_accum gradient_accumulation_steps",
        "train.seq_len": "block_size max_length context_length",
        "train.grad_clip_norm": "grad_clip clip_grad max_grad_norm",
        "train.compile_model": "compile torch_compile",
        "train.activation_checkpointing=full": "gradient_checkpointing",
        "precision=bf16": "bf16",
        "precision=fp16": "fp16",
        "precision.mixed_precision": "dtype",
        "precision.matmul_precision=high": "tf32",
        "model": "model_name_or_path",
        "model.dim": "hidden_size hidden_dim d_model n_embd",
        "model.n_layers": "n_layer num_layers num_hidden_layers layers",
        "model.n_heads": "n_head num_heads num_attention_heads heads",
        "model.n_kv_heads": "num_key_value_heads",
        "model.ffn_hidden_dim": "intermediate_size",
        "model.sdpa_backend=flash": "flash_attention attn_implementation",
        "data=text data.path=": "dataset dataset_path data_path train_file",
        "parallel=fsdp": "fsdp",
        "parallel=ddp": "ddp",
        "parallel.dp_replicate": "dp",
        "parallel.tp": "tensor_parallel tensor_parallel_degree",
        "parallel.pp": "pipeline_parallel pipeline_parallel_degree",
        "parallel.dp_shard": "data_parallel_shard_degree",
        "run.num_processes": "gpus num_gpus devices nproc_per_node world_size",
        "launch=slurm launch.nodes=": "nnodes",
        "run.dir": "out_dir output_dir",
        "checkpoint.interval": "save_steps",
        "eval.interval": "eval_steps",
        "metrics.log_interval": "logging_steps",
        "metrics.enable_wandb=true": "wandb use_wandb wandb_log",
    }.items()
    for word in words.split()
}
"""By word the key that takes its value, the group that has it as an option, or a text to type; one
that ends in = goes before the value.
"""

HINTS = {
    "dropout": "no model has dropout: leave it out",
    "report_to": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "resume": "a run goes on with python -m forge.resume runs/<run>",
    "resume_from_checkpoint": "a run goes on with python -m forge.resume runs/<run>",
}
"""By word what to do where no option takes its place."""


def _warmup(tree: DictConfig, share: float) -> tuple[str, str]:
    steps = in_force(tree, "train.max_steps")
    return f"scheduler.warmup_steps={round(share * steps)}", f"{share:g} of train.max_steps={steps}"


def _floor(tree: DictConfig, lr: float) -> tuple[str, str]:
    peak = in_force(tree, "optimizer.lr")
    return f"scheduler.min_lr_ratio={lr / peak:.3g}", f"of the peak, optimizer.lr={peak:g}"


def _beta(index: int) -> Callable[[DictConfig, float], tuple[str, str]]:
    def both(tree: DictConfig, value: float) -> tuple[str, str]:
        betas = list(in_force(tree, "optimizer.betas"))
        betas[index] = value
        return f"optimizer.betas={shown(betas)}", "both in one list"

    return both


COMPUTED = {
    "warmup_ratio": _warmup,
    "min_lr": _floor,
    "beta1": _beta(0),
    "beta2": _beta(1),
    "adam_beta1": _beta(0),
    "adam_beta2": _beta(1),
}
"""By word what gives, for its number, the text to type and what that is."""


def computed(tree: DictConfig, word: str, value: str) -> tuple[str, str] | None:
    """What to type for a number that counts otherwise here, and what it is; None for all else, or
    where nothing takes it.
    """
    try:
        text, note = COMPUTED[word](tree, float(value))
    except (KeyError, ValueError, TypeError, ArithmeticError):
        return None
    return text, note
