"""The memory estimate against what was allocated and reserved.

Measured with torch 2.11 and its allocator on a fake CUDA runtime, which gives memory and computes
nothing: the third step of rank 0, with NCCL's process group on several ranks.
"""

from __future__ import annotations

import pytest

import forge
from forge.config.root import Config
from forge.planning.memory import memory_of

GIB = 1 << 30
COMMON = "eval=off checkpoint=off data=synthetic tokenizer=bytes plan.device=h200"
MODEL = (
    "train=long train.seq_len=4096 train.batch_size=1 train.global_batch_size=null precision=bf16 "
    "objective.loss_fn=chunked_cross_entropy optimizer=adamw_large"
)
LLAMA = f"model=llama3_8b {MODEL}"
EXPERTS = f"model=mixtral_8x7b {MODEL} optimizer=adamw model.n_layers=2"
EIGHT = f"{LLAMA} model.n_layers=8"
IN_16 = "precision.param_dtype=bf16 precision.stochastic_rounding=true"
SMALL = f"{MODEL} {IN_16} optimizer.mu_dtype=bf16 optimizer.nu_dtype=bf16 model.vocab_size=512"
H200, H100 = "experiment=llama3_8b_one_h200", "experiment=llama3_8b_one_h100"
ALWAYS = "parallel.reshard_after_forward=always"
IN_BACKWARD = "train.optimizer_in_backward=true train.grad_clip_norm=0"
FULL = "train.activation_checkpointing=full"
NEVER = "parallel.reshard_after_forward=never"
MEASURED = [
    # ranks, FSDP around one rank, options, GiB allocated, GiB reserved
    (1, False, H200, 100.2, 100.6),
    (1, False, f"{H200} train.batch_size=4", 117.3, 117.5),
    (1, False, f"{H200} train.batch_size=5", 134.4, 134.9),
    (1, False, f"{H100} train.batch_size=1", 51.26, 54.22),
    (1, False, H100, 68.4, 71.4),
    (1, False, f"{H100} {IN_BACKWARD} train.batch_size=1", 53.21, 54.22),
    (1, True, f"{H200} {ALWAYS}", 101.2, 116.4),
    (1, True, f"{H200} {ALWAYS} train.batch_size=4", 118.3, 133.5),
    (1, True, f"{H100} {ALWAYS} train.batch_size=1", 52.2, 67.6),
    (1, True, f"{H200} {NEVER} model.n_layers=8", 37.86, 43.13),
    (1, True, f"{EIGHT} {NEVER}", 44.78, 56.16),
    (1, True, f"{EIGHT} {NEVER} precision.param_dtype=bf16", 49.99, 55.22),
    (1, True, f"experiment=llama3_8b_one_h200_fp8 {NEVER} model.n_layers=4", 22.92, 26.75),
    (1, False, "experiment=llama3_8b_lora_one_gpu model.n_layers=2", 7.22, 8.02),
    (1, False, f"{H100} model.n_layers=2 train.batch_size=8 {FULL}", 14.17, 15.37),
    (1, False, f"{H200} model.n_layers=8 train.activation_checkpointing=full", 22.19, 22.88),
    (1, False, f"{H200} model.n_layers=8 train.activation_checkpointing=selective", 28.53, 28.68),
    (1, False, f"{H200} model.n_layers=8 train.compile_model=false", 36.26, 36.67),
    (8, False, f"{LLAMA} parallel=fsdp", 33.29, 38.97),
    (8, False, f"{LLAMA} parallel=fsdp train.compile_model=false", 37.8, 43.5),
    (8, False, f"{EIGHT} parallel=fsdp train.activation_checkpointing=full", 9.21, 12.76),
    (8, False, f"{EIGHT} parallel=fsdp {NEVER}", 17.44, 20.34),
    (8, False, f"{EIGHT} parallel=fsdp objective.loss_fn=cross_entropy", 15.14, 19.38),
    (8, False, f"{EIGHT} parallel=fsdp optimizer=muon", 12.4, 15.85),
    (8, False, f"{EIGHT} parallel.tp=8 {NEVER}", 6.27, 7.71),
    (8, False, f"{EIGHT} parallel.tp=2 parallel.dp_shard=4", 9.37, 11.75),
    (8, False, f"{EIGHT} parallel.dp_shard=4 parallel.cp=2", 10.28, 13.54),
    (8, False, f"{EIGHT} parallel.dp_replicate=2 parallel.dp_shard=4", 17.12, 21.85),
    (8, False, f"{EIGHT} parallel.dp_replicate=8 parallel.dp_shard=1 {NEVER}", 45.7, 58.11),
    (
        8,
        False,
        f"{EIGHT} parallel=fsdp parallel.offload_optimizer=true precision.param_dtype=bf16",
        9.96,
        13.78,
    ),
    (8, False, f"{EXPERTS} parallel.ep=8 parallel.dp_shard=1", 8.54, 11.02),
    (
        8,
        False,
        f"{EXPERTS} parallel.ep=8 parallel.dp_shard=1 parallel.ep_overlap_degree=2",
        8.41,
        11.24,
    ),
    (8, False, "experiment=llama3_8b_8gpu_fp8", 39.4, 45.24),
    (8, False, "experiment=llama3_8b_8gpu_fp8 model.n_layers=2", 8.67, 10.83),
    (1, False, f"model=gemma2_2b {SMALL} model.n_layers=4", 5.73, 6.0),
    (1, False, f"model=gemma3_4b {SMALL} model.n_layers=6", 6.57, 6.63),
    (1, False, f"model=gemma_2b {SMALL} model.n_layers=4", 4.64, 4.8),
    (1, False, f"model=olmo2_7b {SMALL} model.n_layers=4", 7.08, 7.21),
    (1, False, f"model=qwen3_8b {SMALL} model.n_layers=4", 6.8, 6.9),
    (1, False, f"model=deepseek2_16b {SMALL} model.n_layers=4", 14.3, 15.44),
    (1, False, f"model=mixtral_8x7b {SMALL} model.n_layers=2", 22.09, 24.65),
    (1, False, f"model=qwen3_30b_a3b {SMALL} model.n_layers=4", 18.89, 20.72),
    (1, False, f"model=gpt_oss_20b {SMALL} model.n_layers=4", 24.96, 26.41),
    (1, False, f"model=llama4_scout {SMALL} model.n_layers=4", 66.16, 68.63),
    (1, False, f"model=qwen3_next_80b_a3b {SMALL} model.n_layers=4", 49.51, 54.69),
]


@pytest.mark.parametrize(("ranks", "fsdp", "words", "allocated", "reserved"), MEASURED, ids=str)
def test_the_estimate_is_near_what_was_measured(
    ranks: int,
    fsdp: bool,
    words: str,
    allocated: float,
    reserved: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within 5 % allocated, and 10 % reserved."""
    monkeypatch.setattr(Config, "one_rank_has_fsdp", property(lambda _: fsdp))
    options = [*words.split(), *COMMON.split(), f"plan.world_size={ranks}"]
    memory = memory_of(forge.compose(options).validate().config)
    assert memory.allocated / GIB == pytest.approx(allocated, rel=0.05)
    assert memory.reserved / GIB == pytest.approx(reserved, rel=0.1)


@pytest.mark.parametrize(
    ("reduced", "reserved"), [("micro_batch", 16.71), ("step", 26.87)], ids=str
)
def test_gradients_of_earlier_micro_batches_are_beside_activations(
    reduced: str, reserved: float
) -> None:
    words = f"{EIGHT} parallel=fsdp train.grad_accum_steps=2 parallel.reduce_gradients={reduced}"
    options = [*words.split(), *COMMON.split(), "plan.world_size=8"]
    memory = memory_of(forge.compose(options).validate().config)
    assert memory.reserved / GIB == pytest.approx(reserved, rel=0.05)
