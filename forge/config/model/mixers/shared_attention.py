"""Layers that read what an earlier layer made: its keys and values, as in the last layers of
Gemma 4 E2B, or the choice of its indexer, as in GLM 5.2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from forge.config.field import section
from forge.config.model.activations import Kept, Numbers
from forge.config.model.decoder import Decoder
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.attention import Attention
from forge.config.model.mixers.indexer import Indexed
from forge.config.model.mtp import MTP
from forge.config.model.skips.hyper_connections import MHC
from forge.config.model.skips.layer_inputs import PER_LAYER
from forge.config.model.tensors import TensorSpec
from forge.config.rule import Findings, rule

if TYPE_CHECKING:
    from forge.config.parallel import Parallel

BRANCHED = ("branch_norms", "beside_dense", "num_experts")
OF_KEYS = ("wk.", "wv.", "k_norm.", "v_norm.", "value_embedding.")
MADE = ("key_proj", "value_proj")
CHOICES = "choices of earlier layers"


@section
class SharedAttention(Attention):
    """Queries of its own over keys and values of the nearest earlier layer of attention with the
    same window, heads of keys and width of heads.
    """

    schema_name = "shared_attention"
    unread = (
        *("k_bias", "v_bias", "v_norm", "v_norm_with_scale", "share_kv_projections"),
        *("fused_qkv", "value_embeddings", "moba", "moba_chunk_size", "moba_topk"),
        "attention_output_gate",
    )
    _target_: str = "forge.models.mixers.shared_attention.SharedAttention"

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        for spec in super().tensors(layer):
            if not spec.name.startswith(OF_KEYS):
                yield spec

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        kept = super().kept(layer, numbers)
        return replace(kept, named={k: v for k, v in kept.named.items() if k not in MADE})

    def cached(self, layer: LayerShape, tp: int) -> int:
        return 0


def lenders(model: Decoder) -> dict[int, int | None]:
    """Return, for each layer that reads the keys or the choice of another, the number of that
    layer; None = there is no such layer.
    """
    last: dict[tuple[object, ...], int] = {}
    read: dict[int, int | None] = {}
    layers = {kind.name: model.of_kind(kind.name) for kind in model.kinds_in()}
    for number in range(model.n_layers):
        layer = layers[model.kind_of(number).name]
        shape = (*layer.span, layer.kv_heads, layer.computed_head_dim)
        if isinstance(layer.mixer, SharedAttention):
            read[number] = last.get(shape)
        elif isinstance(layer.mixer, Attention):
            last[shape] = number
        elif isinstance(layer.mixer, Indexed) and layer.mixer.use_indexer:
            of_choice = layer.mixer.chooses, layer.mixer.indexer_topk
            if layer.mixer.has_indexer:
                last[of_choice] = number
            else:
                read[number] = last.get(of_choice)
    return read


def shares_choice(model: Decoder, number: int) -> bool:
    """Whether a layer reads the choice of an earlier layer's indexer."""
    return model.of_kind(model.kind_of(number).name).mixer.reads_choice


@rule("model.shared_attention", "model.mixer", "model.kinds", "model.layers", "model.n_layers")
def shared_attention(model: Decoder) -> Findings:
    """Shared attention reads the keys of an earlier layer of attention: one with the same window,
    heads of keys and width of heads.
    """
    for number, lender in lenders(model).items():
        if lender is None and not shares_choice(model, number):
            message = f"layer {number} has shared attention, and no layer before it has such keys."
            yield "model.layers", message, f"model.layers=[default,{model.kind_of(number).name}]"
            return


@rule("model.shared_indexer", "model.mixer", "model.kinds", "model.layers", "model.n_layers")
def shared_indexer(model: Decoder) -> Findings:
    """A layer with indexer_shared=true reads what an earlier indexer of equal indexer_topk and
    indexer_sparse_training chose.
    """
    for number, lender in lenders(model).items():
        if lender is None and shares_choice(model, number):
            kind = model.kind_of(number).name
            message = f"layer {number} shares an indexer, and no layer before it has such one."
            yield "model.layers", message, f"model.layers=[default,{kind}]"
            return


@rule("parallel.one_pass", "parallel.pp", PER_LAYER, "model.kinds", "model.layers")
def one_stage(model: Decoder, parallel: Parallel) -> Findings:
    """A pipeline sends hidden states alone from stage to stage: no keys, and no inputs of single
    layers.
    """
    for option, name in around(model).items():
        if parallel.pp > 1:
            yield option, f"layers read {name}, which a pipeline does not send.", "parallel.pp=1"


@rule(
    "model.one_pass",
    *(PER_LAYER, "model.kinds", "model.layers", MTP, MHC, "model.moe.branch_norms"),
    "model.layer_scalar",
)
def one_stream(model: Decoder) -> Findings:
    """Blocks with keys or inputs from elsewhere have one stream, and predict no further tokens."""
    for option, name in around(model).items():
        if model.mtp_num_layers and name != CHOICES:
            message = f"layers read {name}, which modules for further tokens do not have."
            yield option, message, f"{MTP}=0"
    if model.is_long and model.mhc_expansion_rate > 1:
        message = f"blocks have parts of one stream, and there are {model.mhc_expansion_rate}."
        yield MHC, message, f"{MHC}=1"


def around(model: Decoder) -> dict[str, str]:
    """Return the options by which layers read further inputs, and the inputs."""
    options = {PER_LAYER: "inputs of their own"} if model.per_layer_input_width else {}
    if not (readers := lenders(model)):
        return options
    chosen = any(shares_choice(model, number) for number in readers)
    return options | {"model.layers": CHOICES if chosen else "keys of earlier layers"}


@rule("moe.branch_norms", *(f"model.moe.{name}" for name in BRANCHED), "model.norm_placement")
def branch_norms(model: Decoder) -> Findings:
    """model.moe.branch_norms is of experts beside a dense layer (model.moe.beside_dense), with
    norms on both sides.
    """
    if not (model.moe.num_experts and model.moe.branch_norms):
        return
    if not model.moe.beside_dense:
        yield "model.moe.branch_norms", "model.moe.beside_dense=true"
    if model.norm_placement != "both":
        yield "model.norm_placement", "model.norm_placement=both"
