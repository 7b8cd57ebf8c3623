"""Derivations of what follows from the size of a model, by `scaling`."""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.problems import Problem
from forge.config.root import Config
from forge.config.rule import Derived, derivation
from forge.config.scaling.base import Scaling, Settings

SHAPE = (
    "model.head_dim",
    "model.n_layers",
    "model.dim",
    "model.n_heads",
    "model.n_kv_heads",
    "model.ffn_hidden_dim",
    "model.max_seq_len",
    "model.moe.ffn_hidden_dim",
    "train.seq_len",
)
RATES = (
    "model.init_std",
    "model.init_std_tables",
    "model.init_scale_residual",
    "model.logits_multiplier",
    "model.residual_multiplier",
    "model.query_scale",
    "train.global_batch_tokens",
    "train.global_batch_size",
    "train.max_steps",
    "train.max_tokens",
    "train.tokens_per_parameter",
    "optimizer",
    "scheduler.warmup_steps",
    "scaling.scale_rates",
)


@derivation("scaling", writes=(*SHAPE, "scaling"))
def scaled_shape(config: Config, scaling: Scaling) -> Iterator[Derived | Problem]:
    """Widths and numbers of layers and heads, of `scaling`."""
    if not scaling.applied:
        settings = Settings(config)
        scaling.shape(settings)
        yield from settings.problems or settings.steps


@derivation("scaling", writes=RATES)
def scaled_rates(config: Config, scaling: Scaling) -> Iterator[Derived | Problem]:
    """Batch, steps, learning rates and weight decay, of `scaling` and the model's parameters."""
    if not scaling.applied:
        settings = Settings(config)
        scaling.rates(settings)
        scaling.set_applied()
        yield from settings.problems or settings.steps
