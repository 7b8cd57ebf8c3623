"""Memory of one device, estimated from the config alone."""

from __future__ import annotations

from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.optimizer import AdamW
from forge.config.root import Config

FP32 = 4
MAX_CHUNK_TOKENS, CHUNK_BYTES = 4096, 64 << 20


def memory_by_part(config: Config) -> dict[str, int]:
    """Bytes of one device, by part; empty for a model this knows nothing about.

    Weights, gradients and optimizer state are exact. Activations are what autograd holds after the forward pass of
    uncompiled blocks with fused attention (as arXiv:2205.05198, section 4, but counted by operation); logits are the
    most that the loss holds at once. All at the same time is an upper bound: gradients grow as activations go.
    """
    model = config.model
    if not isinstance(model, Decoder):
        return {}
    params = model.num_params_estimate
    parts = {"weights (fp32)": FP32 * params, "gradients (fp32)": FP32 * params}
    if isinstance(config.optimizer, AdamW):
        parts["optimizer state (fp32)"] = 2 * FP32 * params
    width = FP32 if config.precision.mixed_precision == "fp32" else 2
    if width == 2:
        parts["weights (16 bit copies)"] = 2 * _multiplied_weights(model)
    tokens = config.train.batch_size * config.train.seq_len
    fused_norm = config.run.device == "cuda"
    kept = _kept_per_token(model, config.train.activation_checkpointing, width, fused_norm)
    final = FP32 * model.dim + _norm(model, model.dim, fused_norm) + width * model.dim
    parts["activations"] = tokens * (model.n_layers * kept + final)
    parts["logits"] = _logits(config, tokens, width)
    return parts


def _multiplied_weights(model: Decoder) -> int:
    """Weights and biases of linear layers, which autocast copies; an embedding table only as the output head."""
    parts = model.params_by_part()
    qk_norms = 2 * model.n_layers * model.head_dim if model.qk_norm else 0
    return parts["attention"] - qk_norms + parts["feed-forward"] + model.vocab_size * model.dim


def _kept_per_token(model: Decoder, recompute: str, width: int, fused_norm: bool) -> int:
    """Bytes that one block keeps of one token until its backward pass.

    The residual stream and what the norms work on are fp32 under autocast too: their weights are, and so are the embeddings.
    """
    residual = FP32 * model.dim
    if recompute == "full":
        return residual
    q, kv, ffn = model.n_heads * model.head_dim, model.kv_heads * model.head_dim, model.computed_ffn_hidden_dim
    attention = width * q + FP32 * model.n_heads  # its output, and the log-partition of each head
    if recompute == "selective":
        products = q + 2 * kv + model.dim + ffn * (2 if model.is_gated else 1) + model.dim
        return residual + width * products + attention
    kept = 2 * (residual + _norm(model, model.dim, fused_norm)) + _linear_inputs(model, width)
    kept += width * (q + 2 * kv) + attention
    if model.qk_norm:  # on fp32 copies of queries and keys, a head at a time
        kept += FP32 * (q + kv) + (model.n_heads + model.kv_heads) * _norm(model, model.head_dim, fused_norm, rms=True)
    return kept + width * ffn * _ffn_copies(model)


def _norm(model: Decoder, dim: int, fused: bool, *, rms: bool = False) -> int:
    """Bytes beside input and output: LayerNorm keeps mean and deviation; RMSNorm the root, and the ratio where no kernel fuses it (CPU)."""
    if model.norm_type == "layernorm" and not rms:
        return 2 * FP32
    return FP32 + (0 if fused else FP32 * dim)


def _linear_inputs(model: Decoder, width: int) -> int:
    """Bytes of the normalised inputs: in fp32 one copy for all layers that read it, in 16 bits autocast makes one each."""
    copies = 2 if width == FP32 else 3 + (2 if model.is_gated else 1)
    return width * model.dim * copies


def _ffn_copies(model: Decoder) -> int:
    """Tensors as wide as the feed-forward layer: what the activation reads and writes (ReLU only what it writes), and gate and product."""
    return (1 if model.activation == "relu" else 2) + (2 if model.is_gated else 0)


def _logits(config: Config, tokens: int, width: int) -> int:
    """Bytes of the loss at its peak.

    Whole logits: the log-softmax, its gradient and the gradient that it is made from; two more with z-loss. Chunked: those of one
    chunk, in 16 bits their gradient too, and the gradients of hidden states and output head, which it makes in forward.
    """
    objective, vocab, dim = config.objective, config.model.vocab_size, getattr(config.model, "dim", 0)
    if isinstance(objective, Pretrain) and objective.loss_fn == "chunked_cross_entropy":
        rows = objective.ce_chunk_size or max(1, min(MAX_CHUNK_TOKENS, max(dim, CHUNK_BYTES // (FP32 * vocab))))
        chunk = vocab * min(rows, tokens) * (FP32 + (width if width == 2 else 0))
        return chunk + FP32 * dim * (tokens + vocab)
    copies = 5 if isinstance(objective, Pretrain) and objective.z_loss_weight else 3
    return copies * FP32 * vocab * tokens
