"""The `model.moe` section: a mixture of experts in place of feed-forward layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.config.field import Condition, Section, opt
from forge.config.tensors import EXPERT, ROUTER, TensorSpec, within

if TYPE_CHECKING:
    from forge.config.model import Decoder

ROUTERS = ("softmax_topk", "sigmoid_topk")
SCHEDULES = ("constant", "cosine_decay", "linear_warmup")
SCOPES = ("sequence", "micro_batch")
KERNELS = ("auto", "grouped", "loop")


@dataclass(kw_only=True)
class MoE(Section):
    """Experts, the router that chooses among them, and what keeps their load even; all defaults
    make a dense model.
    """

    acts_when = Condition(
        lambda config, ranks: config.model.moe.num_experts > 0, "with model.moe.num_experts=0"
    )

    num_experts: int = opt(0, "experts of a layer; 0 = a dense model", ge=0)
    top_k: int = opt(2, "experts that each token goes to", gt=0)
    frequency: int = opt(1, "every n-th layer has experts: 1 = all, 2 = every second", gt=0)
    first_num_dense_layers: int = opt(0, "number of first layers without experts", ge=0)
    ffn_hidden_dim: int | None = opt(None, "width of one expert; null = model.ffn_hidden_dim", gt=0)
    shared_experts: int = opt(0, "experts that every token goes to", ge=0)
    router: str = opt(
        "softmax_topk", "router scores: over all experts, or each by itself", choices=ROUTERS
    )
    float32_gate_logits: bool = opt(True, "compute the router in fp32")
    norm_topk_prob: bool = opt(True, "divide the weights of a token's experts by their sum")
    routed_scaling_factor: float = opt(1.0, "multiplies the weights of the routed experts", gt=0)
    n_routing_groups: int = opt(
        1, "groups of adjacent experts, of which a token first chooses some; 1 = off", gt=0
    )
    topk_routing_group: int = opt(1, "groups that a token chooses", gt=0)
    aux_loss_weight: float = opt(0.01, "coefficient of the load balancing loss; 0 = off", ge=0)
    sequence_aux_loss_weight: float = opt(0.0, "the same within each sequence; 0 = off", ge=0)
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

    def tensors(self, model: Decoder) -> Iterator[TensorSpec]:
        """The tensors of a layer of experts. model: the section that this one is in."""
        experts, hidden, dim = self.num_experts, model.expert_hidden_dim, model.dim
        shape = (experts, dim)
        yield TensorSpec(name="router.weight", shape=shape, role=ROUTER, part="routers")
        packed: dict[str, Any] = {"role": EXPERT, "part": "experts", "met": (self.top_k, experts)}
        for name in ("w_gate", "w_up") if model.is_gated else ("w_up",):
            yield TensorSpec(name=f"experts.{name}", shape=(experts, hidden, dim), tp=1, **packed)
        down = {"shape": (experts, dim, hidden), "tp": 2, "residual": True}
        yield TensorSpec(name="experts.w_down", **down, **packed)
        if shared := self.shared_experts * hidden:
            layer = model.feed_forward_tensors(shared, part="shared experts")
            yield from within("shared", layer)


def is_moe_layer(moe: MoE, layer: int) -> bool:
    """Whether a layer, counted from 0, has experts."""
    return (
        moe.num_experts > 0
        and layer >= moe.first_num_dense_layers
        and (layer + 1) % moe.frequency == 0
    )


def n_moe_layers(moe: MoE, n_layers: int) -> int:
    """How many of a model's layers have experts."""
    if not moe.num_experts or moe.frequency < 1:  # which its own bound refuses
        return 0
    return n_layers // moe.frequency - min(moe.first_num_dense_layers, n_layers) // moe.frequency
