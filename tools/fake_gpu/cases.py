"""The runs of the fake GPU: one line a preset and layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

CUDNN = ("cudnn_attention",)
FLASH = ("flash_fwd",)
CUTLASS = ("GroupProblemShape",)
BF16 = (
    "precision=bf16 precision.param_dtype=bf16 train=long train.batch_size=1 "
    "train.global_batch_size=null objective.loss_fn=chunked_cross_entropy"
)
"""As the presets of 8B train, for models that have no preset."""
MASTERS = (
    "precision=bf16 train=long train.batch_size=1 objective.loss_fn=chunked_cross_entropy"
)
L2, L4 = "model.n_layers=2", "model.n_layers=4"
LLAMA8 = f"model=llama3_8b {MASTERS} train.seq_len=4096 {L2} train.grad_accum_steps=1"
EXPERTS8 = (
    f"model=mixtral_8x7b {MASTERS} train.seq_len=4096 {L2} train.grad_accum_steps=1 optimizer=adamw"
)
PINNED = "checkpoint=default checkpoint.interval=1 checkpoint.async_mode=async_with_pinned_mem"
DEMO = "precision=bf16 precision.param_dtype=bf16 train.compile_model=true"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run of three steps.

    words: forge's own. ranks: this process is the first of them. gib: of the device, if it is
    another size. waits: why step 2 may wait; without a reason it runs under torch's
    sync-debug mode "error". kernels: parts of names that must have been launched in step 2. flops:
    whether the stub can count every product; flops_off: share by which the count may differ. split:
    ranks that share a product. extra_calls: collectives beside those of the model of traffic, by
    kind. fails: a part of the message with which the run must end. local_rank: device of the
    process. smoke: run by `make test`.
    """

    name: str
    words: str
    device: str = "h100"
    ranks: int = 1
    gib: float | None = None
    waits: str = ""
    kernels: tuple[str, ...] = CUDNN
    flops: bool = True
    flops_off: float = 1e-6
    split: int = 1
    extra_calls: Mapping[str, int] = field(default_factory=dict)
    fails: str = ""
    local_rank: int = 0
    saves: int = 0
    smoke: bool = False


CASES = (
    Case(name="small", words="", kernels=(), smoke=True),
    Case(name="8b_h200", words="experiment=llama3_8b_one_h200", device="h200"),
    Case(name="8b_h200_x4", words="experiment=llama3_8b_one_h200 train.batch_size=4", device="h200"),
    Case(name="8b_h100", words="experiment=llama3_8b_one_h100"),
    Case(name="8b_h100_x2", words="experiment=llama3_8b_one_h100 train.batch_size=2"),
    Case(name="8b_h200_2", words=f"experiment=llama3_8b_one_h200 {L2}", device="h200", smoke=True),
    Case(name="8b_h100_2", words=f"experiment=llama3_8b_one_h100 {L2}", smoke=True),
    Case(name="8b_fp8_2", words=f"experiment=llama3_8b_one_h200_fp8 {L2}", device="h200"),
    Case(name="8b_eager_2", words=f"experiment=llama3_8b_one_h200 {L2} train.compile_model=false", device="h200"),
    Case(name="8b_masters_2", words=f"{LLAMA8}", device="h200"),
    Case(name="8b_accumulated_2", words=f"{LLAMA8} train.grad_accum_steps=4", device="h200"),
    Case(name="8b_full_2", words=f"experiment=llama3_8b_one_h100 {L2} train.activation_checkpointing=full"),
    Case(name="8b_selective_2", words=f"experiment=llama3_8b_one_h100 {L2} train.activation_checkpointing=selective"),
    Case(name="8b_in_backward_2", words=f"experiment=llama3_8b_one_h100 {L2} train.optimizer_in_backward=true train.grad_clip_norm=0"),
    Case(name="lora_2", words=f"experiment=llama3_8b_lora_one_gpu {L2}", smoke=True),
    Case(name="qlora_2", words=f"experiment=llama3_8b_qlora_24gb {L2}", device="rtx4090", waits="double quantization makes its table anew"),
    Case(name="mixtral_2", words=f"model=mixtral_8x7b {BF16} optimizer=adamw_low_bit precision.stochastic_rounding=true train.seq_len=4096 {L2}", kernels=CUDNN + CUTLASS, flops=False, smoke=True),
    Case(name="gpt_oss_2", words=f"model=gpt_oss_20b {BF16} optimizer=adamw_low_bit precision.stochastic_rounding=true train.seq_len=4096 {L2}", kernels=CUTLASS, flops=False),
    Case(name="deepseek2_2", words=f"model=deepseek2_16b {BF16} optimizer=adamw_low_bit precision.stochastic_rounding=true train.seq_len=4096 {L2}", kernels=CUTLASS, flops=False),
    Case(name="qwen3_next_4", words=f"model=qwen3_next_80b_a3b {BF16} optimizer=adamw_low_bit precision.stochastic_rounding=true train.seq_len=2048 {L4}", kernels=CUTLASS, flops=False),
    Case(name="gemma2_2", words=f"model=gemma2_2b {BF16} optimizer=adamw train.seq_len=4096 {L2}", kernels=()),
    Case(name="gemma3_2", words=f"model=gemma3_1b {BF16} optimizer=adamw train.seq_len=4096 {L2}", kernels=()),
    Case(name="muon_2", words=f"{LLAMA8} optimizer=muon", device="h200"),
    Case(name="dpo", words=f"{DEMO} model=small data=preference_demo objective=dpo optimizer=adamw", kernels=()),
    Case(name="sft_packed", words=f"{DEMO} model=small data=chat_demo objective=sft optimizer=adamw data.pack_sequences=true", kernels=()),
    Case(name="fsdp8", words=f"{LLAMA8} parallel=fsdp optimizer=adamw", ranks=8),
    Case(name="fsdp8_all", words="model=llama3_8b precision=bf16 train=long train.seq_len=4096 train.batch_size=1 train.grad_accum_steps=1 objective.loss_fn=chunked_cross_entropy parallel=fsdp optimizer=adamw", ranks=8),
    Case(name="hsdp8", words=f"{LLAMA8} parallel=hsdp parallel.dp_replicate=2 parallel.dp_shard=4 optimizer=adamw", ranks=8),
    Case(name="tp8", words=f"{LLAMA8} parallel.tp=8 parallel.dp_shard=1 optimizer=adamw", ranks=8),
    Case(name="fsdp4_cp2", words=f"{LLAMA8} parallel.dp_shard=4 parallel.cp=2 optimizer=adamw", ranks=8, kernels=()),
    Case(name="fsdp8_accumulated", words=f"{LLAMA8} train.grad_accum_steps=4 parallel=fsdp optimizer=adamw", ranks=8),
    Case(name="fsdp8_muon", words=f"{LLAMA8} parallel=fsdp optimizer=muon", ranks=8),
    Case(name="ep8", words=f"{EXPERTS8} parallel.ep=8 parallel.dp_shard=1", ranks=8, waits="each layer of experts reads how many rows come", kernels=CUDNN + CUTLASS, flops=False, smoke=True),
    Case(name="pp2_fsdp4", words=f"{LLAMA8} parallel.pp=2 parallel.dp_shard=4 train.batch_size=4 optimizer=adamw", ranks=8),
    Case(name="out_of_memory", words="experiment=llama3_8b_one_h100", gib=40, fails="out of memory"),
    Case(name="saves", words=PINNED, local_rank=3, saves=2, kernels=()),
)


def argument(case: Case) -> dict[str, object]:
    """The case as `fake_gpu.child` takes it."""
    environ = {"LOCAL_RANK": str(case.local_rank)} if case.local_rank else {}
    gpus = case.local_rank + 1
    argument = {"words": case.words.split(), "device": case.device, "ranks": case.ranks}
    argument |= {"waits": bool(case.waits), "gpus": gpus, "environ": environ}
    return argument if case.gib is None else argument | {"gib": case.gib}
