"""Every technique that changes how a model runs, in the order they are applied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from forge.adapters.adapter import Adapter
from forge.build import build
from forge.config.model.document_attention import in_blocks
from forge.config.root import Config
from forge.models.decoder import Decoder
from forge.parallel.activation_checkpoint import recompute_blocks
from forge.parallel.adapters import spread_adapters
from forge.parallel.context import spread_context
from forge.parallel.expert import spread_experts
from forge.parallel.fsdp import shard
from forge.parallel.materialize import materialize
from forge.parallel.mesh import Mesh
from forge.parallel.modules import FORMATS, HALF, compile_blocks
from forge.parallel.pipeline import Pipeline, cut_stages
from forge.parallel.qk_clip import clip_logits
from forge.parallel.scopes import spread_scopes
from forge.parallel.tensor import spread_width
from forge.quantization.layers import quantize


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The values techniques read: config, ranks, device, and the formats of products.

    products: built from `quantization`. multiplied: format of gathered weights; null = unchanged.
    """

    config: Config
    ranks: Mesh | None
    device: torch.device
    adapter: Adapter | None
    products: Any
    multiplied: torch.dtype | None

    @property
    def mesh(self) -> Mesh:
        """The mesh, for techniques of several ranks."""
        assert self.ranks is not None
        return self.ranks

    @property
    def sharded(self) -> bool:
        """Whether FSDP holds the weights: on many ranks, or see `Config.one_rank_has_fsdp`."""
        return self.ranks is not None

    def cut(self, axis: str) -> bool:
        """Whether the model is cut along an axis, such as tp."""
        return self.sharded and getattr(self.config.parallel, axis) > 1

    @property
    def ranks_of_width(self) -> tuple[int, str]:
        """Number and group of the tp ranks."""
        if not self.cut("tp"):
            return 1, ""
        return self.mesh.tp.size(), self.mesh.tp.get_group().group_name

    @property
    def gathers_in_fp8(self) -> bool:
        return self.sharded and self.config.quantization.gathers_in_fp8


def apply(
    make: Callable[[], nn.Module],
    config: Config,
    mesh: Mesh | None,
    device: torch.device,
    *,
    adapter: Adapter | None = None,
    filled: bool = True,
    masters: bool = False,
) -> nn.Module:
    """Build the model and lay the layers out over the ranks of the mesh, as TECHNIQUES lists.

    make: builds the model; called on the meta device. filled: each rank fills its part of the
    initial weights; False where other weights are loaded. masters: keep fp32 masters of the
    weights, see `forge.tensors.masters`. A pipeline is cut into stages first.

    Without a mesh the weights are multiplied in their stored format. Parameter names are always
    those of the plain model.
    """

    def fresh() -> nn.Module:
        with torch.device("meta"):
            return make()

    pipelined = mesh is not None and config.parallel.pp > 1
    products = build(
        config.quantization, path="quantization", trust=config.run.trust, device=device
    )
    parts = cut_stages(fresh, config, mesh) if mesh is not None and pipelined else [(0, fresh())]
    layout = Layout(
        config=config,
        ranks=mesh,
        device=device,
        adapter=adapter,
        products=products,
        multiplied=_format_of_products(config, [part for _, part in parts]),
    )
    for _, part in parts:
        for applies, do in TECHNIQUES:
            if applies(layout):
                do(part, layout)
    model = parts[0][1]
    if mesh is not None and pipelined:
        model = Pipeline(parts, config, mesh, device)
    # With CPU offload the shards live in host memory, the buffers on the device.
    offloaded = mesh is not None and config.parallel.cpu_offload
    storage = torch.device("cpu") if offloaded else device
    seed = config.seed if filled else None
    materialize(model, storage, seed, buffers=device, masters=masters)
    if layout.gathers_in_fp8:
        # Imported here: the compiler comes along, and takes seconds.
        from forge.parallel.fp8_gather import gather_in_fp8

        for _, part in parts:
            gather_in_fp8(part, products)
    return model


def _format_of_products(config: Config, parts: list[nn.Module]) -> torch.dtype | None:
    """The format FSDP gathers weights in; null = the format weights are held in."""
    half = HALF.get(config.precision.mixed_precision)
    if half is None and any(next(part.parameters()).dtype in HALF.values() for part in parts):
        return torch.float32  # weights in 16 bits, as on a CPU
    return half


def _build_techniques(part: nn.Module, layout: Layout) -> None:
    """Apply the entries of `techniques`, in their order."""
    config = layout.config
    for name, entry in config.techniques.items():
        build(entry, path=f"techniques.{name}", trust=config.run.trust)(part, config, layout.ranks)


def _quantize(part: nn.Module, layout: Layout) -> None:
    """Have products computed in the numbers of `quantization`."""
    section = layout.config.decoder
    if section is not None:
        over = layout.ranks_of_width
        quantize(part, layout.config.quantization, section, layout.products, over)


def _adapt(part: nn.Module, layout: Layout) -> None:
    """Add the adapter's matrices beside the products."""
    assert layout.adapter is not None
    layout.adapter.activate(part)
    if layout.cut("tp"):
        spread_adapters(part, layout.mesh)


def _choose_mask(part: nn.Module, layout: Layout) -> None:
    """Choose between a mask and blocks of documents, for a decoder."""
    if isinstance(part, Decoder):
        part.in_blocks = in_blocks(layout.config, layout.device.type)


def _shard(part: nn.Module, layout: Layout) -> None:
    """Shard over the data ranks; FSDP casts to the format of products."""
    config = layout.config
    after = config.parallel.reshard_after_forward
    shard(
        part,
        layout.mesh,
        param_dtype=layout.multiplied,
        as_they_are=keeps_gradients(config),
        reduce_dtype=torch.bfloat16 if config.precision.reduces_in_bf16 else torch.float32,
        reshard_after_forward=after if isinstance(after, int) else after == "always",
        cpu_offload=config.parallel.cpu_offload,
    )


def _set_residual(part: nn.Module, layout: Layout) -> None:
    """Give hidden states between layers their format where products are in 16 bits."""
    precision = layout.config.precision
    halved = layout.sharded or next(part.parameters()).dtype in HALF.values()
    if precision.mixed_precision in HALF and isinstance(part, Decoder) and halved:
        part.residual_dtype = FORMATS[precision.residual_dtype]
        for module in part.mtp.values():
            module.residual_dtype = part.residual_dtype  # type: ignore[assignment]
        for norm in part.norms_of_layers():
            norm.made = HALF[precision.mixed_precision]


def choose_kernels(model: nn.Module, capability: tuple[int, int]) -> None:
    """Have every layer with a choice of kernels choose for a GPU of this compute capability."""
    for module in model.modules():
        if choose := getattr(module, "choose_kernel", None):  # of attention and of experts
            choose(capability)


def keeps_gradients(config: Config) -> bool:
    """Whether gradients of one rank stay as backward gives them: nothing is added, same format."""
    alone = config.parallel.product_without_dp_shard * config.parallel.dp_shard == 1
    same_format = config.precision.stored_gradients == config.precision.mixed_precision
    return alone and same_format and config.train.grad_accum_steps == 1


def apply_to_blocks(model: nn.Module, config: Config) -> None:
    """Recompute, then compile: the compiler must see the recomputation."""
    train, ep = config.train, config.parallel.ep
    n_layers = config.decoder.n_layers if config.decoder is not None else None
    recompute_blocks(model, train.policy, n_layers=n_layers, layers=ep > 1)
    if train.compile_model:
        # What a fully recomputed block keeps for backward is its parameters, and the compiler
        # cannot keep a DTensor (torch 2.13). Nor can it know how many tokens come to a rank's
        # experts.
        full = train.policy.recomputes and not train.policy.by_name
        layers = ep > 1 or (config.parallel.tp > 1 and full)
        compile_blocks(model, train.compile_backend, layers=layers, mixtures=ep == 1)


TECHNIQUES: tuple[
    tuple[Callable[[Layout], bool], Callable[[Any, Layout], None]],
    ...,
] = (
    # Heads, feed-forward and vocabulary over tp, sequences between layers.
    (lambda on: on.cut("tp"), lambda part, on: spread_width(part, on.config.parallel, on.mesh)),
    # Experts over ep, and counts of routed tokens over all ranks.
    (lambda on: on.sharded, lambda part, on: spread_experts(part, on.mesh)),
    (lambda on: on.sharded, lambda part, on: spread_scopes(part, on.mesh)),
    # Sequences over cp, inside attention.
    (lambda on: on.cut("cp"), lambda part, on: spread_context(part, on.config, on.mesh)),
    # After heads are cut: each rank clips the logits of its heads.
    (
        lambda on: on.config.train.use_qk_clip,
        lambda part, on: clip_logits(part, on.config.train.qk_clip_threshold, on.ranks),
    ),
    (lambda on: bool(on.config.techniques), _build_techniques),
    (lambda on: on.config.quantization.in_products, _quantize),
    (lambda on: on.adapter is not None, _adapt),
    (lambda on: True, _set_residual),
    # Before compilation: the choice of attention mask and kernels is part of the traced graph.
    (lambda on: True, _choose_mask),
    (
        lambda on: on.device.type == "cuda",
        lambda part, on: choose_kernels(part, torch.cuda.get_device_capability(on.device)),
    ),
    # Recomputation, then compilation of the whole block.
    (lambda on: True, lambda part, on: apply_to_blocks(part, on.config)),
    # Last: FSDP gathers and frees all parameters, and sums gradients.
    (lambda on: on.sharded, _shard),
)
"""Each technique as (applies, do), in the order `apply` takes for every stage on this rank."""
