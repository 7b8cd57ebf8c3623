"""Rules on the model, its experts, its vocabulary and its tokenizer."""

from __future__ import annotations

import os

from forge.config.model import Decoder, Model
from forge.config.parallel import Parallel
from forge.config.precision import Precision
from forge.config.run import Run
from forge.config.tokenizer import BPE, FILE_NAME, Facts, Tokenizer, TokenizerFile
from forge.config.train import Train
from forge.plan.world import World
from forge.resolve.rule import Findings, rule

EXPERTS, TOP_K = "model.moe.num_experts", "model.moe.top_k"
GROUPS, CHOSEN_GROUPS = "model.moe.n_routing_groups", "model.moe.topk_routing_group"


@rule("train.seq_len", "train.seq_len", "model.max_seq_len")
def seq_len(train: Train, model: Model) -> Findings:
    """train.seq_len must not exceed model.max_seq_len."""
    seq, longest = train.seq_len, model.max_seq_len
    if seq > longest:
        yield "train.seq_len", f"train.seq_len={longest} or model.max_seq_len={seq}"


@rule("model.heads", "model.dim", "model.n_heads")
def heads(model: Decoder) -> Findings:
    """model.dim must be divisible by model.n_heads."""
    if model.dim % model.n_heads:
        yield "model.n_heads", f"model.n_heads={_nearest_divisor(model.dim, model.n_heads)}"


@rule("model.kv_heads", "model.n_heads", "model.n_kv_heads")
def kv_heads(model: Decoder) -> Findings:
    """model.n_heads must be divisible by model.n_kv_heads: each key/value head serves equally many
    query heads.
    """
    heads, kv_heads = model.n_heads, model.kv_heads
    if heads % kv_heads:
        yield "model.n_kv_heads", f"model.n_kv_heads={_nearest_divisor(heads, kv_heads)}"


def _nearest_divisor(number: int, wanted: int) -> int:
    divisors = (n for n in range(1, min(number, 1 << 20) + 1) if number % n == 0)
    return min(divisors, key=lambda n: abs(n - wanted))


@rule("model.rope_head_dim", "model.dim", "model.n_heads", "model.position")
def rope_head_dim(model: Decoder) -> Findings:
    """Rotary positions rotate pairs: the head width, model.dim / model.n_heads, must be even."""
    if model.position == "rope" and model.dim % model.n_heads == 0 and model.head_dim % 2:
        yield "model.dim", "another model.dim or model.n_heads, or model.position=learned"


@rule(
    "model.sdpa_backend",
    "model.sdpa_backend",
    "model.n_kv_heads",
    "precision.mixed_precision",
    "run.deterministic",
)
def sdpa_backend(model: Decoder, precision: Precision, run: Run, world: World) -> Findings:
    """The kernel of model.sdpa_backend must take the device, number format and heads of the run."""
    name, what = model.sdpa_backend, ""
    if name in ("auto", "math"):
        return
    if world.device == "cpu":
        what = "torch has none on a CPU" if name != "flash" else ""
    elif name != "efficient" and precision.mixed_precision == "fp32":
        what = "it takes 16 bits, and precision.mixed_precision is fp32"
    elif name == "efficient" and model.kv_heads != model.n_heads:
        what = f"it takes as many key heads as heads, not {model.kv_heads} for {model.n_heads}"
    elif name == "cudnn" and run.deterministic:
        what = "it is not deterministic, and run.deterministic is true"
    if what:
        yield "model.sdpa_backend", f"the {name} kernel: {what}.", "model.sdpa_backend=auto"


@rule("model.vocab_size", "model.vocab_size", "tokenizer.vocab_size")
def vocab_size(model: Model, tokenizer: Tokenizer) -> Findings:
    """model.vocab_size must cover every id of the tokenizer."""
    ids, rows = tokenizer.n_ids, model.vocab_size
    if ids is not None and rows < ids:
        what = f"the tokenizer has {ids} ids, the model only {rows} rows for them."
        yield "model.vocab_size", what, f"model.vocab_size={ids}"


@rule("model.vocab_unused", "model.vocab_size", "tokenizer.vocab_size", warning=True)
def vocab_unused(model: Model, tokenizer: Tokenizer) -> Findings:
    """More than half of the embedding rows should belong to some token."""
    ids, rows = tokenizer.n_ids, model.vocab_size
    if ids is not None and rows > 2 * ids:
        what = f"the tokenizer has {ids} ids: {rows - ids} of {rows} rows are never trained."
        other = f", or tokenizer.vocab_size={rows}" if isinstance(tokenizer, BPE) else ""
        yield "model.vocab_size", what, f"model.vocab_size={ids}{other}"


@rule("tokenizer.path")
def tokenizer_path(tokenizer: TokenizerFile) -> Findings:
    """tokenizer=file needs the path of an existing tokenizer.json."""
    path, facts = tokenizer.path, tokenizer.facts()
    what, fix = "", "check the path; it is relative to where you are"
    if not path:
        yield "tokenizer.path", "tokenizer.path=my/tokenizer.json"
    elif os.path.isdir(path):
        what = f"the directory {path} has no {FILE_NAME}."
    elif not os.path.exists(path):
        what = f"there is no file {path}."
    elif isinstance(facts, str):
        what = f"{path} cannot be used: {facts}."
        fix = "one that tokenizer.save() wrote, or that of a transformers model"
    if what:
        yield "tokenizer.path", what, fix


@rule("tokenizer.eos_token", "tokenizer.path", "tokenizer.eos_token")
def eos_token(tokenizer: TokenizerFile) -> Findings:
    """tokenizer.eos_token is a token of the file; null finds one of the usual names."""
    facts = tokenizer.facts()
    if isinstance(facts, Facts) and tokenizer.end_token(facts.tokens) is None:
        yield "tokenizer.eos_token", *tokenizer.no_end_token(facts.added)


@rule("moe.top_k", EXPERTS, TOP_K)
def top_k(model: Decoder) -> Findings:
    """A token goes to model.moe.top_k different experts: at most model.moe.num_experts."""
    top_k, experts = model.moe.top_k, model.moe.num_experts
    if experts and top_k > experts:
        yield TOP_K, f"model.moe.top_k={experts}"


@rule(
    "moe.layers",
    "model.n_layers",
    EXPERTS,
    "model.moe.frequency",
    "model.moe.first_num_dense_layers",
)
def layers(model: Decoder) -> Findings:
    """model.moe.frequency and model.moe.first_num_dense_layers must leave experts in one of
    model.n_layers.
    """
    if model.moe.num_experts and not model.is_moe:
        yield EXPERTS, "model.moe.frequency=1 model.moe.first_num_dense_layers=0"


@rule("moe.groups", EXPERTS, GROUPS)
def groups(model: Decoder) -> Findings:
    """Groups of experts are of equal size: model.moe.num_experts must be divisible by
    model.moe.n_routing_groups.
    """
    experts, groups = model.moe.num_experts, model.moe.n_routing_groups
    if experts % groups:
        yield GROUPS, f"{GROUPS}={_nearest_divisor(experts, groups)}"


@rule("moe.group_choice", EXPERTS, TOP_K, GROUPS, CHOSEN_GROUPS)
def group_choice(model: Decoder) -> Findings:
    """A token chooses model.moe.topk_routing_group of model.moe.n_routing_groups groups, which
    have model.moe.top_k experts or more.
    """
    moe = model.moe
    chosen, groups, experts = moe.topk_routing_group, moe.n_routing_groups, moe.num_experts
    if groups == 1 or not experts or experts % groups or moe.top_k > experts:
        return
    size = experts // groups
    if chosen > groups:
        yield CHOSEN_GROUPS, f"{CHOSEN_GROUPS}={groups}"
    elif chosen * size < moe.top_k:
        yield CHOSEN_GROUPS, f"{CHOSEN_GROUPS}={-(-moe.top_k // size)}"


@rule("moe.bias", "model.bias", EXPERTS)
def bias(model: Decoder) -> Findings:
    """Experts have no biases: model.bias=true needs a dense model."""
    if model.is_moe and model.bias:
        yield "model.bias", "model.bias=false"


@rule(
    "moe.kernel",
    EXPERTS,
    "model.moe.kernel",
    "model.moe.ffn_hidden_dim",
    "model.dim",
    "parallel.tp",
    "parallel.ep",
    "run.device",
    "precision.mixed_precision",
    "train.compile_model",
)
def kernel(
    model: Decoder, parallel: Parallel, precision: Precision, run: Run, train: Train
) -> Findings:
    """model.moe.kernel=grouped needs rows of whole 16 bytes, and bf16 on a GPU or when compiled."""
    if not model.moe.num_experts or model.moe.kernel != "grouped":
        return
    mixed, what = precision.mixed_precision, ""
    gpu, compiled = run.device == "cuda", train.compile_model and parallel.ep == 1
    step, width = 4 if mixed == "fp32" else 8, model.expert_hidden_dim // parallel.tp
    if mixed != "bf16" and (gpu or compiled):
        where = "on a GPU" if gpu else "with train.compile_model"
        what = f"{where} it multiplies bf16 only, and precision.mixed_precision is {mixed}."
    elif model.dim % step or width % step:
        what = f"in {mixed} model.dim ({model.dim}) and the width of an expert on a tp rank"
        what += f" ({width}) must be divisible by {step}."
    if what:
        yield "model.moe.kernel", what, "model.moe.kernel=auto"


@rule(
    "moe.unbalanced",
    EXPERTS,
    TOP_K,
    "model.moe.aux_loss_weight",
    "model.moe.sequence_aux_loss_weight",
    "model.moe.bias_update_rate",
    warning=True,
)
def unbalanced(model: Decoder) -> Findings:
    """The load of experts should be kept even, by a balancing loss or a moving selection bias."""
    moe = model.moe
    balanced = moe.aux_loss_weight or moe.sequence_aux_loss_weight or moe.bias_update_rate
    if moe.top_k < moe.num_experts and not balanced:
        fix = "model.moe.aux_loss_weight=0.01 or model.moe.bias_update_rate=0.001"
        yield "model.moe.aux_loss_weight", fix


@rule("moe.router_gradient", EXPERTS, TOP_K, "model.moe.norm_topk_prob", warning=True)
def router_gradient(model: Decoder) -> Findings:
    """With model.moe.top_k=1 the one weight should not be normalised: it would be 1 whatever the
    router says.
    """
    if model.moe.num_experts and model.moe.top_k == 1 and model.moe.norm_topk_prob:
        yield "model.moe.norm_topk_prob", "model.moe.norm_topk_prob=false"
