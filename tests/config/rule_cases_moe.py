"""The table of rules on a mixture of experts."""

from __future__ import annotations

from rule_cases import Case

EIGHT = "model.moe.num_experts=8"
GROUPED = f"{EIGHT} model.moe.kernel=grouped run.device=cuda precision=bf16"

MOE_CASES = [
    Case(
        "moe.top_k",
        "model.moe.num_experts=4 model.moe.top_k=5",
        "model.moe.top_k (5) exceeds model.moe.num_experts (4).",
        "model.moe.top_k=4",
        "model.moe.num_experts=4 model.moe.top_k=4",
    ),
    Case(
        "moe.layers",
        f"{EIGHT} model.moe.frequency=3",
        "model.moe.frequency=3 and first_num_dense_layers=0 leave none of 2 layers with experts.",
        "model.moe.frequency=1 model.moe.first_num_dense_layers=0",
        f"{EIGHT} model.moe.frequency=2",
    ),
    Case(
        "moe.layers",
        f"{EIGHT} model.moe.first_num_dense_layers=2",
        "model.moe.frequency=1 and first_num_dense_layers=2 leave none of 2 layers with experts.",
        "model.moe.frequency=1 model.moe.first_num_dense_layers=0",
        f"{EIGHT} model.moe.first_num_dense_layers=1",
    ),
    Case(
        "moe.groups",
        f"{EIGHT} model.moe.n_routing_groups=3",
        "model.moe.num_experts (8) is not divisible by model.moe.n_routing_groups (3).",
        "model.moe.n_routing_groups=2",
        f"{EIGHT} model.moe.n_routing_groups=4",
    ),
    Case(
        "moe.group_choice",
        f"{EIGHT} model.moe.n_routing_groups=2 model.moe.topk_routing_group=3",
        "model.moe.topk_routing_group (3) exceeds model.moe.n_routing_groups (2).",
        "model.moe.topk_routing_group=2",
        f"{EIGHT} model.moe.n_routing_groups=2 model.moe.topk_routing_group=2",
    ),
    Case(
        "moe.group_choice",
        f"{EIGHT} model.moe.n_routing_groups=4 model.moe.top_k=3",
        "1 groups of 2 experts are fewer than the 3 of model.moe.top_k.",
        "model.moe.topk_routing_group=2",
        f"{EIGHT} model.moe.n_routing_groups=4 model.moe.top_k=2",
    ),
    Case(
        "moe.bias",
        f"{EIGHT} model.bias=true",
        "experts have no biases.",
        "model.bias=false",
        "model.bias=true",
    ),
    Case(
        "moe.kernel",
        f"{EIGHT} model.moe.kernel=grouped precision=fp32 train.compile_model=true",
        "with train.compile_model it multiplies bf16 only, and precision.mixed_precision is fp32.",
        "model.moe.kernel=auto",
        f"{EIGHT} model.moe.kernel=grouped precision=fp32",
    ),
    Case(
        "moe.kernel",
        f"{GROUPED} precision.mixed_precision=fp16",
        "on a GPU it multiplies bf16 only, and precision.mixed_precision is fp16.",
        "model.moe.kernel=auto",
        GROUPED,
        gpus=1,
    ),
    Case(
        "moe.kernel",
        f"{GROUPED} model.moe.ffn_hidden_dim=52",
        "in bf16 model.dim (64) and the width of an expert (52) must be divisible by 8.",
        "model.moe.kernel=auto",
        f"{GROUPED} model.moe.ffn_hidden_dim=56",
        gpus=1,
    ),
    Case(
        "moe.kernel",
        f"{EIGHT} model.moe.kernel=grouped model.moe.ffn_hidden_dim=54 precision=fp32 train.compile_model=false",
        "in fp32 model.dim (64) and the width of an expert (54) must be divisible by 4.",
        "model.moe.kernel=auto",
        f"{EIGHT} model.moe.kernel=grouped model.moe.ffn_hidden_dim=52 precision=fp32 train.compile_model=false",
    ),
    Case(
        "moe.kernel",
        f"{GROUPED} model.moe.ffn_hidden_dim=56 parallel.tp=2",
        "in bf16 model.dim (64) and the width of an expert (56 / 2 tp ranks = 28) must be divisible by 8.",
        "model.moe.kernel=auto",
        f"{GROUPED} model.moe.ffn_hidden_dim=64 parallel.tp=2",
        gpus=2,
    ),
    Case(
        "moe.unbalanced",
        f"{EIGHT} model.moe.aux_loss_weight=0",
        "nothing keeps the load of the experts even, and few of them may come to do all the work.",
        "model.moe.aux_loss_weight=0.01 or model.moe.bias_update_rate=0.001",
        f"{EIGHT} model.moe.aux_loss_weight=0 model.moe.bias_update_rate=0.001",
    ),
    Case(
        "moe.router_gradient",
        f"{EIGHT} model.moe.top_k=1",
        "the weight of a single expert, divided by itself, is 1: the router learns nothing from the loss.",
        "model.moe.norm_topk_prob=false",
        f"{EIGHT} model.moe.top_k=1 model.moe.norm_topk_prob=false",
    ),
    Case(
        "moe.unused",
        "model.moe.capacity_factor=1.25",
        "model.moe.capacity_factor has no effect: model.moe.num_experts is 0.",
        "model.moe.num_experts=8, or leave it",
        f"{EIGHT} model.moe.capacity_factor=1.25",
    ),
]
