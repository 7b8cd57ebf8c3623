"""Memory of one device, estimated from the config alone."""

from __future__ import annotations

from dataclasses import dataclass

from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.optimizer import AdamW
from forge.config.parallel import V_SCHEDULE, Parallel
from forge.config.root import Config
from forge.plan.layout import sequences_of_rank
from forge.plan.memory_moe import (
    Mixture,
    experts_kept,
    experts_kept_around,
    experts_products,
    feed_forward_kept,
    feed_forward_products,
    rows_of_token,
)
from forge.plan.memory_share import Share, shares

FP32 = 4
MAX_CHUNK_TOKENS, CHUNK_BYTES = 4096, 64 << 20
LAYERS = "layers"
"""Selective recompute of a block's layers, and not of what is around them:
`forge.parallel.activation_checkpoint`.
"""


@dataclass(frozen=True, kw_only=True)
class Formats:
    """Bytes of a number in matrix products, and of hidden states between layers; whether one kernel
    makes a norm.
    """

    width: int
    residual: int
    fused_norm: bool


STATE = ("weights (fp32)", "gradients (fp32)", "optimizer state (fp32)")
"""What is exact, and there all the time."""


def memory_by_part(config: Config) -> dict[str, int]:
    """Bytes of one device, by part, that which needs most; empty for a model this knows nothing
    about.

    On one device weights, gradients and optimizer state are exact. Activations are what autograd
    holds after the forward pass of uncompiled blocks with fused attention (as arXiv:2205.05198,
    section 4, but counted by operation); logits are the most that the loss holds at once. All at
    the same time is an upper bound: gradients grow as activations go.

    On several, weights and what belongs to them are cut by tp, pp and, of experts, ep, and sharded
    by FSDP, which gathers them block by block, and whole under a pipeline; gradients of several
    backward passes add up before they are reduced. Tokens are cut by cp, and between layers by
    sequence parallelism. Experts are taken to have equal numbers of tokens, and stages of blocks.
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
    gathered = several or width == 2  # FSDP makes what is multiplied, in 16 bits on one device too
    sharded = 0 if parallel.cpu_offload and gathered else share.sharded(parallel)
    parts = {"weights (fp32)": FP32 * sharded, "gradients (fp32)": FP32 * sharded}
    if isinstance(config.optimizer, AdamW):
        parts["optimizer state (fp32)"] = 2 * FP32 * sharded
    if gathered:
        passes = max(
            train.grad_accum_steps, parallel.pp_microbatches or 1 if parallel.pp > 1 else 1
        )
        at_once = share.outside_at_once + share.two_blocks  # a block, and the next one on its way
        stays = parallel.pp > 1 or parallel.reshard_after_forward == "never"
        add_up = passes > 1 and (parallel.pp > 1 or parallel.reduce_gradients == "step")
        parts["gathered weights"] = width * (share.parameters if stays else at_once)
        parts["unreduced gradients (fp32)"] = FP32 * (share.parameters if add_up else at_once)
    sequences, in_flight = train.batch_size, 1.0
    if parallel.pp > 1:
        parts_of_step = parallel.pp_microbatches or 1
        sequences = -(-sequences_of_rank(config) // parts_of_step)
        in_flight = _in_flight(parallel, parts_of_step) if share.first else 1.0
    tokens = sequences * train.seq_len // parallel.cp
    formats = Formats(
        width=width,
        residual=2 if width == 2 and config.precision.residual_dtype != "fp32" else FP32,
        fused_norm=config.run.device == "cuda",
    )
    recomputed = -(-share.layers // max(train.recompute_every, 1))
    mixture = Mixture(
        share=share.moe_layers / share.layers,
        rows=rows_of_token(config, model, sequences),
        exchanged=parallel.ep > 1,
    )
    mode = (
        LAYERS
        if train.activation_checkpointing == "selective" and mixture.exchanged
        else train.activation_checkpointing
    )
    kept = recomputed * _kept_per_token(model, parallel, mixture, mode, formats)
    kept += (share.layers - recomputed) * _kept_per_token(model, parallel, mixture, "none", formats)
    final = _norm(model, model.dim, formats.residual, formats) + width * model.dim
    parts["activations"] = tokens * (round(in_flight * kept) + (final if share.last else 0))
    if share.last:
        parts["logits"] = _logits(config, tokens, width)
    return parts


def _in_flight(parallel: Parallel, parts_of_step: int) -> float:
    """Micro-batches whose activations the first rank holds at once: all of gpipe, as many as ranks,
    or some more when stages loop.
    """
    pp, stages = parallel.pp, parallel.pp_stages_per_rank or 1
    if parallel.pp_schedule == "gpipe":
        return parts_of_step
    if parallel.pp_schedule in ("1f1b", V_SCHEDULE):
        return min(pp, parts_of_step)
    return min(((stages - 1) * pp + 2 * pp - 1) / stages, parts_of_step)


def _kept_per_token(
    model: Decoder, parallel: Parallel, mixture: Mixture, recompute: str, formats: Formats
) -> float:
    """Bytes that one block keeps of one token until its backward pass; the mean, where some blocks
    have experts.

    Heads and feed-forward width are cut by tp; what enters the two layers is gathered and kept
    whole.
    """
    tp, cut, width = parallel.tp, parallel.tp if parallel.sequence_parallel else 1, formats.width
    residual = formats.residual * model.dim // cut
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
    kept = 2 * _norm(model, model.dim, formats.residual, formats) // cut
    if recompute == LAYERS:
        kept += width * model.dim + width * (q + 2 * kv + model.dim) + attention
        kept += (width * model.dim + feed_forward_products(model, ffn, width)) * (1 - mixture.share)
        return kept + experts_kept_around(model, mixture, expert_ffn, width) * mixture.share
    kept += width * model.dim
    kept += width * (q + 2 * kv) + attention
    if model.qk_norm:  # a head at a time
        kept += (heads + kv_heads) * _norm(model, model.head_dim, width, formats, rms=True)
    kept += feed_forward_kept(model, ffn, width) * (1 - mixture.share)
    return kept + experts_kept(model, mixture, expert_ffn, width) * mixture.share


def _norm(model: Decoder, dim: int, width: int, formats: Formats, *, rms: bool = False) -> int:
    """Bytes that a norm keeps of an input of that width.

    LayerNorm keeps it, the mean and the deviation; RMSNorm it and the root, or, where no kernel
    fuses it (CPU), an fp32 copy and the ratio.
    """
    if model.norm_type == "layernorm" and not rms:
        return width * dim + 2 * FP32
    return FP32 + (width * dim if formats.fused_norm else 2 * FP32 * dim)


def _logits(config: Config, tokens: int, width: int) -> int:
    """Bytes of the loss at its peak.

    Whole logits: the log-softmax, its gradient and the gradient that it is made from; two more with
    z-loss. Chunked: those of one chunk, in 16 bits their gradient too, and the gradients of hidden
    states and output head, which it makes in forward. With loss parallel a rank has its part of the
    vocabulary.
    """
    objective, parallel, dim = config.objective, config.parallel, getattr(config.model, "dim", 0)
    vocab = -(-config.model.vocab_size // (parallel.tp if parallel.loss_parallel else 1))
    if isinstance(objective, Pretrain) and objective.loss_fn == "chunked_cross_entropy":
        rows = objective.ce_chunk_size or max(
            1, min(MAX_CHUNK_TOKENS, max(dim, CHUNK_BYTES // (FP32 * vocab)))
        )
        chunk = vocab * min(rows, tokens) * (FP32 + (width if width == 2 else 0))
        return chunk + FP32 * dim * (tokens + vocab)
    copies = 5 if isinstance(objective, Pretrain) and objective.z_loss_weight else 3
    return copies * FP32 * vocab * tokens
