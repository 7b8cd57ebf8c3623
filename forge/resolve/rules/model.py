"""Rules on the shape of the model, its sequences and its vocabulary."""

from __future__ import annotations

from forge.config.model.decoder import Decoder
from forge.config.model.hub_folder import FolderDecoder
from forge.config.model.layer import Model
from forge.config.model.mixers.flash_linear import kernels_lack
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet
from forge.config.model.mixers.indexer import indexed
from forge.config.model.mtp import MTP
from forge.config.model.skips.engram import ENGRAM
from forge.config.model.skips.hyper_connections import MHC
from forge.config.objectives.base import Objective
from forge.config.precision import Precision
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.tokenizers.tokenizer import BPE, Tokenizer
from forge.config.train import Train
from forge.planning.world import World

KINDS = ("model.kinds", "model.layers")
ROTATED = (
    *("model.dim", "model.n_heads", "model.head_dim", "model.partial_rotary_factor"),
    *("model.position", "model.rope_type", *KINDS),
)


@rule("train.seq_len", "train.seq_len", "model.max_seq_len")
def seq_len(train: Train, model: Model) -> Findings:
    """train.seq_len must not exceed model.max_seq_len."""
    seq, longest = train.seq_len, model.max_seq_len
    if seq > longest:
        yield "train.seq_len", f"train.seq_len={longest} or model.max_seq_len={seq}"


@rule("model.kinds_unused", *KINDS, warning=True)
def kinds_unused(model: Decoder) -> Findings:
    """Every kind of model.kinds should be one of model.layers."""
    for name in model.kinds:
        if name not in model.layers:
            yield "model.kinds", f"no layer is of the kind {name}.", f"model.layers=[{name}]"


@rule("model.rope_head_dim", *ROTATED)
def rope_head_dim(model: Decoder) -> Findings:
    """Rotary positions rotate pairs: the width of a head that they rotate must be even."""
    for layer_key, layer in model.in_use():
        width = layer.rotary_dim
        if layer.is_rotary and (width % 2 or not width):
            message = f"rotary positions rotate pairs, and the rotated width is {width}."
            yield f"{layer_key}.position", message, f"an even one, or {layer_key}.position=none"
        elif layer.stretches == "dynamic" and width == 2:
            message = (
                "rope_type=dynamic stretches the pairs after the first, and there is one pair."
            )
            yield f"{layer_key}.rope_type", message, f"{layer_key}.rope_type=linear"


@rule("model.sinusoidal", "model.dim", "model.position")
def sinusoidal(model: Decoder) -> Findings:
    """With model.position=sinusoidal half of model.dim are sines and half cosines: it must be
    even.
    """
    if model.position == "sinusoidal" and model.dim % 2:
        yield "model.dim", f"model.dim={model.dim + 1}"


@rule("model.rope_betas", "model.rope_type", "model.beta_fast", "model.beta_slow")
def rope_betas(model: Decoder) -> Findings:
    """A pair that keeps its angles makes no fewer turns than one that is stretched: model.beta_fast
    must be at least model.beta_slow.
    """
    if model.stretches in ("llama3.1", "yarn") and model.beta_fast < model.beta_slow:
        yield "model.beta_fast", f"model.beta_fast={model.beta_slow:g}"


@rule("model.longrope", *ROTATED, "model.rope_short_factor", "model.rope_long_factor")
def longrope(model: Decoder) -> Findings:
    """model.rope_type=longrope has one number for each rotated pair, for short sequences and for
    long ones.
    """
    for layer_key, layer in model.in_use():
        pairs = layer.rotary_dim // 2
        for name in ("rope_short_factor", "rope_long_factor"):
            factors = getattr(layer, name)
            if layer.stretches == "longrope" and (len(factors) != pairs or min(factors) <= 0):
                message = (
                    f"{layer_key}.{name} has {len(factors)} numbers, "
                    f"not {pairs} above 0, one a pair."
                )
                hint = f"{layer_key}.rope_type=default, or {pairs} numbers above 0"
                yield f"{layer_key}.{name}", message, hint


@rule(
    "model.sdpa_backend",
    "model.sdpa_backend",
    "model.n_kv_heads",
    "precision.mixed_precision",
    "run.deterministic",
)
def sdpa_backend(model: Decoder, precision: Precision, run: Run, world: World) -> Findings:
    """The kernel of model.sdpa_backend must take the device, number format and heads of the run."""
    name, reason = model.sdpa_backend, ""
    if name in ("auto", "math"):
        return
    if world.device == "mps":
        reason = "torch has none for an Apple GPU"
    elif world.device == "cpu":
        reason = "torch has none on a CPU" if name != "flash" else ""
    elif name != "efficient" and precision.mixed_precision == "fp32":
        reason = "it takes 16 bits, and precision.mixed_precision is fp32"
    elif name == "efficient" and model.kv_heads != model.n_heads:
        reason = f"it takes as many key heads as heads, not {model.kv_heads} for {model.n_heads}"
    elif name == "cudnn" and run.deterministic:
        reason = "it is not deterministic, and run.deterministic is true"
    if reason:
        yield "model.sdpa_backend", f"the {name} kernel: {reason}.", "model.sdpa_backend=auto"


@rule(
    "model.gdn_kernel",
    "model.mixer",
    *KINDS,
    "run.device",
    "precision.mixed_precision",
)
def gdn_kernel(model: Decoder, precision: Precision, world: World) -> Findings:
    """gdn_kernel=fla must find flash-linear-attention, with kernels for NVIDIA GPUs and 16 bits."""
    for layer_key, layer in model.in_use():
        mixer = layer.mixer
        if not isinstance(mixer, GatedDeltaNet) or mixer.gdn_kernel != "fla":
            continue
        key, alternative = f"{layer_key}.mixer.gdn_kernel", ""
        if world.device != "cuda":
            reason = f"run.device is {world.device}, and they are for an NVIDIA GPU"
        elif precision.mixed_precision == "fp32":
            reason = "precision.mixed_precision is fp32, and they are for 16 bits"
        elif reason := kernels_lack():
            alternative = ", or pip install 'forge-lm[fla]'"
        else:
            continue
        yield key, f"the kernels of flash-linear-attention: {reason}.", f"{key}=auto{alternative}"


@rule(
    "model.gdn_chunks",
    *("model.mixer", *KINDS, "run.device", "precision.mixed_precision"),
    warning=True,
)
def gdn_chunks(model: Decoder, precision: Precision, world: World) -> Findings:
    """On an NVIDIA GPU in 16 bits gated delta nets should have flash-linear-attention's kernels."""
    if world.device != "cuda" or precision.mixed_precision == "fp32" or world.planned:
        return
    for layer_key, layer in model.in_use():
        mixer, key = layer.mixer, f"{layer_key}.mixer.gdn_kernel"
        automatic = isinstance(mixer, GatedDeltaNet) and mixer.gdn_kernel == "auto"
        if automatic and (reason := kernels_lack()):
            message = f"{key}=auto is torch's chunks, many small kernels, without those of"
            other = f"{key}=torch, or pip install 'forge-lm[fla]'"
            yield key, f"{message} flash-linear-attention: {reason}.", other


@rule("model.vocab_size", "model.vocab_size", "tokenizer.vocab_size")
def vocab_size(model: Model, tokenizer: Tokenizer) -> Findings:
    """model.vocab_size must cover every id of the tokenizer."""
    ids, rows = tokenizer.n_ids, model.vocab_size
    if ids is not None and rows < ids:
        message = f"the tokenizer has {ids} ids, the model only {rows} rows for them."
        hint = f"model.vocab_size={ids}"
        if isinstance(model, FolderDecoder):
            hint = "model.grow_vocab=true, which adds rows to those of the folder"
        yield "model.vocab_size", message, hint


@rule("model.vocab_unused", "model.vocab_size", "tokenizer.vocab_size", warning=True)
def vocab_unused(model: Model, tokenizer: Tokenizer) -> Findings:
    """More than half of the embedding rows should belong to some token."""
    ids, rows = tokenizer.n_ids, model.vocab_size
    if ids is not None and rows > 2 * ids:
        message = f"the tokenizer has {ids} ids: {rows - ids} of {rows} rows are never trained."
        other = f", or tokenizer.vocab_size={rows}" if isinstance(tokenizer, BPE) else ""
        yield "model.vocab_size", message, f"model.vocab_size={ids}{other}"


@rule(
    MHC,
    *(MHC, "model.norm_placement", "model.norm_type", "model.norm_eps", *KINDS),
    *("model.residual_scalars", "model.x0_scalars", "model.backout", MTP),
)
def hyper_connections(model: Decoder) -> Findings:
    """With model.mhc_expansion_rate above 1 layers begin with an RMSNorm, and nothing else goes
    around them.
    """
    if model.mhc_expansion_rate == 1:
        return
    for path, layer in model.in_use():
        if layer.norm_placement != "pre" or layer.norm_type != "rmsnorm":
            message = f"{path} has norms that its streams cannot do without: of sums of them."
            hint = f"{path}.norm_placement=pre {path}.norm_type=rmsnorm, or {MHC}=1"
            yield f"{path}.norm_placement", message, hint
        if layer.norm_eps is None:
            message = f"{path}.norm_eps=null: the norm of all streams has no format of its own."
            yield f"{path}.norm_eps", message, f"{path}.norm_eps=1e-6, or {MHC}=1"
    for option in ("residual_scalars", "x0_scalars", "backout", "mtp_num_layers"):
        if getattr(model, option):
            message = f"model.{option} reads one stream, and there are {model.mhc_expansion_rate}."
            off = 0 if option == "mtp_num_layers" else "false"
            yield f"model.{option}", message, f"model.{option}={off}, or {MHC}=1"


@rule(ENGRAM, ENGRAM, "model.n_layers", "model.engram_vocab_bases", "model.engram_max_ngram_size")
def engram(model: Decoder) -> Findings:
    """model.engram_layers are different layers of the model, with one of model.engram_vocab_bases
    for each length of n-grams.
    """
    layers, bases = model.engram_layers, model.engram_vocab_bases
    if not layers:
        return
    if len(set(layers)) < len(layers) or max(layers) >= model.n_layers:
        message = f"{ENGRAM}={list(layers)} are not {len(layers)} of layers 0 to "
        inside = sorted({min(layer, model.n_layers - 1) for layer in layers})
        yield ENGRAM, f"{message}{model.n_layers - 1}.", f"{ENGRAM}={inside}".replace(" ", "")
    orders = model.engram_max_ngram_size - 1
    if len(bases) != orders:
        key = "model.engram_vocab_bases"
        message = f"{key} has {len(bases)} entries for n-grams of {orders} lengths, 2 and longer."
        rows = ",".join(str(5 * model.vocab_size) for _ in range(orders))
        yield key, message, f"{key}=[{rows}]"


@rule("model.mtp_trained", MTP, "objective", "objective.mtp_loss_scaling_factor")
def mtp_trained(model: Decoder, objective: Objective) -> Findings:
    """The modules of model.mtp_num_layers are trained by objectives of the next token, with
    objective.mtp_loss_scaling_factor above 0.
    """
    if not model.mtp_num_layers or getattr(objective, "mtp_loss_scaling_factor", 0) > 0:
        return
    name = objective.schema_name
    if hasattr(objective, "mtp_loss_scaling_factor"):
        message = "objective.mtp_loss_scaling_factor=0 trains no module for a further token."
        yield MTP, message, f"objective.mtp_loss_scaling_factor=0.1, or {MTP}=0"
    else:
        yield MTP, f"objective={name} trains no module for a further token.", f"{MTP}=0"


@rule("model.mtp_block", MTP, "model.mixer", *KINDS, "model.smear")
def mtp_block(model: Decoder) -> Findings:
    """Modules of model.mtp_num_layers repeat the last block: attention and a feed-forward layer,
    with no ways around layers.
    """
    if not model.mtp_num_layers:
        return
    last = model.of_kind(model.repeated_kind.name)
    if last.mixer.recurrent or last.feed_forward.absent:
        message = "the last block has no attention, or no feed-forward layer, to repeat."
        yield MTP, message, f"{MTP}=0"
    elif model.has_skips:
        yield MTP, "the modules would need what goes around the layers.", f"{MTP}=0"


@rule("model.indexer", "model.mixer", *KINDS)
def indexer(model: Decoder) -> Findings:
    """An indexer reads the latent of queries, has heads at least as wide as what is rotated, and
    chooses among all earlier keys.
    """
    for path, layer, mixer in indexed(model):
        key = f"{path}.mixer.use_indexer"
        width, wanted = mixer.indexer_head_dim, layer.rotary_dim
        if not getattr(mixer, "q_lora_rank", 0):
            yield key, "there is no latent of queries to read.", f"{path}.mixer.q_lora_rank=1536"
        if layer.is_rotary and width < wanted:
            narrow = f"{path}.mixer.indexer_head_dim"
            message = f"{narrow} ({width}) must be at least the rotated width ({wanted})."
            yield narrow, message, f"{narrow}={wanted}"
        for option in ("sliding_window_size", "chunk_attn_window_size", "attn_logits_soft_cap"):
            if getattr(layer, option):
                message = "an indexer chooses among all earlier keys, by scores without a cap."
                yield f"{path}.{option}", message, f"{path}.{option}=0"


@rule("model.indexer_trained", "model.mixer", *KINDS, warning=True)
def indexer_trained(model: Decoder, train: Train) -> Findings:
    """An indexer should be used or learn, and leave out some keys of train.seq_len."""
    for path, _, mixer in indexed(model):
        key = f"{path}.mixer"
        if mixer.indexer_shared:
            continue
        if not mixer.chooses and not mixer.learns_to_choose:
            message = "nothing reads this indexer, and it learns nothing."
            hint = f"{key}.indexer_sparse_training=true or {key}.indexer_loss_scaling_factor=1"
            yield f"{key}.use_indexer", message, hint
        elif mixer.chooses and mixer.indexer_topk >= train.seq_len:
            topk, seq = mixer.indexer_topk, train.seq_len
            message = f"{topk} keys are chosen of at most {seq}: no key is ever left out."
            added = "" if path == "model" else "++"  # a kind may not state it
            hint = f"{added}{key}.indexer_topk={max(seq // 4, 1)}"
            yield f"{key}.indexer_topk", message, hint
