"""Every technique that changes how a model runs, in the order they are applied."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from forge.adapters.adapter import Adapter
from forge.build import build
from forge.config.model.decoder import Decoder as DecoderSection
from forge.config.model.document_attention import in_blocks
from forge.config.root import Config
from forge.models.attention import Attention
from forge.models.decoder import Decoder
from forge.models.experts import Experts
from forge.models.mla import MLA
from forge.parallel.activation_checkpoint import recompute
from forge.parallel.adapters import spread_adapters
from forge.parallel.context import spread_context
from forge.parallel.expert import spread_experts
from forge.parallel.fsdp import shard
from forge.parallel.materialize import materialize
from forge.parallel.mesh import Mesh
from forge.parallel.modules import FORMATS, HALF, compile_blocks
from forge.parallel.pipeline import Pipeline, cut
from forge.parallel.qk_clip import clip_logits
from forge.parallel.scopes import spread_scopes
from forge.parallel.tensor import spread_width
from forge.quantization.layers import quantize


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
    """Build the model and lay the layers out over the ranks of the mesh.

    make: builds the model; called on the meta device. filled: each rank fills its part of the
    initial weights; False where other weights are loaded. masters: keep fp32 masters of the
    weights, see `forge.tensors.masters`. A pipeline is cut into stages first; then on each

    1. tensor parallelism: heads, feed-forward and vocabulary over tp, sequences between layers;
    2. expert parallelism, and counts of routed tokens over all ranks;
    3. context parallelism: sequences over cp, inside attention; QK-Clip of attention logits;
       then the entries of `techniques`, in their order; products in the numbers of
       `quantization`, and the matrices that `adapter` adds beside the products;
    4. activation checkpointing, then 5. compilation of the whole block;
    6. FSDP, last: gathers and frees all parameters, in 16 bits if configured, and sums
       gradients.

    Without a mesh only `techniques`, 4 and 5; the weights are then multiplied in fp32, unchanged.
    Parameter names are always those of the plain model.
    """

    def fresh() -> nn.Module:
        with torch.device("meta"):
            return make()

    half = HALF.get(config.precision.mixed_precision)
    multiplied = half
    products = build(
        config.quantization, path="quantization", trust=config.run.trust, device=device
    )
    parts = (
        cut(fresh, config, mesh) if mesh is not None and config.parallel.pp > 1 else [(0, fresh())]
    )
    for _, part in parts:
        if half is None and next(part.parameters()).dtype in HALF.values():
            multiplied = torch.float32  # weights in 16 bits, as on a CPU
        if mesh is not None:
            if config.parallel.tp > 1:
                spread_width(part, config.parallel, mesh)  # type: ignore[arg-type]
            spread_experts(part, mesh)
            spread_scopes(part, mesh)
            if config.parallel.cp > 1:
                spread_context(part, config, mesh)  # type: ignore[arg-type]
        if config.train.use_qk_clip:
            clip_logits(part, config.train.qk_clip_threshold, mesh)
        for name, entry in config.techniques.items():
            build(entry, path=f"techniques.{name}", trust=config.run.trust)(part, config, mesh)
        if config.quantization.in_products and config.decoder is not None:
            quantize(part, config.quantization, config.decoder, products)
        if adapter is not None:
            adapter.activate(part)
            if mesh is not None and config.parallel.tp > 1:
                spread_adapters(part, mesh)
        # Before compilation: the choice of attention mask and kernels is part of the traced graph.
        if isinstance(part, Decoder):
            part.in_blocks = in_blocks(config, device.type)
        if device.type == "cuda":
            choose_kernels(part, torch.cuda.get_device_capability(device))
        apply_to_blocks(part, config)
        if mesh is not None:
            shard(
                part,
                mesh,
                param_dtype=multiplied,
                as_they_are=keeps_gradients(config),
                reshard_after_forward=config.parallel.reshard_after_forward == "always",
                cpu_offload=config.parallel.cpu_offload,
            )
            if half is not None and isinstance(part, Decoder):
                part.residual_dtype = FORMATS[config.precision.residual_dtype]
    model = parts[0][1]
    if mesh is not None and config.parallel.pp > 1:
        model = Pipeline(parts, config, mesh, device)
    offloaded = mesh is not None and config.parallel.cpu_offload
    # With CPU offload the shards live in host memory, the buffers on the device.
    seed = config.seed if filled else None
    storage = torch.device("cpu") if offloaded else device
    materialize(model, storage, seed, buffers=device, masters=masters)
    if config.quantization.gathers_in_fp8 and mesh is not None:
        from forge.parallel.fp8_gather import (
            gather_in_fp8,  # with the compiler, which takes seconds
        )

        for _, part in parts:
            gather_in_fp8(part, products)
    return model


def choose_kernels(model: nn.Module, capability: tuple[int, int]) -> None:
    """Have every layer with a choice of kernels choose for a GPU of this compute capability."""
    for module in model.modules():
        if isinstance(module, Attention | MLA | Experts):
            module.choose_kernel(capability)


def keeps_gradients(config: Config) -> bool:
    """Whether gradients of one rank stay as backward gives them: nothing is added, same format."""
    alone = config.parallel.product_without_dp_shard * config.parallel.dp_shard == 1
    same_format = config.precision.param_dtype == config.precision.mixed_precision
    return alone and same_format and config.train.grad_accum_steps == 1


def apply_to_blocks(model: nn.Module, config: Config) -> None:
    """Recompute, then compile: the compiler must see the recomputation."""
    train, ep, model_config = config.train, config.parallel.ep, config.model
    n_layers = model_config.n_layers if isinstance(model_config, DecoderSection) else None
    recompute(model, train.policy, n_layers=n_layers, layers=ep > 1)
    if train.compile_model:
        # What a fully recomputed block keeps for backward is its parameters, and the compiler
        # cannot keep a DTensor (torch 2.13). Nor can it know how many tokens come to a rank's
        # experts.
        full = train.policy.recomputes and not train.policy.by_name
        layers = ep > 1 or (config.parallel.tp > 1 and full)
        compile_blocks(model, train.compile_backend, layers=layers, mixtures=ep == 1)
