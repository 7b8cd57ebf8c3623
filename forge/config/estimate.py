"""Memory of one device, estimated from the config alone."""

from __future__ import annotations

from forge.config.derive_layout import sequences_of_rank
from forge.config.estimate_moe import (
    Mixture,
    experts_kept,
    experts_kept_around,
    experts_products,
    feed_forward_kept,
    feed_forward_products,
    rows_of_token,
)
from forge.config.estimate_share import IN_BLOCKS, Share, shares
from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.optimizer import AdamW
from forge.config.parallel import V_SCHEDULE, Parallel
from forge.config.root import Config

FP32 = 4
MAX_CHUNK_TOKENS, CHUNK_BYTES = 4096, 64 << 20
LAYERS = "layers"
"""Selective recompute of a block's layers, and not of what is around them: `forge.parallel.activation_checkpoint`."""

STATE = ("weights (fp32)", "gradients (fp32)", "optimizer state (fp32)")
"""What is exact, and there all the time."""


def memory_by_part(config: Config) -> dict[str, int]:
    """Bytes of one device, by part, that which needs most; empty for a model this knows nothing about.

    On one device weights, gradients and optimizer state are exact. Activations are what autograd holds after the forward pass of
    uncompiled blocks with fused attention (as arXiv:2205.05198, section 4, but counted by operation); logits are the
    most that the loss holds at once. All at the same time is an upper bound: gradients grow as activations go.

    On several, weights and what belongs to them are cut by tp, pp and, of experts, ep, and sharded by FSDP, which gathers them block
    by block, and whole under a pipeline; gradients of several backward passes add up before they are reduced. Tokens are cut by cp,
    and between layers by sequence parallelism. Experts are taken to have equal numbers of tokens, and stages of blocks.
    """
    model = config.model
    if not isinstance(model, Decoder):
        return {}
    ranks = [_of_rank(config, model, share) for share in shares(model, config.parallel)]
    return max(ranks, key=lambda parts: sum(parts.values()))


def _of_rank(config: Config, model: Decoder, share: Share) -> dict[str, int]:
    train, parallel = config.train, config.parallel
    width = FP32 if config.precision.mixed_precision == "fp32" else 2
    several = parallel.fsdp * parallel.dp_replicate * parallel.tp * parallel.pp > 1
    sharded = 0 if parallel.cpu_offload and several else share.sharded(parallel)
    parts = {"weights (fp32)": FP32 * sharded, "gradients (fp32)": FP32 * sharded}
    if isinstance(config.optimizer, AdamW):
        parts["optimizer state (fp32)"] = 2 * FP32 * sharded
    if several:
        passes = max(train.grad_accum_steps, parallel.pp_microbatches or 1 if parallel.pp > 1 else 1)
        at_once = share.outside + share.two_blocks  # a block, and the next one on its way
        stays = parallel.pp > 1 or parallel.reshard_after_forward == "never"
        parts["gathered weights"] = width * (share.parameters if stays else at_once)
        parts["unreduced gradients (fp32)"] = FP32 * (share.parameters if passes > 1 else at_once)
    elif width == 2:
        parts["weights (16 bit copies)"] = 2 * _multiplied_weights(model)
    sequences, in_flight = train.batch_size, 1.0
    if parallel.pp > 1:
        parts_of_step = parallel.pp_microbatches or 1
        sequences = -(-sequences_of_rank(config) // parts_of_step)
        in_flight = _in_flight(parallel, parts_of_step) if share.first else 1.0
    tokens = sequences * train.seq_len // parallel.cp
    fused_norm = config.run.device == "cuda"
    recomputed = -(-share.layers // max(train.recompute_every, 1))
    mixture = Mixture(share=share.moe_layers / share.layers, rows=rows_of_token(config, model, sequences), exchanged=parallel.ep > 1)
    mode = LAYERS if train.activation_checkpointing == "selective" and mixture.exchanged else train.activation_checkpointing
    kept = recomputed * _kept_per_token(model, parallel, mixture, mode, width, fused_norm)
    kept += (share.layers - recomputed) * _kept_per_token(model, parallel, mixture, "none", width, fused_norm)
    final = FP32 * model.dim + _norm(model, model.dim, fused_norm) + width * model.dim
    parts["activations"] = tokens * (round(in_flight * kept) + (final if share.last else 0))
    if share.last:
        parts["logits"] = _logits(config, tokens, width)
    return parts


def _in_flight(parallel: Parallel, parts_of_step: int) -> float:
    """Micro-batches whose activations the first rank holds at once: all of gpipe, as many as ranks, or some more when stages loop."""
    pp, stages = parallel.pp, parallel.pp_stages_per_rank or 1
    if parallel.pp_schedule == "gpipe":
        return parts_of_step
    if parallel.pp_schedule in ("1f1b", V_SCHEDULE):
        return min(pp, parts_of_step)
    return min(((stages - 1) * pp + 2 * pp - 1) / stages, parts_of_step)


def _multiplied_weights(model: Decoder) -> int:
    """Weights and biases of linear layers, which autocast copies; an embedding table only as the output head."""
    parts = model.params_by_part()
    not_copied = 2 * model.n_layers * model.head_dim if model.qk_norm else 0
    not_copied += parts.get("routers", 0) if model.moe.float32_gate_logits else 0
    return sum(parts.get(name, 0) for name in IN_BLOCKS) - not_copied + model.vocab_size * model.dim


def _kept_per_token(model: Decoder, parallel: Parallel, mixture: Mixture, recompute: str, width: int, fused_norm: bool) -> float:
    """Bytes that one block keeps of one token until its backward pass; the mean, where some blocks have experts.

    The residual stream and what the norms work on are fp32 under autocast too: their weights are, and so are the embeddings.
    Heads and feed-forward width are cut by tp; what enters the two layers is gathered and kept whole.
    """
    tp, cut = parallel.tp, parallel.tp if parallel.sequence_parallel else 1
    residual = FP32 * model.dim // cut
    if recompute == "full":
        return residual
    heads, kv_heads = -(-model.n_heads // tp), -(-model.kv_heads // tp)
    q, kv = heads * model.head_dim, kv_heads * model.head_dim
    ffn, expert_ffn = -(-model.computed_ffn_hidden_dim // tp), -(-model.expert_hidden_dim // tp)
    attention = width * q + FP32 * heads  # its output, and the log-partition of each head
    if recompute == "selective":
        products = feed_forward_products(model, ffn, width) * (1 - mixture.share)
        products += experts_products(model, expert_ffn, width) * mixture.share
        return residual + width * (q + 2 * kv + model.dim) + attention + products
    kept = 2 * (residual + _norm(model, model.dim, fused_norm) // cut)
    if recompute == LAYERS:
        kept += FP32 * model.dim + width * (q + 2 * kv + model.dim) + attention
        kept += (FP32 * model.dim + feed_forward_products(model, ffn, width)) * (1 - mixture.share)
        return kept + experts_kept_around(model, mixture, expert_ffn, width) * mixture.share
    kept += width * model.dim * (1 if width == FP32 else 3)
    kept += width * (q + 2 * kv) + attention
    if model.qk_norm:  # on fp32 copies of queries and keys, a head at a time
        kept += FP32 * (q + kv) + (heads + kv_heads) * _norm(model, model.head_dim, fused_norm, rms=True)
    kept += feed_forward_kept(model, ffn, width) * (1 - mixture.share)
    return kept + experts_kept(model, mixture, expert_ffn, width) * mixture.share


def _norm(model: Decoder, dim: int, fused: bool, *, rms: bool = False) -> int:
    """Bytes beside input and output: LayerNorm keeps mean and deviation; RMSNorm the root, and the ratio where no kernel fuses it (CPU)."""
    if model.norm_type == "layernorm" and not rms:
        return 2 * FP32
    return FP32 + (0 if fused else FP32 * dim)


def _logits(config: Config, tokens: int, width: int) -> int:
    """Bytes of the loss at its peak.

    Whole logits: the log-softmax, its gradient and the gradient that it is made from; two more with z-loss. Chunked: those of one
    chunk, in 16 bits their gradient too, and the gradients of hidden states and output head, which it makes in forward. With loss
    parallel a rank has its part of the vocabulary.
    """
    objective, parallel, dim = config.objective, config.parallel, getattr(config.model, "dim", 0)
    vocab = -(-config.model.vocab_size // (parallel.tp if parallel.loss_parallel else 1))
    if isinstance(objective, Pretrain) and objective.loss_fn == "chunked_cross_entropy":
        rows = objective.ce_chunk_size or max(1, min(MAX_CHUNK_TOKENS, max(dim, CHUNK_BYTES // (FP32 * vocab))))
        chunk = vocab * min(rows, tokens) * (FP32 + (width if width == 2 else 0))
        return chunk + FP32 * dim * (tokens + vocab)
    copies = 5 if isinstance(objective, Pretrain) and objective.z_loss_weight else 3
    return copies * FP32 * vocab * tokens
