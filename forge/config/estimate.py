"""Memory of one device, estimated from the config alone."""

from __future__ import annotations

from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.optimizer import AdamW
from forge.config.root import Config

AUTO_CHUNK_BYTES = 64 << 20


def memory_by_part(config: Config) -> dict[str, int]:
    """Bytes of one device at the end of forward, by part; empty for a model this knows nothing about.

    Weights, gradients and optimizer state are exact. Activations are what autograd keeps of each block
    (arXiv:2205.05198, with fused attention and without dropout), plus the logits and their gradient.
    """
    model = config.model
    if not isinstance(model, Decoder):
        return {}
    params = model.num_params_estimate
    parts = {"weights (fp32)": 4 * params, "gradients (fp32)": 4 * params}
    if isinstance(config.optimizer, AdamW):
        parts["optimizer state (fp32)"] = 8 * params
    width = 4 if config.precision.mixed_precision == "fp32" else 2
    if width == 2:
        parts["weights (16 bit copies)"] = 2 * (params - model.params_by_part()["norms"])
    tokens = config.train.batch_size * config.train.seq_len
    parts["activations"] = tokens * model.n_layers * _kept_per_token(model, config.train.activation_checkpointing, width)
    parts["logits"] = _logits(config, tokens)
    return parts


def _kept_per_token(model: Decoder, recompute: str, width: int) -> int:
    """Bytes that one block keeps of one token until its backward pass."""
    if recompute == "full":
        return model.dim * width
    q, kv, ffn = model.n_heads * model.head_dim, model.kv_heads * model.head_dim, model.computed_ffn_hidden_dim
    matmuls = q + 2 * kv + q + model.dim + ffn * (2 if model.is_gated else 1) + model.dim
    if recompute == "selective":
        return (model.dim + matmuls) * width
    rotated = q + kv if model.position == "rope" else 0
    pointwise = 2 * model.dim + rotated + ffn * (2 if model.is_gated else 1)
    return (2 * model.dim + matmuls + pointwise) * width


def _logits(config: Config, tokens: int) -> int:
    objective, vocab = config.objective, config.model.vocab_size
    if isinstance(objective, Pretrain) and objective.loss_fn == "chunked_cross_entropy":
        rows = objective.ce_chunk_size or min(4096, max(AUTO_CHUNK_BYTES // (4 * vocab), 1))
        return 2 * 4 * vocab * min(rows, tokens)
    return 2 * 4 * vocab * tokens
