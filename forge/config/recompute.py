"""Tensors that blocks keep for the backward pass, by name, and parts of the forward pass run again.

Names and policies are MaxText's; `router` and `gdn_gates` are forge's own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from forge.config.field import Condition, Section, opt, section

REMAT, DEVICE, OFFLOAD = "remat", "device", "offload"
PLACES = (REMAT, DEVICE, OFFLOAD)
INPUT, CONTEXT, ROUTER, LAST = "decoder_layer_input", "context", "router", "mlpwo"
GROUPS = {
    "qkv_proj": ("query_proj", "key_proj", "value_proj"),
    "mlpwi": ("mlpwi_0", "mlpwi_1"),
    "attention_out": (CONTEXT,),
}
"""Names of several tensors, or another name of a single one: attention's result."""

QKV = ("query_proj", "key_proj", "value_proj", "query_wa_proj", "kv_wa_proj", "mla_q", "mla_kv")
"""Queries, keys and values of multi-head and of latent attention."""
ATTENTION = (*QKV, "gdn_gates", "out_proj")
INTO_MLP = ("mlpwi_0", "mlpwi_1", "moe_mlpwi_0", "moe_mlpwi_1")
OUT_OF_MLP = (LAST, "moe_mlpwo")
NAMES = (*ATTENTION, CONTEXT, *INTO_MLP, *OUT_OF_MLP)
SAVED = {
    "full": (),
    "selective": NAMES,
    "minimal": (*ATTENTION, *INTO_MLP, *OUT_OF_MLP),
    "save_dot_with_context_except_mlp": (*ATTENTION, CONTEXT),
    "save_dot_except_mlpwi": (*ATTENTION, *OUT_OF_MLP),
    "save_dot_except_mlp": ATTENTION,
    "save_qkv_proj": QKV,
    "save_out_proj": ("out_proj",),
}
"""Tensors a policy keeps on the device."""
OFFLOADED = {
    "qkv_proj_offloaded": QKV,
    "minimal_offloaded": SAVED["minimal"],
}
"""Tensors a policy keeps in host memory."""
CUSTOM, AUTO, NONE, FULL, SELECTIVE = "custom", "auto", "none", "full", "selective"
POLICIES = (NONE, *SAVED, *OFFLOADED, CUSTOM)

BY_NAME = Condition(
    lambda config, ranks: config.train.activation_checkpointing == CUSTOM,
    "without train.activation_checkpointing=custom",
)


def _tensor(help: str, default: str = REMAT) -> str:
    return opt(default, help, choices=PLACES, free=True)


@section
class Recompute(Section):
    """Where a block keeps a tensor until its backward pass: remat = nowhere, it is made again;
    device; offload = in host memory.
    """

    acts_when = BY_NAME

    decoder_layer_input: str = _tensor("what enters a block: device or offload", DEVICE)
    query_proj: str = _tensor("queries, as their matrix gives them")
    key_proj: str = _tensor("keys")
    value_proj: str = _tensor("values")
    qkv_proj: str = _tensor("queries, keys and values, where these three say nothing")
    query_wa_proj: str = _tensor("latents that queries are made of")
    kv_wa_proj: str = _tensor("latents that keys and values are made of, with the shared key")
    mla_q: str = _tensor("queries of latent attention")
    mla_kv: str = _tensor("keys and values of latent attention")
    gdn_gates: str = _tensor(
        "output gates, decays and steps of a gated delta net or a Mamba-2 layer"
    )
    context: str = _tensor("what the attention kernel gives, with its log-sum-exp")
    attention_out: str = _tensor("the same tensor, by the name of what enters the output matrix")
    out_proj: str = _tensor("what attention gives to the residual stream")
    mlpwi: str = _tensor("mlpwi_0 and mlpwi_1, where these say nothing")
    mlpwi_0: str = _tensor("what enters the activation of a feed-forward layer")
    mlpwi_1: str = _tensor("what its gate multiplies")
    mlpwo: str = _tensor("what it gives to the residual stream")
    moe_mlpwi_0: str = _tensor("what enters the activation of experts")
    moe_mlpwi_1: str = _tensor("what their gates multiply")
    moe_mlpwo: str = _tensor("what experts give")
    layers: dict[str, int] = opt(
        {},
        "blocks that keep a tensor, by its name, spread over all evenly; others make it again",
        free=True,
    )

    def given(self) -> dict[str, str]:
        """The places of kept names, in the order of the options; remat is left out."""
        fields = (field.name for field in dataclasses.fields(self) if field.name != "layers")
        options = {name: getattr(self, name) for name in fields}
        return {name: storage for name, storage in options.items() if storage != REMAT}


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The tensors a model's blocks keep of their forward pass: `train.policy`.

    places: device or offload by name; other tensors are made again. layers: the number of blocks
    that keep a name, where not all do. every: of this many blocks only the first is recomputed.
    blocks: the number of recomputed blocks, spread evenly; None = by `every`.
    """

    name: str
    places: Mapping[str, str]
    layers: Mapping[str, int]
    every: int = 1
    blocks: int | None = None

    @property
    def recomputes(self) -> bool:
        return self.name != NONE

    @property
    def by_name(self) -> bool:
        """Whether a recomputed block keeps more than its input."""
        return bool(set(self.places) - {INPUT})

    def recomputed(self, layer: int, n_layers: int, first: int = 0) -> bool:
        """Whether a block, counted from 0, is recomputed. first: the first block of the same
        stage.
        """
        if not self.recomputes:
            return False
        if self.blocks is not None:
            return among(self.blocks, layer, n_layers)
        return (layer - first) % self.every == 0

    def of_block(self, layer: int, n_layers: int) -> dict[str, str]:
        """The places of names in a recomputed block."""
        return {
            name: storage
            for name, storage in self.places.items()
            if among(self.layers.get(name, n_layers), layer, n_layers)
        }


def among(number: int, layer: int, n_layers: int) -> bool:
    """Whether a block is among `number` blocks spread evenly over all."""
    return (layer + 1) * number // n_layers > layer * number // n_layers


def places_of(policy: str, table: Recompute | None = None) -> dict[str, str]:
    """The places of a policy's tensors, by name; `router` is kept wherever more than inputs are.
    auto may become full.
    """
    if policy in (NONE, FULL) or policy.partition(":")[0] == AUTO:
        return {}
    if policy == CUSTOM:
        assert table is not None
        tensors = single(table.given())
    else:
        tensors = dict.fromkeys(SAVED.get(policy, ()), DEVICE)
        tensors |= dict.fromkeys(OFFLOADED.get(policy, ()), OFFLOAD)
    if tensors.get(INPUT) == DEVICE:  # the input stays on the device in any case
        del tensors[INPUT]
    return tensors | ({ROUTER: DEVICE} if set(tensors) - {INPUT} else {})


def single(table: Mapping[str, str]) -> dict[str, str]:
    """Replace names of groups by the names of their tensors; a tensor's own entry goes first."""
    grouped = {name: table[group] for group in table if group in GROUPS for name in GROUPS[group]}
    return grouped | {name: storage for name, storage in table.items() if name not in GROUPS}
