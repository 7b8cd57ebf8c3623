"""The `objective` group: what is minimised."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import MISSING

from forge.config.field import Condition, Section, opt

CHUNKED = Condition(
    lambda config, ranks: config.objective.loss_fn == "chunked_cross_entropy",
    "with objective.loss_fn=cross_entropy",
)


@dataclass(kw_only=True)
class Objective(Section):
    """Base of every objective section."""

    _target_: str = MISSING


@dataclass(kw_only=True)
class Pretrain(Objective):
    """Next-token prediction over every target that is not masked."""

    _target_: str = "forge.objectives.pretrain.Pretrain"
    loss_fn: str = opt(
        "cross_entropy",
        "chunked_cross_entropy never holds all logits at once",
        choices=("cross_entropy", "chunked_cross_entropy"),
    )
    z_loss_weight: float = opt(0.0, "weight of the z-loss (PaLM uses 1e-4); 0 = off", ge=0)
    ce_chunk_size: int = opt(
        0, "tokens a chunk; 0 = at most 4096, by the vocabulary", ge=0, acts_when=CHUNKED
    )
