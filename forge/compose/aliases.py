"""What Lightning-Hydra, HF Trainer, TRL, PEFT, axolotl, LLaMA-Factory, torchtune, nanochat,
torchtitan, Megatron and MaxText call options, for did-you-mean.
"""

from __future__ import annotations

ALIASES = {
    word: ours
    for ours, words in {
        "optimizer": "optimizer.name optim optimizer_type",
        "optimizer.lr": "learning_rate",
        "optimizer.weight_decay": "wd weight_decay",
        "optimizer=adamw optimizer.eps=": "adam_epsilon adam_eps",
        "scheduler": "lr_scheduler_type lr_scheduler scheduler.name",
        "scheduler.warmup_steps": "warmup warmup_iters num_warmup_steps",
        "scheduler.warmup_ratio": "warmup_fraction",
        "train.max_steps": "steps total_steps training_steps max_iters train_iters num_iterations "
        "trainer.max_steps",
        "train.max_epochs": "epochs num_epochs num_train_epochs trainer.max_epochs",
        "train.max_tokens": "max_tokens train_tokens num_tokens total_tokens training_tokens "
        "max_train_tokens token_budget tokens_total num_train_tokens",
        "train.tokens_per_parameter": "tokens_per_param token_per_param",
        "train.batch_size": "per_device_train_batch_size per_device_batch_size local_batch_size "
        "micro_batch_size device_batch_size",
        "train.global_batch_tokens": "total_batch_size",
        "train.grad_accum_steps": "gradient_accumulation_steps grad_accum accumulate_grad_batches",
        "train.seq_len": "block_size seq_length max_seq_length sequence_len max_length cutoff_len "
        "tokenizer.max_seq_len",
        "train.grad_clip_norm": "grad_clip clip_grad clip_grad_norm max_grad_norm max_norm "
        "gradient_clip_val",
        "train.compile_model": "enable_compile compile torch_compile",
        "train.activation_checkpointing=full": "enable_activation_checkpointing "
        "gradient_checkpointing",
        "precision=bf16": "bf16",
        "precision=fp16": "fp16",
        "precision.matmul_precision=high": "tf32",
        "train.compile_backend": "torch_compile_backend",
        "precision.mixed_precision": "dtype torch_dtype",
        "model": "model_name_or_path base_model model.name",
        "model.dim": "hidden_size n_embd d_model",
        "model.n_layers": "n_layer num_layers num_hidden_layers",
        "model.n_heads": "n_head num_attention_heads",
        "model.n_kv_heads": "num_key_value_heads",
        "model.ffn_hidden_dim": "intermediate_size",
        "data=text data.path=": "dataset data_path",
        "data=hf data.hf_dataset_name=": "dataset_name dataset.source",
        "parallel=fsdp": "fsdp",
        "parallel.cp": "context_parallel_degree context_parallel_dim",
        "parallel.ep": "expert_parallel_degree",
        "parallel.dp_shard": "data_parallel_shard_degree data_parallel_shard_dim",
        "parallel.dp_replicate": "data_parallel_replicate_degree data_parallel_replicate_dim",
        "parallel.cpu_offload": "fsdp_cpu_offload",
        "parallel.nccl_timeout_sec": "ddp_timeout",
        "parallel.tp": "tensor_parallel_degree tensor_model_parallel_size tensor_parallel_dim",
        "parallel.pp": "pipeline_parallel_degree pipeline_model_parallel_size",
        "run.num_processes": "nproc_per_node world_size trainer.devices",
        "launch=slurm launch.nodes=": "nnodes",
        "run.dir": "output_dir out_dir",
        "metrics.enable_wandb=true": "wandb",
        "metrics.log_interval": "logging_steps log_every_n_steps log_freq",
        "checkpoint.interval": "save_steps save_every save_interval save_every_n_steps",
        "checkpoint.keep_last_n": "save_total_limit",
        "eval.at_start": "eval_on_start",
        "eval.metric": "metric_for_best_model",
        "eval.patience": "early_stopping_patience early_stopping_steps",
        "eval.interval": "eval_steps eval_every run_val_every_n_steps",
        "eval.batch_size": "per_device_eval_batch_size",
        "metrics.wandb_project": "wandb_project",
        "metrics.wandb_run_name": "run_name wandb_name",
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
        "adapter=lora adapter.rank=": "adapter.r r lora_r lora_rank lora.rank lora.r",
        "adapter=lora adapter.alpha=": "lora_alpha lora.alpha",
        "adapter=lora adapter.dropout=": "lora_dropout lora.dropout",
        "adapter=lora adapter.target_modules=": "lora_target lora_attn_modules "
        "target_modules lora_target_modules",
        "adapter=lora adapter.modules_to_save=": "modules_to_save lora_modules_to_save "
        "additional_target",
        "scaling=depth scaling.depth=": "depth",
        "scaling=depth scaling.aspect_ratio=": "aspect_ratio",
        "scaling=depth scaling.target_flops=": "target_flops",
        "scaling=depth scaling.target_param_data_ratio=": "target_param_data_ratio",
        "scaling=power_of_two scaling.global_parameter_scale=": "global_parameter_scale",
        "adapter=qlora adapter.double_quantization=": "bnb_4bit_use_double_quant "
        "use_bnb_nested_quant double_quantization",
    }.items()
    for word in words.split()
}
"""By word the key that takes its value, the group that has it as an option, or a text to type; one
that ends in = goes before the value.
"""

BETAS = "the two of optimizer.betas, like optimizer.betas=[0.9,0.95]"
ADAMW = {
    "adamw_torch": "optimizer=adamw_finetune",
    "adamw_torch_fused": "optimizer=adamw_finetune",
    "adamw_8bit": "optimizer=adamw_low_bit",
    "adamw_bnb_8bit": "optimizer=adamw_low_bit",
    "paged_adamw_8bit": "optimizer=adamw_low_bit",
    "paged_adamw_32bit": "optimizer=adamw_finetune",
}
SCHEDULES = {
    "constant_with_warmup": "scheduler=constant",
    "cosine_with_min_lr": "scheduler=cosine",
    "warmup_stable_decay": "scheduler=wsd",
}
COMPARED = {
    "sigmoid": "objective=dpo data=preference",
    "hinge": "objective=dpo objective.loss_fn=hinge data=preference",
    "ipo": "objective=dpo objective.loss_fn=ipo data=preference",
    "simpo": "objective=simpo data=preference",
    "orpo": "objective=orpo data=preference",
    "kto": "objective=kto data=labelled",
}
PACKED = {
    "true": "data.pack_sequences=true data.packing=best_fit",
    "false": "data.pack_sequences=true data.packing=none",
}
SCALES_NOT_PACKED = {"false": "adapter=qlora adapter.double_quantization=false"}
BY_VALUE = {
    "bnb_4bit_use_double_quant": SCALES_NOT_PACKED,
    "use_bnb_nested_quant": SCALES_NOT_PACKED,
    "double_quantization": SCALES_NOT_PACKED,
    "optim": ADAMW,
    "optimizer": ADAMW,
    "lr_scheduler_type": SCHEDULES,
    "lr_scheduler": SCHEDULES,
    "scheduler": SCHEDULES,
    "loss_type": COMPARED,
    "pref_loss": COMPARED,
    "logger": {
        "wandb": "metrics.enable_wandb=true",
        "tensorboard": "metrics.enable_tensorboard=true",
    },
    "report_to": {
        "none": "metrics.enable_wandb=false",
        "wandb": "metrics.enable_wandb=true",
        "tensorboard": "metrics.enable_tensorboard=true",
    },
    "assistant_only_loss": {"true": "data.train_on=responses", "false": "data.train_on=all"},
    "train_on_inputs": {"true": "data.train_on=all", "false": "data.train_on=responses"},
    "completion_only_loss": {"true": "data.train_on=responses", "false": "data.train_on=all"},
    "train_on_prompt": {"true": "data.train_on=all", "false": "data.train_on=responses"},
    "train_on_input": {"true": "data.train_on=all", "false": "data.train_on=responses"},
    "mask_history": {"true": "data.train_on=last_response"},
    "roles_to_train": {"[assistant]": "data.train_on=responses"},
    "packing": PACKED,
    "sample_packing": PACKED,
    "packed": PACKED,
    "neat_packing": PACKED,
    "packing_strategy": {
        "bfd": "data.pack_sequences=true data.packing=best_fit",
        "wrapped": "data.packing=concat_then_split data.too_long=split",
    },
    "disable_gradient_checkpointing": {"true": "train.activation_checkpointing=none"},
    "bnb_4bit_quant_type": {"nf4": "adapter=qlora adapter.base_format=nf4"},
    "finetuning_type": {"full": "adapter=none"},
    "stage": {"pt": "objective=pretrain"},
    "load_in_4bit": {"true": "adapter=qlora"},
    "load_in_8bit": {"true": "adapter=qlora adapter.base_format=int8"},
    "quantization_bit": {"4": "adapter=qlora", "8": "adapter=qlora adapter.base_format=int8"},
    "lora_target": {"all": "adapter=lora"},
    "accelerator": {"gpu": "run.device=cuda", "cpu": "run.device=cpu", "mps": "run.device=mps"},
}
"""By word, then by its value, what to type where ours takes another value."""

COLUMN = "data.text_field={value}, with data=text or data=hf"
SPLIT = "data.hf_dataset_split={value}, with data=hf data.hf_dataset_name=ID"
BETA = "objective.beta={value}, with objective=dpo data=preference data.path=my.jsonl"
ON_RESPONSES = "data.train_on=responses or data.train_on=all, with a data that is a chat"
PUSHED = "python -m forge.export runs/<run> OUT --format hf --push ORG/NAME"
CACHED = "objective.reference=cached, with objective=dpo data=preference, which is the default"
STEPS = "{option}=N counts steps: the rows of an epoch over those of train.global_batch_size"
LENGTHS = "train.seq_len is of prompt and response; data.too_long=drop leaves longer rows out"
PACKING = "data.packing says how documents fill a sequence: forge train --help data lists the ways"
HINTS = {
    "ckpt_path": "checkpoint.init_from=PATH begins with those weights; a run continues with "
    "python -m forge.resume runs/<run>",
    "logger": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "text_column": COLUMN,
    "text_key": COLUMN,
    "dataset_text_field": COLUMN,
    "dataset_config": "data.hf_dataset_config={value}, with data=hf data.hf_dataset_name=ID",
    "dataset_train_split": SPLIT,
    "dataset.split": SPLIT,
    "packing": PACKING,
    "sample_packing": PACKING,
    "packed": PACKING,
    "neat_packing": PACKING,
    "assistant_only_loss": "data.train_on=responses, with a data that is a chat",
    "train_on_inputs": ON_RESPONSES,
    "completion_only_loss": "data.train_on=responses, with a data that is a chat or pairs",
    "train_on_prompt": ON_RESPONSES,
    "train_on_input": ON_RESPONSES,
    "roles_to_train": ON_RESPONSES,
    "quantization_bit": "adapter=qlora keeps the base in 4 bit, adapter.base_format=int8 in 8",
    "load_in_8bit": "adapter=qlora adapter.base_format=int8 keeps the base in 8 bit",
    "deepspeed": "parallel=fsdp shards what ZeRO stage 3 shards",
    "apply_lora_to_mlp": "adapter.target_modules=[attention,feed_forward], or [auto] for both",
    "attn_implementation": "model.sdpa_backend=auto chooses the kernel",
    "flash_attention": "model.sdpa_backend=auto chooses the kernel",
    "flash_attn": "model.sdpa_backend=auto chooses the kernel",
    "hub_model_id": PUSHED,
    "push_to_hub": PUSHED,
    "eval_strategy": "eval.interval=N evaluates every N steps; eval.enabled=false never",
    "evaluation_strategy": "eval.interval=N evaluates every N steps; eval.enabled=false never",
    "evals_per_epoch": STEPS.replace("{option}", "eval.interval"),
    "saves_per_epoch": STEPS.replace("{option}", "checkpoint.interval"),
    "max_steps_per_epoch": "train.max_steps={value} ends the run, of train.max_epochs=1 its pass",
    "save_strategy": "checkpoint.interval=N saves every N steps; 0 = only at the end",
    "load_best_model_at_end": "checkpoint.keep_best=1, then forge.load(RUN, step='best')",
    "pref_beta": BETA,
    "dpo_beta": BETA,
    "rl_beta": BETA,
    "beta": BETA,
    "loss.beta": BETA,
    "simpo_gamma": "objective.gamma={value}, with objective=simpo data=preference",
    "cpo_alpha": "objective.nll_weight={value}, with objective=cpo data=preference",
    "desirable_weight": "objective.desirable_weight={value}, with objective=kto data=labelled",
    "undesirable_weight": "objective.undesirable_weight={value}, with objective=kto data=labelled",
    "precompute_ref_log_probs": CACHED,
    "max_prompt_length": LENGTHS,
    "max_completion_length": LENGTHS,
    "chat_template_path": "data.chat_template_path={value}, with data=chat",
    "chat_template_jinja": "data.chat_template_path=FILE with that text, and data=chat",
    "template": "data.chat_template=chatml or plain, or data.chat_template_path=FILE; without them "
    "it is the template of the model's folder",
    "eval_dataset": "data.validation={path:{value}}",
    "datasets": "data=chat data.path=my.jsonl, and data.sources for several",
    "checkpoint_dir": "model=hf model.path={value}",
    "use_liger_kernel": "objective.loss_fn=chunked_cross_entropy keeps no logits, as Liger does",
    "bnb_4bit_compute_dtype": "precision=bf16 computes in bfloat16",
    "resize_vocab": "model.grow_vocab={value}, with model=hf",
    "adapter_name_or_path": "adapter.init_from={value}, with adapter=lora",
    "lora_model_dir": "adapter.init_from={value}, with adapter=lora",
    "export_dir": "python -m forge.export runs/<run> OUT --format hf",
    "metric_logger": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "neftune_noise_alpha": "objective.neftune_alpha={value}, with objective=sft and data that it "
    "reads",
    "label_smoothing_factor": "objective.label_smoothing={value}, with objective=sft",
    "ref_model": "objective.reference_model=RUN, with objective=dpo",
    "accelerator": "run.device=cuda, cpu or mps",
    "load_in_4bit": "adapter=qlora keeps the base in 4 bit",
    "beta1": BETAS,
    "beta2": BETAS,
    "adam_beta1": BETAS,
    "adam_beta2": BETAS,
    "min_lr": "scheduler.min_lr_ratio=0.1, a share of optimizer.lr",
    "report_to": "metrics.enable_wandb=true or metrics.enable_tensorboard=true",
    "resume_from_checkpoint": "a run continues with python -m forge.resume runs/<run>",
}
"""By word what to do where no option takes its place; {value} is what was typed."""

ALONE = frozenset({"r", "beta", "template", "datasets"})
"""Words that mean this as whole keys alone, and something else at the end of others."""
DECIDED_BY = {"train.grad_accum_steps": "train.global_batch_size"}
"""By option the one that it follows where a preset sets that."""
