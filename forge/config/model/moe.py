"""The `model.moe` section: a mixture of experts in place of feed-forward layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forge.config.field import Condition, Section, opt, section
from forge.config.model.activations import FP32, INT64, Kept, Named, Numbers, merge_tables
from forge.config.model.feed_forwards.dense import (
    copies,
    dense_kept,
    dense_tensors,
    into,
    remade_copies,
)
from forge.config.model.layer import LayerShape
from forge.config.model.tensors import BIAS, EXPERT, NORM, ROUTER, TensorSpec, norm, within
from forge.config.rule import Findings, nearest_divisor, rule

if TYPE_CHECKING:
    from forge.config.parallel import Parallel
    from forge.config.precision import Precision
    from forge.config.run import Run
    from forge.config.train import Train

ROUTERS = ("softmax_topk", "sigmoid_topk")
SCHEDULES = ("constant", "cosine_decay", "linear_warmup")
SCOPES = ("sequence", "micro_batch")
GROUP_SCORES = ("max", "top2_sum")
KERNELS = ("auto", "grouped", "loop")
EXPERTS, TOP_K = "model.moe.num_experts", "model.moe.top_k"
SHARED = Condition(
    lambda config, ranks: config.model.moe.shared_experts > 0, "with model.moe.shared_experts=0"
)
GROUPED = Condition(
    lambda config, ranks: config.model.moe.n_routing_groups > 1,
    "with model.moe.n_routing_groups=1",
)
GROUPS, CHOSEN_GROUPS = "model.moe.n_routing_groups", "model.moe.topk_routing_group"


@section
class MoE(Section):
    """Experts, the router that chooses among them, and what keeps their load even; all defaults
    make a dense model.
    """

    acts_when = Condition(
        lambda config, ranks: config.model.moe.num_experts > 0, "with model.moe.num_experts=0"
    )

    num_experts: int = opt(0, "experts of a layer; 0 = a dense model", ge=0)
    top_k: int = opt(2, "experts per token", gt=0)
    frequency: int = opt(1, "every n-th layer has experts: 1 = all, 2 = every second", gt=0)
    first_num_dense_layers: int = opt(0, "number of first layers without experts", ge=0)
    ffn_hidden_dim: int | None = opt(None, "width of one expert; null = model.ffn_hidden_dim", gt=0)
    expert_bias: bool = opt(False, "add biases to the experts, the shared ones too")
    beside_dense: bool = opt(False, "add the output of a dense feed-forward layer")
    branch_norms: bool = opt(
        False,
        "the experts and the dense layer beside them each have a norm before and one after, and "
        "the router reads the stream itself, as in Gemma 4",
    )
    shared_experts: int = opt(0, "experts that process every token", ge=0)
    shared_hidden_dim: int | None = opt(
        None, "width of one shared expert; null = that of a routed expert", gt=0, acts_when=SHARED
    )
    shared_expert_gate: bool = opt(
        False,
        "multiply the shared experts' output by a sigmoid gate of the token",
        acts_when=SHARED,
    )
    router: str = opt(
        "softmax_topk",
        "router scores: softmax over all experts, or a sigmoid each",
        choices=ROUTERS,
    )
    router_bias: bool = opt(False, "add a trained bias to the router's logits")
    router_norm: bool = opt(
        False,
        "normalise what the router reads, and multiply it by a learned vector / sqrt(dim), as in "
        "Gemma 4",
    )
    per_expert_scale: bool = opt(
        False, "multiply the weight of an expert by a learned number of the expert"
    )
    float32_gate_logits: bool = opt(True, "compute the router in fp32")
    norm_topk_prob: bool = opt(True, "divide the weights of a token's experts by their sum")
    routed_scaling_factor: float = opt(1.0, "multiplies the weights of the routed experts", gt=0)
    n_routing_groups: int = opt(
        1,
        "groups of adjacent experts, of which each token chooses topk_routing_group; 1 = off",
        gt=0,
    )
    topk_routing_group: int = opt(1, "groups that a token chooses", gt=0)
    group_score: str | None = opt(
        None,
        "score of a group: its best expert's, or the sum of its best two; null = max for "
        "softmax_topk, top2_sum for sigmoid_topk",
        choices=GROUP_SCORES,
        acts_when=GROUPED,
    )
    force_balance: bool = opt(
        False, "for benchmarks: tokens go to the experts in turn, whatever their scores are"
    )
    score_on_input: bool = opt(
        False, "apply routing weights to the experts' input instead of their output"
    )
    aux_loss_weight: float = opt(0.01, "coefficient of the load balancing loss; 0 = off", ge=0)
    sequence_aux_loss_weight: float = opt(
        0.0, "coefficient of the load balancing loss within each sequence; 0 = off", ge=0
    )
    z_loss_weight: float = opt(0.0, "coefficient of the router's z-loss; 0 = off", ge=0)
    balance_scope: str = opt(
        "sequence", "tokens that balance, capacity and gradient_scale count over", choices=SCOPES
    )
    bias_update_rate: float = opt(
        0.0, "step of the selection bias that evens the load; 0 = off", ge=0
    )
    bias_schedule: str = opt(
        "constant", "how bias_update_rate changes over the run", choices=SCHEDULES
    )
    capacity_factor: float = opt(
        0.0, "tokens an expert takes in training, in even shares; 0 = all", ge=0
    )
    gradient_scale: bool = opt(False, "divide the gradient of an expert by its load")
    kernel: str = opt(
        "auto",
        "one kernel for all experts, or a loop; auto = grouped where torch has it",
        choices=KERNELS,
    )

    @property
    def computed_group_score(self) -> str:
        """group_score, with null resolved."""
        by_router = "max" if self.router == "softmax_topk" else "top2_sum"
        return self.group_score or by_router

    def shared_width(self, model: LayerShape) -> int:
        """Return the width of all shared experts of a layer together.

        model: the section around this section.
        """
        width = self.shared_hidden_dim
        return self.shared_experts * (model.expert_hidden_dim if width is None else width)

    def tensors(self, model: LayerShape) -> Iterator[TensorSpec]:
        """Yield the tensors of a layer of experts."""
        experts, hidden, dim = self.num_experts, model.expert_hidden_dim, model.dim
        routers: dict[str, Any] = {"part": "routers"}
        yield TensorSpec(name="router.weight", shape=(experts, dim), role=ROUTER, **routers)
        if self.router_bias:
            yield TensorSpec(name="router.bias", shape=(experts,), role=BIAS, **routers)
        vectors = {"input_scale": dim} if self.router_norm else {}
        vectors |= {"expert_scale": experts} if self.per_expert_scale else {}
        for name, size in vectors.items():
            scale: dict[str, Any] = {"shape": (size,), "role": NORM, "initial": 1.0}
            yield TensorSpec(name=f"router.{name}", **scale, **routers)
        packed: dict[str, Any] = {"part": "experts", "met": (self.top_k, experts)}
        packed["of_experts"] = True
        projections = ("w_gate", "w_up") if model.is_gated else ("w_up",)
        weight, bias = {"role": EXPERT, **packed}, {"role": BIAS, **packed}
        for name in projections:
            yield TensorSpec(name=f"experts.{name}", shape=(experts, hidden, dim), tp=1, **weight)
        down = {"shape": (experts, dim, hidden), "tp": 2, "residual": True}
        yield TensorSpec(name="experts.w_down", **down, **weight)
        if biased := has_expert_bias(model):
            for name in projections:
                name = f"experts.{name}_bias"
                yield TensorSpec(name=name, shape=(experts, hidden), tp=1, **bias)
            down = {"shape": (experts, dim), "once": True}
            yield TensorSpec(name="experts.w_down_bias", **down, **bias)
        if shared := self.shared_width(model):
            dense = dense_tensors(model, shared, part="shared experts", bias=biased)
            yield from within("shared", dense)
            if self.shared_expert_gate:
                name = "shared_gate.weight"
                yield TensorSpec(name=name, shape=(1, dim), role=ROUTER, **routers)
        if self.branch_norms:
            yield from norm("input_norm", dim, unit_offset=model.norm_unit_offset)
        if self.beside_dense and not self.branch_norms:
            yield from within("dense", model.feed_forward.tensors(model))

    def kept(
        self, model: LayerShape, numbers: Numbers, *, rows: float, outputs: float | None = None
    ) -> Kept | None:
        """Return the memory kept by a layer of experts for a token; None = unknown.

        rows: of the experts for one token. outputs: rows of outputs kept; null = top_k.
        """
        width, hidden = numbers.width, -(-model.expert_hidden_dim // numbers.tp)
        others = self._others(model, numbers)
        if others is None:
            return None
        wide = width * rows * hidden
        total = (
            self.kept_around(model, numbers, rows=rows, outputs=outputs)
            + wide * copies(model)
            + others.all
        )
        computed = numbers.product(rows * hidden * numbers.tp, model.dim)
        tensors = dict.fromkeys(into(model, "moe_"), computed)
        output = Named(bytes=width * rows * model.dim, flops=computed.flops)
        scored = self._router_width(width) * self.num_experts + (FP32 + INT64) * self.top_k
        scored += width if self.shared_expert_gate else 0
        router_outputs = self.num_experts + self.shared_expert_gate
        router = Named(bytes=scored, flops=2.0 * router_outputs * model.dim)
        tensors |= {"moe_mlpwo": output, "router": router}
        remade = wide * remade_copies(model) + others.remade
        return Kept(all=total, named=merge_tables(tensors, others.named), remade=remade)

    def kept_around(
        self, model: LayerShape, numbers: Numbers, *, rows: float, outputs: float | None = None
    ) -> float:
        """Return the memory kept around the layers of the mixture: inputs of router and experts,
        and outputs of experts. rows, outputs: as in `kept`.

        The inner layers are recomputed one by one, and their memory is left out.
        """
        router_width = self._router_width(numbers.width)
        has_dense = self.shared_width(model) or self.beside_dense
        inputs = router_width
        if has_dense and router_width != numbers.width:  # the router reads a copy
            inputs += numbers.width
        return model.dim * (numbers.width * (rows + (outputs or self.top_k)) + inputs)

    def _others(self, model: LayerShape, numbers: Numbers) -> Kept | None:
        """Return the memory kept by shared experts, their gate, and a layer beside the experts."""
        shared = self.shared_width(model)
        layers = [dense_kept(model, shared, numbers)] if shared else []
        if self.beside_dense:
            dense = model.feed_forward.kept(model, replace(numbers, tokens_cut=1))
            if dense is None:
                return None
            layers.append(dense)
        tensors = merge_tables(*(layer.named for layer in layers))
        total, remade = (sum(getattr(each, name) for each in layers) for name in ("all", "remade"))
        return Kept(all=total, named=tensors, remade=remade)

    def _router_width(self, width: int) -> int:
        return FP32 if self.float32_gate_logits else width


def has_expert_bias(model: LayerShape) -> bool:
    """Whether experts, and shared experts, have biases."""
    return model.bias or model.moe.expert_bias


def is_moe_layer(moe: MoE, layer: int) -> bool:
    """Whether a layer, counted from 0, has experts."""
    return (
        moe.num_experts > 0
        and layer >= moe.first_num_dense_layers
        and (layer + 1) % moe.frequency == 0
    )


def n_moe_layers(moe: MoE, n_layers: int) -> int:
    """Count the layers of a model with experts."""
    if not moe.num_experts or moe.frequency < 1:  # refused by the bound of frequency
        return 0
    return n_layers // moe.frequency - min(moe.first_num_dense_layers, n_layers) // moe.frequency


@rule("moe.top_k", EXPERTS, TOP_K)
def top_k(model: LayerShape) -> Findings:
    """A token goes to model.moe.top_k different experts: at most model.moe.num_experts."""
    top_k, experts = model.moe.top_k, model.moe.num_experts
    if experts and top_k > experts:
        yield TOP_K, f"model.moe.top_k={experts}"


@rule(
    "moe.layers",
    "model.n_layers",
    EXPERTS,
    "model.moe.frequency",
    "model.moe.first_num_dense_layers",
)
def layers(model: LayerShape) -> Findings:
    """model.moe.frequency and model.moe.first_num_dense_layers must leave experts in one of
    model.n_layers.
    """
    if model.moe.num_experts and not model.is_moe:
        yield EXPERTS, "model.moe.frequency=1 model.moe.first_num_dense_layers=0"


@rule("moe.groups", EXPERTS, GROUPS)
def equal_groups(model: LayerShape) -> Findings:
    """Groups of experts are of equal size: model.moe.num_experts must be divisible by
    model.moe.n_routing_groups.
    """
    experts, groups = model.moe.num_experts, model.moe.n_routing_groups
    if experts % groups:
        yield GROUPS, f"{GROUPS}={nearest_divisor(experts, groups)}"


@rule("moe.group_choice", EXPERTS, TOP_K, GROUPS, CHOSEN_GROUPS)
def group_choice(model: LayerShape) -> Findings:
    """A token chooses model.moe.topk_routing_group of model.moe.n_routing_groups groups, which
    have model.moe.top_k experts or more.
    """
    moe = model.moe
    chosen, groups, experts = moe.topk_routing_group, moe.n_routing_groups, moe.num_experts
    if groups == 1 or not experts or experts % groups or moe.top_k > experts:
        return
    size = experts // groups
    if chosen > groups:
        yield CHOSEN_GROUPS, f"{CHOSEN_GROUPS}={groups}"
    elif chosen * size < moe.top_k:
        yield CHOSEN_GROUPS, f"{CHOSEN_GROUPS}={-(-moe.top_k // size)}"


@rule(
    "moe.kernel",
    EXPERTS,
    "model.moe.kernel",
    "model.moe.ffn_hidden_dim",
    "model.dim",
    "parallel.tp",
    "parallel.ep",
    "run.device",
    "precision.mixed_precision",
    "train.compile_model",
)
def kernel(
    model: LayerShape, parallel: Parallel, precision: Precision, run: Run, train: Train
) -> Findings:
    """model.moe.kernel=grouped needs rows of whole 16 bytes, and bf16 on a GPU or when compiled;
    mps has no such kernel.
    """
    if not model.moe.num_experts or model.moe.kernel != "grouped":
        return
    mixed, message = precision.mixed_precision, ""
    gpu, compiled = run.device == "cuda", train.compile_model and parallel.ep == 1
    step, width = 4 if mixed == "fp32" else 8, model.expert_hidden_dim // parallel.tp
    if run.device == "mps":
        message = "there is none with run.device=mps."
    elif mixed != "bf16" and (gpu or compiled):
        where = "on a GPU" if gpu else "with train.compile_model"
        message = f"{where} it multiplies bf16 only, and precision.mixed_precision is {mixed}."
    elif model.dim % step or width % step:
        message = f"in {mixed} model.dim ({model.dim}) and the width of an expert on a tp rank"
        message += f" ({width}) must be divisible by {step}."
    if message:
        yield "model.moe.kernel", message, "model.moe.kernel=auto"


@rule(
    "moe.unbalanced",
    EXPERTS,
    TOP_K,
    "model.moe.aux_loss_weight",
    "model.moe.sequence_aux_loss_weight",
    "model.moe.bias_update_rate",
    warning=True,
)
def unbalanced(model: LayerShape) -> Findings:
    """The load of experts should be kept even, by a balancing loss or a moving selection bias."""
    moe = model.moe
    balanced = moe.aux_loss_weight or moe.sequence_aux_loss_weight or moe.bias_update_rate
    if moe.top_k < moe.num_experts and not balanced:
        hint = "model.moe.aux_loss_weight=0.01 or model.moe.bias_update_rate=0.001"
        yield "model.moe.aux_loss_weight", hint


@rule("moe.router_gradient", EXPERTS, TOP_K, "model.moe.norm_topk_prob", warning=True)
def router_gradient(model: LayerShape) -> Findings:
    """With model.moe.top_k=1 the one weight should not be normalised: it would be 1 whatever the
    router says.
    """
    if model.moe.num_experts and model.moe.top_k == 1 and model.moe.norm_topk_prob:
        yield "model.moe.norm_topk_prob", "model.moe.norm_topk_prob=false"


@rule("parallel.ep_rows", EXPERTS, "parallel.ep_rows_factor", "parallel.ep", "parallel.ep_method")
def rows_for_experts(parallel: Parallel) -> Findings:
    """parallel.ep_rows_factor is 0 or at least 1: with even load each rank of experts needs one
    share.
    """
    if parallel.gathers_tokens and 0 < parallel.ep_rows_factor < 1:
        yield "parallel.ep_rows_factor", "parallel.ep_rows_factor=2"


@rule("parallel.ep_overlap", EXPERTS, "parallel.ep_overlap_degree", "parallel.ep_rows_factor")
def parts_of_bounded_rows(parallel: Parallel) -> Findings:
    """parallel.ep_rows_factor bounds a whole layer's rows, so parallel.ep_overlap_degree is 1."""
    if parallel.gathers_tokens and parallel.ep_rows_factor and parallel.ep_overlap_degree > 1:
        yield "parallel.ep_overlap_degree", "parallel.ep_overlap_degree=1"


@rule("moe.force_balance", EXPERTS, "model.moe.force_balance", warning=True)
def force_balance(model: LayerShape) -> Findings:
    """model.moe.force_balance=true learns no choice of experts: it is for benchmarks."""
    if model.moe.num_experts and model.moe.force_balance:
        yield "model.moe.force_balance", "model.moe.force_balance=false"
