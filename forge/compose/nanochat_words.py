"""Learning rates and the warm-down as nanochat's users type them, as lines of our presets."""

from __future__ import annotations

from omegaconf import DictConfig

from forge.compose.tree import node_at

OPTIMIZER = ("optimizer=nanochat", "optimizer.groups.value_embedding")
SCHEDULER = ("scheduler=nanochat", "scheduler.decay_ratio")
RATES = {
    "matrix_lr": (OPTIMIZER, {"optimizer.lr": 1.0}),
    "unembedding_lr": (OPTIMIZER, {"optimizer.groups.head.lr": 1.0}),
    "embedding_lr": (
        OPTIMIZER,
        {"optimizer.groups.embedding.lr": 1.0, "optimizer.groups.value_embedding.lr": 0.5},
    ),
    "scalar_lr": (
        OPTIMIZER,
        {"optimizer.groups.x0_scalar.lr": 1.0, "optimizer.groups.residual_scalar.lr": 0.01},
    ),
    "warmdown_ratio": (SCHEDULER, {"scheduler.decay_ratio": 1.0}),
}
"""By word the preset and a key that it alone has, and our keys with their share of the value."""


def in_our_keys(word: str, value: str, tree: DictConfig) -> str:
    """The line of overrides for a word with its value; empty for another word or no number."""
    try:
        (preset, sign), shares = RATES[word]
        number = float(value)
    except (KeyError, ValueError):
        return ""
    overrides = [f"{key}={number * share:g}" for key, share in shares.items()]
    in_force = node_at(tree, sign) is not None
    return " ".join(overrides if in_force else [preset, *overrides])
