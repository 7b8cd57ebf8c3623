"""Memory of writing completions: the cache of rollouts."""

from __future__ import annotations

from forge.config.model.activations import FP32
from forge.config.model.decoder import Decoder
from forge.config.objectives.distill import Distill
from forge.config.rollouts.rollout import SPARE_PLACES, LocalRollout
from forge.config.root import Config
from forge.planning.shares import Share


def completion_bytes(config: Config, model: Decoder, share: Share, width: int) -> dict[str, int]:
    """Bytes by part of a rank that writes `rollout.batch_size` rows, or with objective.lmbda
    train.batch_size; empty without.

    width: bytes of a value of the cache. Each row has room for train.seq_len tokens, and its prompt
    is kept for the other completions of its group. Caches with windows and states need less.
    """
    rollout, tp, objective = config.rollout, config.parallel.tp, config.objective
    if isinstance(objective, Distill) and objective.lmbda:
        rollout = LocalRollout(
            max_new_tokens=objective.max_new_tokens, batch_size=config.train.batch_size
        )
    if not isinstance(rollout, LocalRollout):
        return {}
    layers = [model.of_kind(model.kind_of(layer).name) for layer in share.layers]
    token = width * sum(layer.mixer.cached(layer, tp) for layer in layers)
    rows = min(rollout.batch_size, config.train.global_batch_size or rollout.batch_size)
    prompt = max(config.train.seq_len - rollout.max_new_tokens, 0)
    return {
        "cache of completions": rows * (config.train.seq_len + SPARE_PLACES) * token,
        "cache of prompts": rows * prompt * token,
        "logits of a token": 2 * FP32 * rows * int(model.vocab_size),
    }
