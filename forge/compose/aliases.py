"""What Lightning-Hydra, HF Trainer, TRL, PEFT, axolotl, LLaMA-Factory, torchtune, nanochat,
torchtitan, Megatron and MaxText call options, for did-you-mean.
"""

from __future__ import annotations

ALIASES = {
    word: ours
    for ours, words in {
        "optimizer": "optimizer.name optim optimizer_type",
        "optimizer.lr": "learning_rate",
        "optimizer.weight_decay": "wd",
        "optimizer=adamw optimizer.eps=": "adam_epsilon adam_eps",
        "scheduler": "lr_scheduler_type lr_scheduler scheduler.name",
        "scheduler.warmup_steps": "warmup warmup_iters",
        "scheduler.warmup_ratio": "warmup_fraction",
        "train.max_steps": "steps total_steps training_steps max_iters train_iters num_iterations "
        "trainer.max_steps",
        "train.max_epochs": "epochs num_epochs num_train_epochs trainer.max_epochs",
        "train.batch_size": "per_device_train_batch_size per_device_batch_size local_batch_size "
        "micro_batch_size device_batch_size",
        "train.global_batch_tokens": "total_batch_size",
        "train.grad_accum_steps": "gradient_accumulation_steps grad_accum accumulate_grad_batches",
        "train.seq_len": "block_size seq_length max_seq_length sequence_len max_length cutoff_len",
        "train.grad_clip_norm": "grad_clip clip_grad max_grad_norm max_norm gradient_clip_val",
        "train.compile_model": "enable_compile compile torch_compile",
        "train.activation_checkpointing=full": "enable_activation_checkpointing "
        "gradient_checkpointing",
        "precision=bf16": "bf16",
        "precision=fp16": "fp16",
        "precision.matmul_precision=high": "tf32",
        "train.compile_backend": "torch_compile_backend",
        "precision.mixed_precision": "dtype",
        "model": "model_name_or_path base_model model.name",
        "model.dim": "hidden_size n_embd d_model",
        "model.n_layers": "n_layer num_layers num_hidden_layers",
        "model.n_heads": "n_head num_attention_heads",
        "model.n_kv_heads": "num_key_value_heads",
        "model.ffn_hidden_dim": "intermediate_size",
        "data=text data.path=": "dataset data_path",
        "parallel=fsdp": "fsdp",
        "parallel.cp": "context_parallel_degree",
        "parallel.ep": "expert_parallel_degree",
        "parallel.dp_shard": "data_parallel_shard_degree",
        "parallel.dp_replicate": "data_parallel_replicate_degree",
        "parallel.nccl_timeout_sec": "ddp_timeout",
        "parallel.tp": "tensor_parallel_degree tensor_model_parallel_size",
        "parallel.pp": "pipeline_parallel_degree pipeline_model_parallel_size",
        "run.num_processes": "nproc_per_node world_size trainer.devices",
        "launch=slurm launch.nodes=": "nnodes",
        "run.dir": "output_dir out_dir",
        "metrics.enable_wandb=true": "wandb",
        "metrics.log_interval": "logging_steps log_every_n_steps log_freq",
        "checkpoint.interval": "save_steps save_every save_interval",
        "checkpoint.keep_last_n": "save_total_limit",
        "eval.at_start": "eval_on_start",
        "eval.metric": "metric_for_best_model",
        "eval.patience": "early_stopping_patience",
        "eval.interval": "eval_steps eval_every",
        "eval.batch_size": "per_device_eval_batch_size",
        "metrics.wandb_project": "wandb_project",
        "metrics.wandb_run_name": "run_name",
        "metrics.tensorboard_dir": "logging_dir",
        "data.num_workers": "dataloader_num_workers",
        "data.pin_memory": "dataloader_pin_memory",
        "data.prefetch_factor": "dataloader_prefetch_factor",
        "data.val_fraction": "val_set_size val_size",
        "data.cache_dir": "dataset_prepared_path",
        "run.deterministic": "full_determinism",
        "objective": "stage rl",
        "adapter": "finetuning_type",
        "adapter=lora": "use_peft lora_target_linear",
        "adapter=lora adapter.dora=": "use_dora peft_use_dora",
        "adapter=lora adapter.rank_stabilized=": "use_rslora peft_use_rslora",
        "adapter=lora adapter.rank=": "adapter.r lora_r lora_rank lora.rank lora.r",
        "adapter=lora adapter.alpha=": "lora_alpha lora.alpha",
        "adapter=lora adapter.dropout=": "lora_dropout lora.dropout",
        "adapter=lora adapter.target_modules=": "lora_target lora_attn_modules "
        "target_modules lora_target_modules",
    }.items()
    for word in words.split()
}
"""By word the key that takes its value, the group that has it as an option, or a text to type; one
that ends in = goes before the value.
"""

BETAS = "the two of optimizer.betas, like optimizer.betas=[0.9,0.95]"
BY_VALUE = {
    "logger": {
        "wandb": "metrics.enable_wandb=true",
        "tensorboard": "metrics.enable_tensorboard=true",
    },
    "report_to": {
        "wandb": "metrics.enable_wandb=true",
        "tensorboard": "metrics.enable_tensorboard=true",
    },
    "assistant_only_loss": {"true": "data.train_on=responses", "false": "data.train_on=all"},
    "train_on_inputs": {"true": "data.train_on=all", "false": "data.train_on=responses"},
    "completion_only_loss": {"true": "data.train_on=responses", "false": "data.train_on=all"},
    "train_on_prompt": {"true": "data.train_on=all", "false": "data.train_on=responses"},
    "packing": {"false": "data.pack_sequences=true data.packing=none"},
    "sample_packing": {"false": "data.pack_sequences=true data.packing=none"},
    "finetuning_type": {"full": "adapter=none"},
    "stage": {"pt": "objective=pretrain"},
    "load_in_4bit": {"true": "adapter=qlora"},
    "load_in_8bit": {"true": "adapter=qlora adapter.base_format=int8"},
    "quantization_bit": {"4": "adapter=qlora", "8": "adapter=qlora adapter.base_format=int8"},
    "lora_target": {"all": "adapter=lora"},
    "accelerator": {"gpu": "run.device=cuda", "cpu": "run.device=cpu", "mps": "run.device=mps"},
}
"""By word, then by its value, what to type where ours takes another value."""

COLUMN = "data.text_field=COLUMN, with data=text or data=hf"
PACKING = "data.packing says how documents fill a sequence: forge train --help data lists the ways"
HINTS = {
    "ckpt_path": "checkpoint.init_from=PATH begins with those weights; a run goes on with "
    "python -m forge.resume runs/<run>",
    "logger": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "depth": "model.n_layers=N model.dim=64*N, as nanochat's depth N sets both",
    "max_tokens": "train.max_steps, which is the tokens divided by those of a step: "
    "train.global_batch_tokens",
    "text_column": COLUMN,
    "text_key": COLUMN,
    "dataset_text_field": COLUMN,
    "packing": PACKING,
    "sample_packing": PACKING,
    "assistant_only_loss": "data.train_on=responses, with a data that is a chat",
    "train_on_inputs": "data.train_on=responses or data.train_on=all, with a data that is a chat",
    "completion_only_loss": "data.train_on=responses, with a data that is a chat or pairs",
    "train_on_prompt": "data.train_on=responses or data.train_on=all, with a data that is a chat",
    "quantization_bit": "adapter=qlora keeps the base in 4 bit, adapter.base_format=int8 in 8",
    "load_in_8bit": "adapter=qlora adapter.base_format=int8 keeps the base in 8 bit",
    "deepspeed": "parallel=fsdp shards what ZeRO stage 3 shards",
    "apply_lora_to_mlp": "adapter.target_modules=[attention,feed_forward], or [auto] for both",
    "attn_implementation": "model.sdpa_backend says which kernel, which auto chooses",
    "flash_attention": "model.sdpa_backend says which kernel, which auto chooses",
    "flash_attn": "model.sdpa_backend says which kernel, which auto chooses",
    "hub_model_id": "python -m forge.export runs/<run> OUT --format hf --push ORG/NAME",
    "push_to_hub": "python -m forge.export runs/<run> OUT --format hf --push ORG/NAME",
    "eval_strategy": "eval.interval=N evaluates every N steps; eval.enabled=false never",
    "evaluation_strategy": "eval.interval=N evaluates every N steps; eval.enabled=false never",
    "save_strategy": "checkpoint.interval=N saves every N steps; 0 = only at the end",
    "load_best_model_at_end": "checkpoint.keep_best=1, then forge.load(RUN, step='best')",
    "pref_beta": "objective.beta=0.1, with objective=dpo data=preference data.path=my.jsonl",
    "dpo_beta": "objective.beta=0.1, with objective=dpo data=preference data.path=my.jsonl",
    "neftune_noise_alpha": "objective.neftune_alpha=5, with objective=sft and data that it reads",
    "label_smoothing_factor": "objective.label_smoothing=0.1, with objective=sft",
    "ref_model": "objective.reference_model=RUN, with objective=dpo",
    "accelerator": "run.device=cuda, cpu or mps",
    "load_in_4bit": "adapter=qlora keeps the base in 4 bit",
    "beta1": BETAS,
    "beta2": BETAS,
    "adam_beta1": BETAS,
    "adam_beta2": BETAS,
    "min_lr": "scheduler.min_lr_ratio=0.1, a share of optimizer.lr",
    "report_to": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "resume_from_checkpoint": "a run goes on with python -m forge.resume runs/<run>",
}
"""By word what to do where no option takes its place."""
