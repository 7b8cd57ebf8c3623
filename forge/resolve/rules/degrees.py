"""Rules on the degrees of tp, ep, cp and pp: sizes they must divide, and options they exclude.

Where a smaller degree helps, `forge.resolve.causes` finds it; a rule gives any other advice.
"""

from __future__ import annotations

from math import prod

from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.model.mixers.indexer import indexed
from forge.config.model.mtp import MTP
from forge.config.model.skips.engram import ENGRAM
from forge.config.objectives.base import CrossEntropy, Objective
from forge.config.parallel import ONE_STAGE_SCHEDULES, V_SCHEDULE, ZERO_BUBBLE_SCHEDULES, Parallel
from forge.config.precision import Precision
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.train import Train
from forge.planning.layout import legal_microbatches, sequences_of_rank
from forge.planning.world import World

TP, PP, CP, EP = "parallel.tp", "parallel.pp", "parallel.cp", "parallel.ep"
SCHEDULE, STAGES = "parallel.pp_schedule", "parallel.pp_stages_per_rank"
EXPERTS = ("model.moe.num_experts", "model.moe.frequency")
CARRIED = {
    "value_embeddings": "the tables of values read tokens, which the first stage alone has",
    "x0_scalars": "each layer reads the input of the first one, which stays on the first stage",
    "backout": "the end reads the middle layer, which is on another stage",
}
"""Options that a pipeline does not carry, and the reason."""


@rule(
    "parallel.tp_divides",
    TP,
    "model.n_heads",
    "model.n_kv_heads",
    "model.ffn_hidden_dim",
    "model.kinds",
    "model.layers",
    *EXPERTS,
    "model.moe.ffn_hidden_dim",
    "model.moe.shared_experts",
    "model.moe.shared_hidden_dim",
    "model.moe.beside_dense",
)
def tp_divides(model: Decoder, parallel: Parallel) -> Findings:
    """Tensor parallelism cuts attention by heads, and feed-forward layers and experts by width:
    parallel.tp must divide each.
    """
    tp, kinds = parallel.tp, model.kinds_in()
    divisible = f"must be divisible by parallel.tp ({tp})"
    for layer_key, layer in model.in_use():
        cut = layer.mixer.cut_heads(layer)
        first, heads = next(iter(cut.items()), ("", 0))
        if heads % tp:
            yield TP, f"{layer_key}.{first} ({heads}) {divisible}.", ""
        for key, shared in list(cut.items())[1:]:
            if shared != heads and shared % tp and tp % shared:  # several ranks may share one
                other = f"or parallel.tp by {layer_key}.{key}"
                yield TP, f"{layer_key}.{key} ({shared}) {divisible}, {other}.", ""
        width = layer.computed_ffn_hidden_dim
        plain = any(not (kind.moe or model.lacks_feed_forward(kind.name)) for kind in kinds)
        dense = model.moe.beside_dense or plain
        if dense and not layer.feed_forward.absent and width % tp:
            hint = f"{layer_key}.ffn_hidden_dim={-(-width // tp) * tp}"
            yield TP, f"the feed-forward width ({width}) {divisible}.", hint
    expert = model.expert_hidden_dim
    if model.is_moe and expert % tp:
        hint = f"model.moe.ffn_hidden_dim={-(-expert // tp) * tp}"
        yield TP, f"the width of an expert ({expert}) {divisible}.", hint
    shared_dim, shared = model.moe.shared_hidden_dim, model.moe.shared_width(model)
    if model.is_moe and shared_dim not in (None, expert) and shared % tp:
        hint = f"model.moe.shared_hidden_dim={-(-shared_dim // tp) * tp}"
        yield TP, f"the width of shared experts ({shared}) {divisible}.", hint


@rule("parallel.tp_loss", TP, "parallel.loss_parallel", "objective.loss_fn")
def tp_loss(objective: CrossEntropy, parallel: Parallel) -> Findings:
    """objective.loss_fn=chunked_cross_entropy never holds all logits, so with tp > 1 it needs
    parallel.loss_parallel=true.
    """
    chunked = objective.loss_fn == "chunked_cross_entropy"
    if chunked and parallel.tp > 1 and not parallel.loss_parallel:
        yield "parallel.loss_parallel", "parallel.loss_parallel=true"


@rule("parallel.ep_needs_moe", EP, "parallel.dp_shard", *EXPERTS)
def ep_needs_moe(model: Model, parallel: Parallel) -> Findings:
    """Expert parallelism cuts experts only: parallel.ep above 1 needs a mixture of experts."""
    if parallel.ep > 1 and not model.is_moe:
        yield EP, "a model with experts"


@rule("parallel.ep_experts", EP, "parallel.dp_shard", *EXPERTS)
def ep_experts(model: Decoder, parallel: Parallel) -> Findings:
    """model.moe.num_experts must be divisible by parallel.ep."""
    if model.is_moe and model.moe.num_experts % parallel.ep:
        yield EP, ""


@rule(
    "parallel.seq_len",
    TP,
    CP,
    "parallel.cp_method",
    "parallel.sequence_parallel",
    "train.seq_len",
)
def seq_len_by_ranks(parallel: Parallel, train: Train) -> Findings:
    """train.seq_len must be divisible by cp, twice that when balanced, times tp with
    sequence_parallel.
    """
    factors = parallel.sequence_factors
    seq, parts = train.seq_len, prod(factors.values())
    if seq % parts:
        message = f"train.seq_len ({seq}) must be divisible by {' * '.join(factors)} ({parts})."
        yield "train.seq_len", message, f"train.seq_len={seq // parts * parts or parts}"


@rule("parallel.ulysses_heads", TP, CP, "parallel.cp_method", "model.n_heads", "model.n_kv_heads")
def ulysses_heads(model: Decoder, parallel: Parallel) -> Findings:
    """parallel.cp_method=ulysses cuts the heads and key/value heads of a tp rank: cp must divide
    both.
    """
    tp, cp = parallel.tp, parallel.cp
    if cp == 1 or parallel.cp_method != "ulysses":
        return
    for _, layer in model.in_use():
        if layer.mixer.recurrent:
            continue
        heads, kv_heads = layer.n_heads // tp, max(layer.kv_heads // tp, 1)
        if layer.n_heads % tp == 0 and (heads % cp or kv_heads % cp):
            number = f"{heads} heads and {kv_heads} key/value heads"
            message = f"parallel.cp ({cp}) must divide the {number} of a tp rank."
            yield CP, message, "parallel.cp_method=all_gather"


@rule(
    "parallel.cp_recurrent",
    CP,
    "parallel.cp_method",
    "parallel.cp_load_balance",
    "train.seq_len",
    "model.mixer",
    "model.kinds",
    "model.layers",
)
def cp_recurrent(model: Decoder, parallel: Parallel, train: Train) -> Findings:
    """Under context parallelism a recurrent mixer passes a state on, and the last tokens of a run
    that a convolution reads: a run has as many.
    """
    tokens = train.seq_len // (parallel.cp * parallel.runs_of_sequence)
    for layer_key, layer in model.in_use():
        if parallel.cp == 1 or not layer.mixer.recurrent or layer.mixer.absent:
            continue
        passed, mixer = layer.mixer.passed(layer, parallel.tp), f"{layer_key}.mixer"
        if passed is None:
            message = f"{mixer} is a {layer.mixer.schema_name}, which passes no state on."
            yield CP, message, "parallel.cp=1"
            return
        if tokens < passed.tokens:
            message = f"a convolution of {mixer} reads {passed.tokens} tokens before, and a run of"
            yield CP, f"{message} a sequence has {tokens}.", "parallel.cp=1"
            return


@rule("parallel.cp_indexer", CP, "model.mixer", "model.kinds", "model.layers")
def cp_indexer(model: Decoder, parallel: Parallel) -> Findings:
    """An indexer chooses among the keys of a whole sequence, which context parallelism cuts over
    ranks: parallel.cp is 1.
    """
    for path, _, _ in indexed(model):
        if parallel.cp > 1:
            yield CP, f"{path}.mixer.use_indexer=true chooses among all keys.", "parallel.cp=1"
            return


@rule("parallel.mtp", CP, PP, MTP)
def mtp_layout(model: Decoder, parallel: Parallel) -> Findings:
    """The modules of model.mtp_num_layers read later tokens of whole rows, and the embedding beside
    the head: parallel.cp and parallel.pp are 1.
    """
    for key, degree in ((CP, parallel.cp), (PP, parallel.pp)):
        if model.mtp_num_layers and degree > 1:
            yield key, f"{key}=1, or {MTP}=0"


@rule("parallel.engram", CP, PP, ENGRAM)
def engram_layout(model: Decoder, parallel: Parallel) -> Findings:
    """The memories of model.engram_layers read earlier tokens of whole rows, and tokens beside
    hidden states: parallel.cp and parallel.pp are 1.
    """
    for key, degree in ((CP, parallel.cp), (PP, parallel.pp)):
        if model.engram_layers and degree > 1:
            yield key, f"{key}=1, or {ENGRAM}=[]"


@rule("parallel.cp_kernel", CP, "parallel.cp_method", "model.sdpa_backend", warning=True)
def cp_kernel(model: Decoder, parallel: Parallel) -> Findings:
    """With parallel.cp_method=all_gather torch chooses the kernel itself, but for the first part of
    a sequence, and a ring has its own.
    """
    chosen = parallel.cp > 1 and parallel.cp_method != "ulysses"
    if chosen and model.sdpa_backend not in ("auto", "flash"):
        yield "model.sdpa_backend", "model.sdpa_backend=auto"


@rule("parallel.pp_stages", PP, SCHEDULE, STAGES)
def pp_stages(parallel: Parallel) -> Findings:
    """A rank has one stage under gpipe and 1f1b, two or more under interleaved schedules, two under
    zbv_zero_bubble.
    """
    stages, schedule = parallel.pp_stages_per_rank or 1, parallel.pp_schedule
    one_stage, two_stages = schedule in ONE_STAGE_SCHEDULES, schedule == V_SCHEDULE
    legal = stages == 1 if one_stage else stages == 2 if two_stages else stages >= 2
    if parallel.pp > 1 and not legal:
        yield STAGES, f"{STAGES}=null"


@rule("parallel.pp_layers", PP, SCHEDULE, STAGES, "parallel.pp_layers", "model.n_layers")
def pp_layers(model: Decoder, parallel: Parallel) -> Findings:
    """Each of parallel.pp * parallel.pp_stages_per_rank stages has a block or more of
    model.n_layers, or as many as parallel.pp_layers says.
    """
    stage_layers, blocks = parallel.pp_layers, model.n_layers
    stages = parallel.pp * (parallel.pp_stages_per_rank or 1)
    if parallel.pp == 1:
        return
    if stages > blocks:
        yield PP, f"model.n_layers={stages}"
    elif stage_layers and (len(stage_layers), sum(stage_layers)) != (stages, blocks):
        fewer, remainder = divmod(blocks, stages)
        even = ",".join(str(fewer + (stage >= stages - remainder)) for stage in range(stages))
        yield "parallel.pp_layers", f"parallel.pp_layers=[{even}]"


@rule(
    "parallel.pp_microbatches",
    PP,
    SCHEDULE,
    STAGES,
    "parallel.pp_microbatches",
    "train.batch_size",
    "train.grad_accum_steps",
)
def pp_microbatches(config: Config, parallel: Parallel, train: Train) -> Findings:
    """Micro-batches are equal parts of a rank's sequences: under 1f1b at least pp, under
    interleaved schedules in even rounds of pp.
    """
    parts, pp, schedule = parallel.pp_microbatches or 1, parallel.pp, parallel.pp_schedule
    sequences = sequences_of_rank(config)
    legal = legal_microbatches(sequences, pp, schedule)
    if pp == 1 or parts in legal:
        return
    message = f"train.batch_size ({train.batch_size}) * train.grad_accum_steps"
    message += f" ({train.grad_accum_steps}) = {sequences} sequences cannot go through"
    message += f" parallel.pp ({pp}) ranks in {parts} parts under {schedule}."
    hint = "parallel.pp_schedule=gpipe"
    if legal:
        hint = f"parallel.pp_microbatches={min(legal, key=lambda n: abs(n - parts))}"
    yield "parallel.pp_microbatches", message, hint


@rule("parallel.pp_once", PP, "parallel.reshard_after_forward", "parallel.reduce_gradients")
def pp_once(parallel: Parallel) -> Findings:
    """A pipeline gathers its weights once, and reduces its gradients once a step."""
    if parallel.pp > 1 and parallel.reshard_after_forward not in ("never", "auto"):
        yield "parallel.reshard_after_forward", "parallel.reshard_after_forward=never"
    if parallel.pp > 1 and parallel.reduce_gradients == "micro_batch":
        yield "parallel.reduce_gradients", "parallel.reduce_gradients=step"


@rule("parallel.pp_frozen", PP)
def pp_frozen(objective: Objective, parallel: Parallel) -> Findings:
    """A frozen model of an objective is not cut into stages: parallel.pp must be 1."""
    if parallel.pp > 1 and objective.frozen_models():
        yield PP, ""


@rule("parallel.pp_tied", PP, SCHEDULE, "model.tie_embeddings")
def pp_tied(model: Decoder, parallel: Parallel) -> Findings:
    """Under zbv_zero_bubble a rank has both ends of the model, and FSDP cannot share tied
    embeddings between two stages of a rank.
    """
    if model.tie_embeddings and parallel.pp > 1 and parallel.pp_schedule == V_SCHEDULE:
        yield SCHEDULE, "model.tie_embeddings=false, or another schedule"


@rule(
    "parallel.pp_zero_bubble",
    PP,
    SCHEDULE,
    "train.compile_model",
    "train.activation_checkpointing",
)
def pp_zero_bubble(parallel: Parallel, train: Train) -> Findings:
    """Zero-bubble schedules split the backward of a block in two, which neither a compiled block
    nor recompute that keeps tensors by name can.
    """
    if _zero_bubble(parallel) and train.compile_model:
        yield "train.compile_model", "train.compile_model=false"
    if _zero_bubble(parallel) and train.policy.by_name:
        hint = "train.activation_checkpointing=full, or another schedule"
        yield "train.activation_checkpointing", hint


@rule("parallel.pp_skips", "parallel.pp", *(f"model.{option}" for option in CARRIED))
def pp_skips(model: Decoder, parallel: Parallel) -> Findings:
    """A pipeline sends hidden states of one layer from stage to stage: nothing passes around
    layers.
    """
    for option, reason in CARRIED.items():
        if parallel.pp > 1 and getattr(model, option):
            yield f"model.{option}", f"{reason}.", f"parallel.pp=1, or model.{option}=false"


@rule("parallel.pp_torch", PP, SCHEDULE, TP, "model.moe.num_experts")
def pp_torch(model: Model, parallel: Parallel, world: World) -> Findings:
    """Before torch 2.13 zero-bubble schedules cannot go with tp > 1 or experts, nor can
    zbv_zero_bubble run on a CPU.
    """
    version = world.devices.torch
    if not _zero_bubble(parallel) or version is None or version >= (2, 13):
        return
    if parallel.tp > 1 or model.is_moe:
        yield SCHEDULE, f"{SCHEDULE}=interleaved_1f1b, or torch 2.13"
    elif parallel.pp_schedule == V_SCHEDULE and world.device == "cpu":
        yield SCHEDULE, f"{SCHEDULE}=interleaved_zero_bubble, or torch 2.13"


def _zero_bubble(parallel: Parallel) -> bool:
    return parallel.pp > 1 and parallel.pp_schedule in ZERO_BUBBLE_SCHEDULES


@rule("parallel.pp_fp16", PP, "precision.mixed_precision")
def pp_fp16(parallel: Parallel, precision: Precision) -> Findings:
    """fp16 scales the loss, which a pipeline makes and differentiates itself: with pp > 1 use bf16
    or fp32.
    """
    if parallel.pp > 1 and precision.mixed_precision == "fp16":
        yield "precision.mixed_precision", "precision.mixed_precision=bf16"


REDUCE_DTYPE = "precision.reduce_dtype"


@rule(
    "precision.reduce_dtype",
    REDUCE_DTYPE,
    PP,
    "parallel.dp_replicate",
    "parallel.reduce_gradients",
    "train.grad_accum_steps",
)
def reduce_dtype(parallel: Parallel, precision: Precision, train: Train) -> Findings:
    """With precision.reduce_dtype=bf16 each micro-batch is reduced by itself, on no replicas."""
    if not (precision.reduces_in_bf16 and parallel.reduces):
        return
    hint = f"{REDUCE_DTYPE}=fp32"
    if parallel.pp > 1 and (parallel.pp_microbatches or 1) > 1:
        yield REDUCE_DTYPE, "a pipeline adds its micro-batches up before it reduces.", hint
    elif train.grad_accum_steps > 1 and parallel.dp_replicate > 1:
        yield REDUCE_DTYPE, "replicas are reduced once a step.", hint
    elif train.grad_accum_steps > 1 and parallel.reduce_gradients != "micro_batch":
        message = f"{train.grad_accum_steps} micro-batches are added up before they are reduced."
        yield REDUCE_DTYPE, message, f"parallel.reduce_gradients=micro_batch, or {hint}"


RESHARD = "parallel.reshard_after_forward"


@rule(RESHARD, RESHARD, "parallel.dp_shard", "parallel.tp", "parallel.ep", "parallel.cp")
def reshard_to_ranks(config: Config, model: Model, parallel: Parallel) -> Findings:
    """parallel.reshard_after_forward=N divides dp_shard * cp, without tp, ep, experts, or weights
    in 8 bits.
    """
    after = parallel.reshard_after_forward
    if not isinstance(after, int):
        return
    ranks, always = parallel.fsdp, f"{RESHARD}=always"
    if after >= ranks or ranks % after:
        divisors = [n for n in range(2, ranks) if ranks % n == 0]
        near = min(divisors, key=lambda n: abs(n - after), default=None)
        message = f"{ranks} ranks hold the shards, and {after} is no smaller divisor of that."
        yield RESHARD, message, f"{RESHARD}={near}, or {always}" if near else always
    elif parallel.tp > 1 or parallel.ep > 1:
        axis = "tp" if parallel.tp > 1 else "ep"
        yield RESHARD, f"torch reshards so no tensors cut by parallel.{axis}.", always
    elif model.is_moe:
        yield RESHARD, "experts may be cut in another dimension than the first.", always
    elif config.quantization.gathers_in_fp8 or config.adapter.packed_format:
        yield RESHARD, "weights of 8 bits and fewer are gathered in parts.", always
