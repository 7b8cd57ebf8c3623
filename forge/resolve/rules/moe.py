"""Rules on a mixture of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from forge.config.field import default_of
from forge.config.model import Decoder
from forge.config.moe import MoE
from forge.config.root import Config
from forge.plan.world import World
from forge.resolve.rule import Finding, rule

ROW_BYTES, BF16, FP32 = 16, 2, 4


@rule("moe.top_k", reads=("model.moe.num_experts", "model.moe.top_k"))
def top_k(config: Config, world: World) -> Iterator[Finding]:
    """A token goes to model.moe.top_k different experts: at most model.moe.num_experts."""
    moe = _moe(config)
    if moe is not None and moe.top_k > moe.num_experts:
        what = f"model.moe.top_k ({moe.top_k}) exceeds model.moe.num_experts ({moe.num_experts})."
        yield f"model.moe.top_k={moe.top_k}", what, f"model.moe.top_k={moe.num_experts}"


@rule(
    "moe.layers",
    reads=(
        "model.n_layers",
        "model.moe.num_experts",
        "model.moe.frequency",
        "model.moe.first_num_dense_layers",
    ),
)
def layers(config: Config, world: World) -> Iterator[Finding]:
    """With model.moe.num_experts above 0 at least one layer must have experts."""
    model, moe = config.model, _moe(config)
    if isinstance(model, Decoder) and moe is not None and not model.n_moe_layers:
        what = f"model.moe.frequency={moe.frequency} and first_num_dense_layers={moe.first_num_dense_layers} leave none of {model.n_layers}"
        key = f"model.moe.num_experts={moe.num_experts}"
        yield (
            key,
            f"{what} layers with experts.",
            "model.moe.frequency=1 model.moe.first_num_dense_layers=0",
        )


@rule("moe.groups", reads=("model.moe.num_experts", "model.moe.n_routing_groups"))
def groups(config: Config, world: World) -> Iterator[Finding]:
    """Groups of experts are of equal size: model.moe.num_experts must be divisible by
    model.moe.n_routing_groups.
    """
    moe = _moe(config)
    if moe is not None and moe.num_experts % moe.n_routing_groups:
        what = f"model.moe.num_experts ({moe.num_experts}) is not divisible by model.moe.n_routing_groups ({moe.n_routing_groups})."
        fits = next(
            n
            for n in range(min(moe.n_routing_groups, moe.num_experts), 0, -1)
            if moe.num_experts % n == 0
        )
        yield (
            f"model.moe.n_routing_groups={moe.n_routing_groups}",
            what,
            f"model.moe.n_routing_groups={fits}",
        )


@rule(
    "moe.group_choice",
    reads=(
        "model.moe.num_experts",
        "model.moe.top_k",
        "model.moe.n_routing_groups",
        "model.moe.topk_routing_group",
    ),
)
def group_choice(config: Config, world: World) -> Iterator[Finding]:
    """A token chooses from model.moe.topk_routing_group groups, no more than there are, with at
    least top_k experts in them.
    """
    moe = _moe(config)
    if (
        moe is None
        or moe.n_routing_groups == 1
        or moe.num_experts % moe.n_routing_groups
        or moe.top_k > moe.num_experts
    ):
        return
    size, key = (
        moe.num_experts // moe.n_routing_groups,
        f"model.moe.topk_routing_group={moe.topk_routing_group}",
    )
    if moe.topk_routing_group > moe.n_routing_groups:
        what = f"model.moe.topk_routing_group ({moe.topk_routing_group}) exceeds model.moe.n_routing_groups ({moe.n_routing_groups})."
        yield key, what, f"model.moe.topk_routing_group={moe.n_routing_groups}"
    elif moe.topk_routing_group * size < moe.top_k:
        what = f"{moe.topk_routing_group} groups of {size} experts are fewer than the {moe.top_k} of model.moe.top_k."
        yield key, what, f"model.moe.topk_routing_group={-(-moe.top_k // size)}"


@rule("moe.bias", reads=("model.bias", "model.moe.num_experts"))
def bias(config: Config, world: World) -> Iterator[Finding]:
    """Experts have no biases: model.bias=true needs a dense model."""
    model = config.model
    if isinstance(model, Decoder) and model.is_moe and model.bias:
        yield "model.bias=true", "experts have no biases.", "model.bias=false"


@rule(
    "moe.kernel",
    reads=(
        "model.moe.num_experts",
        "model.moe.kernel",
        "model.moe.ffn_hidden_dim",
        "model.dim",
        "parallel.tp",
        "parallel.ep",
        "run.device",
        "precision.mixed_precision",
        "train.compile_model",
    ),
)
def kernel(config: Config, world: World) -> Iterator[Finding]:
    """model.moe.kernel=grouped multiplies rows of whole 16 bytes, and of bf16 only where it is
    compiled or on a GPU.
    """
    model, moe, precision, tp = (
        config.model,
        _moe(config),
        config.precision.mixed_precision,
        config.parallel.tp,
    )
    gpu, compiled = (
        config.run.device == "cuda",
        config.train.compile_model and config.parallel.ep == 1,
    )
    if not isinstance(model, Decoder) or moe is None or moe.kernel != "grouped":
        return
    step, width, what = (
        ROW_BYTES // (FP32 if precision == "fp32" else BF16),
        model.expert_hidden_dim // tp,
        "",
    )
    if precision != "bf16" and (gpu or compiled):
        where = "on a GPU" if gpu else "with train.compile_model"
        what = f"{where} it multiplies bf16 only, and precision.mixed_precision is {precision}."
    elif model.dim % step or width % step:
        arithmetic = (
            f"{model.expert_hidden_dim} / {tp} tp ranks = {width}" if tp > 1 else str(width)
        )
        what = f"in {precision} model.dim ({model.dim}) and the width of an expert ({arithmetic}) must be divisible by {step}."
    if what:
        yield "model.moe.kernel=grouped", what, "model.moe.kernel=auto"


@rule(
    "moe.unbalanced",
    reads=(
        "model.moe.num_experts",
        "model.moe.top_k",
        "model.moe.aux_loss_weight",
        "model.moe.sequence_aux_loss_weight",
        "model.moe.bias_update_rate",
    ),
    warning=True,
)
def unbalanced(config: Config, world: World) -> Iterator[Finding]:
    """Something should keep the load even: a load balancing loss, or a selection bias that moves."""
    moe = _moe(config)
    if moe is None or moe.top_k >= moe.num_experts:
        return
    if not (moe.aux_loss_weight or moe.sequence_aux_loss_weight or moe.bias_update_rate):
        what = "nothing keeps the load of the experts even, and few of them may come to do all the work."
        yield (
            "model.moe.aux_loss_weight=0",
            what,
            "model.moe.aux_loss_weight=0.01 or model.moe.bias_update_rate=0.001",
        )


@rule(
    "moe.router_gradient",
    reads=("model.moe.num_experts", "model.moe.top_k", "model.moe.norm_topk_prob"),
    warning=True,
)
def router_gradient(config: Config, world: World) -> Iterator[Finding]:
    """With model.moe.top_k=1 the one weight should not be normalised: it would be 1 whatever the
    router says.
    """
    moe = _moe(config)
    if moe is not None and moe.top_k == 1 and moe.norm_topk_prob:
        what = "the weight of a single expert, divided by itself, is 1: the router learns nothing from the loss."
        yield "model.moe.norm_topk_prob=true", what, "model.moe.norm_topk_prob=false"


@rule("moe.unused", reads=("model.moe.num_experts",), warning=True)
def unused(config: Config, world: World) -> Iterator[Finding]:
    """With model.moe.num_experts=0 nothing else of model.moe is read."""
    model = config.model
    if not isinstance(model, Decoder) or model.moe.num_experts:
        return
    for field in dataclasses.fields(MoE):
        value = getattr(model.moe, field.name)
        if value != default_of(field):
            key = f"model.moe.{field.name}"
            yield (
                f"{key}={value}",
                f"{key} has no effect: model.moe.num_experts is 0.",
                "model.moe.num_experts=8, or leave it",
            )


def _moe(config: Config) -> MoE | None:
    """The section of a model that has experts."""
    model = config.model
    return model.moe if isinstance(model, Decoder) and model.moe.num_experts else None
