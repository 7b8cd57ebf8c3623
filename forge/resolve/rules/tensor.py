"""Rules on tensor parallelism: what its degree must divide, and how the loss is made.

The fix that a rule gives is another than a smaller degree, which `forge.resolve.causes` finds.
"""

from __future__ import annotations

from collections.abc import Iterator

from forge.config.model import Decoder
from forge.config.objective import Pretrain
from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Finding, rule


@rule("parallel.tp_heads", reads=("parallel.tp", "model.n_heads"))
def tp_heads(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts attention by heads: model.n_heads must be divisible by parallel.tp."""
    model, tp = config.model, config.parallel.tp
    if isinstance(model, Decoder) and model.n_heads % tp:
        what = f"model.n_heads ({model.n_heads}) must be divisible by parallel.tp ({tp})."
        yield f"parallel.tp={tp}", what, ""


@rule("parallel.tp_kv_heads", reads=("parallel.tp", "model.n_heads", "model.n_kv_heads"))
def tp_kv_heads(config: Config, world: World) -> Iterator[Finding]:
    """Each rank has its own key/value heads, or shares one with others: model.n_kv_heads divides by
    parallel.tp, or tp by it.
    """
    model, tp = config.model, config.parallel.tp
    if (
        isinstance(model, Decoder)
        and model.kv_heads != model.n_heads
        and model.kv_heads % tp
        and tp % model.kv_heads
    ):
        what = f"model.n_kv_heads ({model.kv_heads}) must be divisible by parallel.tp ({tp}), or parallel.tp by model.n_kv_heads."
        yield f"parallel.tp={tp}", what, ""


@rule("parallel.tp_ffn", reads=("parallel.tp", "model.ffn_hidden_dim", "model.moe.frequency"))
def tp_ffn(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts the feed-forward layer by its width, which must be divisible by
    parallel.tp.
    """
    model, tp = config.model, config.parallel.tp
    if (
        isinstance(model, Decoder)
        and model.n_moe_layers < model.n_layers
        and model.computed_ffn_hidden_dim % tp
    ):
        what = f"the feed-forward width ({model.computed_ffn_hidden_dim}) must be divisible by parallel.tp ({tp})."
        yield (
            f"parallel.tp={tp}",
            what,
            f"model.ffn_hidden_dim={-(-model.computed_ffn_hidden_dim // tp) * tp}",
        )


@rule(
    "parallel.tp_experts",
    reads=(
        "parallel.tp",
        "model.moe.num_experts",
        "model.moe.frequency",
        "model.moe.ffn_hidden_dim",
    ),
)
def tp_experts(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts each expert, shared ones too, by its width, which must be divisible
    by parallel.tp.
    """
    model, tp = config.model, config.parallel.tp
    if isinstance(model, Decoder) and model.is_moe and model.expert_hidden_dim % tp:
        what = f"the width of an expert ({model.expert_hidden_dim}) must be divisible by parallel.tp ({tp})."
        yield (
            f"parallel.tp={tp}",
            what,
            f"model.moe.ffn_hidden_dim={-(-model.expert_hidden_dim // tp) * tp}",
        )


@rule("parallel.tp_vocab", reads=("parallel.tp", "model.vocab_size"))
def tp_vocab(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts the vocabulary into equal parts and a smaller last one: every rank
    must get rows.
    """
    rows, tp = config.model.vocab_size, config.parallel.tp
    each = -(-rows // tp)
    if each * (tp - 1) >= rows:
        what = f"model.vocab_size ({rows}) in parts of {each} rows is enough for {-(-rows // each)} ranks; parallel.tp is {tp}."
        yield f"parallel.tp={tp}", what, f"model.vocab_size={each * tp}"


@rule("parallel.tp_loss", reads=("parallel.tp", "parallel.loss_parallel", "objective.loss_fn"))
def tp_loss(config: Config, world: World) -> Iterator[Finding]:
    """objective.loss_fn=chunked_cross_entropy never holds all logits, so with tp > 1 it needs
    parallel.loss_parallel=true.
    """
    objective, parallel = config.objective, config.parallel
    chunked = isinstance(objective, Pretrain) and objective.loss_fn == "chunked_cross_entropy"
    if chunked and parallel.tp > 1 and not parallel.loss_parallel:
        what = "chunked_cross_entropy makes logits a chunk at a time and never gathers them, as parallel.loss_parallel=false asks."
        yield "parallel.loss_parallel=false", what, "parallel.loss_parallel=true"
