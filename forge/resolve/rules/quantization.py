"""Rules on quantization: the number formats of matrix products."""

from __future__ import annotations

from dataclasses import replace

from forge.config.devices import DEVICES
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.tensors import HEAD as HEAD_ROLE
from forge.config.model.tensors import TensorSpec
from forge.config.objectives.base import Objective
from forge.config.optimizers.base import Optimizer
from forge.config.optimizers.schedule_free import ScheduleFreeAdamW
from forge.config.parallel import Parallel
from forge.config.plan import Plan
from forge.config.precision import Precision
from forge.config.quantization import FP8, PARTS, Emulated, Quantized, Sparse
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.train import Train
from forge.planning.world import World

WHICH = ("quantization.parts", "quantization.min_dim", "quantization.exclude")
EMULATE, GATHER = "quantization.emulate", "quantization.fp8_all_gather"
HEAD = "quantization.include_head"
N, M = "quantization.weight_sparsity_n", "quantization.weight_sparsity_m"


@rule("quantization.needs_decoder", *WHICH)
def quantization_needs_decoder(model: Model, quantization: Quantized) -> Findings:
    """quantization takes matrices of forge's Decoder, which it knows by their roles."""
    if not model.has_blocks:
        yield "quantization", "quantization=none"


@rule("quantization.takes_none", *WHICH, HEAD)
def takes_none(model: Decoder, quantization: Quantized) -> Findings:
    """quantization must take a matrix: long enough, and of sides that its numbers divide."""
    if quantization.chosen(model):
        return
    message = f"no matrix has sides of {quantization.min_dim} and more that are multiples of"
    message = f"{message} {quantization.multiple}, among those of quantization.parts."
    shorter = replace(quantization, min_dim=1).chosen(model)
    if shorter:
        least = max(min(tensor.shape[-2:]) for tensor in shorter)
        yield "quantization.min_dim", message, f"quantization.min_dim={least}"
    else:
        every = f"quantization.parts=[{','.join(PARTS)}]"
        yield "quantization.min_dim", message, f"{every}, or widths that are such multiples"


@rule(
    "parallel.ep_quantized",
    "model.moe.num_experts",
    "parallel.ep",
    "parallel.ep_method",
    "parallel.ep_overlap_degree",
    "quantization.parts",
    "quantization.exclude",
)
def rows_in_few_bits(model: Decoder, parallel: Parallel, quantization: Quantized) -> Findings:
    """Scales of few bits are taken over all rows: quantized experts need parallel.ep_method=
    all_to_all and parallel.ep_overlap_degree=1.
    """
    if parallel.ep == 1 or not any(t.of_experts for t in quantization.chosen(model)):
        return
    if parallel.gathers_tokens:
        yield "parallel.ep_method", "parallel.ep_method=all_to_all"
    if parallel.ep_overlap_degree > 1:
        yield "parallel.ep_overlap_degree", "parallel.ep_overlap_degree=1"


@rule("quantization.device", EMULATE, "run.device")
def device_of_kernels(quantization: Emulated, run: Run) -> Findings:
    """Kernels of 8 bits and fewer are for NVIDIA GPUs; quantization.emulate=true has the same
    numbers anywhere.
    """
    if run.device != "cuda" and not quantization.emulate:
        yield EMULATE, f"{EMULATE}=true, or no quantization"


@rule("quantization.capability", EMULATE, "plan.device", "run.device")
def capability(quantization: Emulated, plan: Plan, run: Run) -> Findings:
    """The GPU that is planned for must have the format that matrices are multiplied in."""
    gpu = DEVICES.get(plan.device or "")
    if gpu is None or run.device != "cuda" or quantization.emulate:
        return
    least = quantization.capability
    if gpu.capability < least:
        able = [name for name, gpu_model in DEVICES.items() if gpu_model.capability >= least]
        name, needs = quantization.schema_name, ".".join(map(str, least))
        message = f"quantization={name} needs a GPU of compute capability {needs}, and it has"
        message += (
            f" {'.'.join(map(str, gpu.capability))}; of those known {', '.join(able)} will do."
        )
        yield "plan.device", message, f"plan.device={able[0]}, or {EMULATE}=true"


@rule("quantization.precision", EMULATE, "precision.mixed_precision", "run.device")
def precision_of_products(quantization: Emulated, precision: Precision, run: Run) -> Findings:
    """On a GPU quantization=fp8 and its kin give their products in bf16."""
    required, mixed = quantization.on_cuda, precision.mixed_precision
    if run.device == "cuda" and not quantization.emulate and required not in ("", mixed):
        yield "precision.mixed_precision", f"precision={required}, or {EMULATE}=true"


@rule("quantization.tp", "parallel.tp")
def tp(quantization: Quantized, parallel: Parallel) -> Findings:
    """quantization rounds whole rows, which parallel.tp cuts, so that it would round otherwise."""
    if parallel.tp > 1 and not quantization.cut:
        yield "parallel.tp", "parallel.tp=1, or no quantization"


@rule("quantization.tp_matrices", "parallel.tp", *WHICH, HEAD)
def tp_matrices(quantization: Emulated, model: Decoder, parallel: Parallel) -> Findings:
    """With parallel.tp each quantized matrix is cut to sides that kernels take, and of no expert.

    A matrix that every rank has whole gets of each rank a summand of its output's gradient, and
    the rounding of summands is not that of their sum.
    """
    ranks, chosen = parallel.tp, quantization.chosen(model)
    if ranks == 1 or not quantization.cut:
        return
    if any(tensor.of_experts for tensor in chosen):
        others = ",".join(part for part in quantization.parts if part != "experts")
        message = "products of experts in few bits are for whole matrices."
        yield "quantization.parts", message, f"quantization.parts=[{others}], or parallel.tp=1"
    if any(tensor.role == HEAD_ROLE for tensor in chosen):
        yield HEAD, "a head is cut by rows of the vocabulary.", f"{HEAD}=false"
    blocks = [t for t in chosen if not t.of_experts and t.role != HEAD_ROLE]
    refused = {t.name: why for t in blocks if (why := _uneven(t, ranks, quantization.multiple))}
    if refused:
        names = dict.fromkeys("*." + name.split(".", 2)[2] for name in refused)
        exclude = "quantization.exclude=[" + ",".join(f"'{name}'" for name in names) + "]"
        yield "parallel.tp", next(iter(refused.values())), f"{exclude}, or parallel.tp=1"


def _uneven(tensor: TensorSpec, ranks: int, multiple: int) -> str:
    """Why ranks cannot multiply their parts of a matrix in few bits; "" = they can."""
    cut = tensor.cut(ranks)
    if cut is None:
        return f"every one of {ranks} tp ranks has {tensor.name} whole."
    if tensor.shape[cut] % (ranks * multiple):
        size = f"{tensor.shape[cut]} / {ranks}"
        return f"{tensor.name} has {size} on a rank, no multiple of {multiple}."
    return ""


@rule(
    GATHER,
    GATHER,
    "quantization.recipe",
    "quantization.in_evaluation",
    "parallel.tp",
    "parallel.cpu_offload",
    "precision.mixed_precision",
)
def fp8_all_gather(
    quantization: FP8, precision: Precision, parallel: Parallel, world: World
) -> Findings:
    """quantization.fp8_all_gather is for weights that FSDP gathers, with one scale each, and there
    are no others to evaluate with.
    """
    if not quantization.fp8_all_gather:
        return
    if quantization.recipe != "tensorwise":
        message = f"recipe={quantization.recipe} has scales of rows, and gathers one of a tensor."
        yield GATHER, message, f"quantization.recipe=tensorwise, or {GATHER}=false"
    if not quantization.in_evaluation:
        message = "evaluations have the gathered weights, which are fp8."
        yield GATHER, message, f"quantization.in_evaluation=true, or {GATHER}=false"
    if parallel.tp > 1:
        message = "with parallel.tp the scale is of a part of a weight."
        yield GATHER, message, f"{GATHER}=false"
    if parallel.cpu_offload:
        message = "with parallel.cpu_offload=true weights are copied to the GPU as they are."
        yield GATHER, message, f"parallel.cpu_offload=false, or {GATHER}=false"
    if world.size == 1 and precision.mixed_precision == "fp32":
        yield GATHER, "on one rank in fp32 no weight is gathered.", f"{GATHER}=false"


@rule(
    "quantization.sparse_update",
    "train.optimizer_in_backward",
    "optimizer._target_",
    N,
)
def sparse_update(quantization: Sparse, optimizer: Optimizer, train: Train) -> Findings:
    """quantization=sparse gives an update the dense weights once all gradients are there."""
    if train.optimizer_in_backward:
        key = "train.optimizer_in_backward"
        yield key, f"{key}=false, or no quantization"
    if isinstance(optimizer, ScheduleFreeAdamW):
        message = "schedule_free_adamw has two sets of weights, and one would be sparse."
        yield "optimizer._target_", message, "optimizer=adamw"


@rule("quantization.sparse_pp", "parallel.pp", N)
def sparse_pp(quantization: Sparse, parallel: Parallel) -> Findings:
    """quantization=sparse keeps in checkpoints what weights of one stage were: parallel.pp is 1."""
    if parallel.pp > 1:
        yield "parallel.pp", "parallel.pp=1, or no quantization"


@rule("quantization.weight_sparsity", N, M)
def weight_sparsity(quantization: Sparse) -> Findings:
    """quantization.weight_sparsity_n must be less than quantization.weight_sparsity_m."""
    n, m = quantization.weight_sparsity_n, quantization.weight_sparsity_m
    if n >= m:
        yield N, f"{N}={max(m // 2, 1)}"


@rule("quantization.head", HEAD, "model.tie_embeddings", "objective.loss_fn")
def head(quantization: Quantized, model: Decoder, objective: Objective) -> Findings:
    """quantization.include_head takes a head of its own whose logits are all made at once."""
    if not quantization.include_head:
        return
    if model.tie_embeddings:
        message = "with model.tie_embeddings=true the head is the embedding, which is not rounded."
        yield HEAD, message, f"{HEAD}=false, or model.tie_embeddings=false"
    elif getattr(objective, "loss_fn", "") == "chunked_cross_entropy":
        message = "objective.loss_fn=chunked_cross_entropy makes the products of the head itself."
        yield HEAD, message, f"{HEAD}=false, or objective.loss_fn=cross_entropy"


@rule("model.logits_dot_in_fp32", "model.logits_dot_in_fp32", HEAD)
def logits_dot_in_fp32(model: Decoder, quantization: Quantized) -> Findings:
    """With model.logits_dot_in_fp32 the head is not one of quantization.include_head."""
    if model.logits_dot_in_fp32 and quantization.include_head:
        yield "model.logits_dot_in_fp32", f"{HEAD}=false"
