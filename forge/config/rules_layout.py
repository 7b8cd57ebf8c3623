"""Rules on the parallel layout: its arithmetic, and what each degree must divide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from math import prod

from forge.config.field import default_of
from forge.config.model import Decoder
from forge.config.parallel import AXES, Parallel
from forge.config.root import Config
from forge.config.rule import Finding, rule
from forge.config.world import World

DEGREES = ("run.num_processes", *(f"parallel.{axis}" for axis in AXES))


@rule("parallel.world_size", reads=DEGREES)
def world_size(config: Config, world: World) -> Iterator[Finding]:
    """dp_replicate * dp_shard * tp * pp * cp * ep must equal the number of ranks."""
    degrees = config.parallel.degrees()
    if prod(degrees.values()) != world.size:
        arithmetic = " * ".join(f"{axis}={size}" for axis, size in degrees.items())
        what = f"{arithmetic} = {prod(degrees.values())}, and there {ranks(world)} (from {world.source})."
        shards, rest = divmod(world.size, config.parallel.product_without_dp_shard)
        fix = f"parallel.dp_shard={shards}" if shards and not rest else "other degrees, or another number of ranks"
        yield f"parallel.dp_shard={degrees['dp_shard']}", what, fix


@rule("parallel.later", reads=DEGREES)
def later(config: Config, world: World) -> Iterator[Finding]:
    """This version shards and replicates over data ranks: tp, pp, cp and ep must be 1."""
    for axis in ("tp", "pp", "cp", "ep"):
        size = getattr(config.parallel, axis)
        if size > 1:
            yield f"parallel.{axis}={size}", f"this version has no parallel.{axis} above 1; it is {size}.", f"parallel.{axis}=1"


@rule("parallel.tp_heads", reads=("parallel.tp", "model.n_heads"))
def tp_heads(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts attention by heads: model.n_heads must be divisible by parallel.tp."""
    model, tp = config.model, config.parallel.tp
    if isinstance(model, Decoder) and model.n_heads % tp:
        yield (
            f"parallel.tp={tp}",
            f"model.n_heads ({model.n_heads}) must be divisible by parallel.tp ({tp}).",
            "another model.n_heads or parallel.tp",
        )


@rule("parallel.tp_kv_heads", reads=("parallel.tp", "model.n_kv_heads"))
def tp_kv_heads(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts attention by heads: model.n_kv_heads must be divisible by parallel.tp."""
    model, tp = config.model, config.parallel.tp
    if isinstance(model, Decoder) and model.kv_heads != model.n_heads and model.kv_heads % tp:
        what = f"model.n_kv_heads ({model.kv_heads}) must be divisible by parallel.tp ({tp})."
        yield f"parallel.tp={tp}", what, "another model.n_kv_heads or parallel.tp"


@rule("parallel.tp_ffn", reads=("parallel.tp", "model.ffn_hidden_dim"))
def tp_ffn(config: Config, world: World) -> Iterator[Finding]:
    """Tensor parallelism cuts the feed-forward layer by its width, which must be divisible by parallel.tp."""
    model, tp = config.model, config.parallel.tp
    if isinstance(model, Decoder) and model.computed_ffn_hidden_dim % tp:
        what = f"the feed-forward width ({model.computed_ffn_hidden_dim}) must be divisible by parallel.tp ({tp})."
        yield f"parallel.tp={tp}", what, f"model.ffn_hidden_dim={-(-model.computed_ffn_hidden_dim // tp) * tp}"


@rule("parallel.seq_len", reads=("parallel.tp", "parallel.cp", "train.seq_len"))
def seq_len(config: Config, world: World) -> Iterator[Finding]:
    """Context and sequence parallelism cut sequences: train.seq_len must be divisible by cp * tp."""
    parts = config.parallel.cp * config.parallel.tp
    if config.train.seq_len % parts:
        what = f"train.seq_len ({config.train.seq_len}) must be divisible by parallel.cp * parallel.tp ({parts})."
        yield f"train.seq_len={config.train.seq_len}", what, f"train.seq_len={-(-config.train.seq_len // parts) * parts}"


@rule("parallel.pp_layers", reads=("parallel.pp", "model.n_layers"))
def pp_layers(config: Config, world: World) -> Iterator[Finding]:
    """Every pipeline stage needs a block: parallel.pp must not exceed model.n_layers."""
    model, pp = config.model, config.parallel.pp
    if isinstance(model, Decoder) and pp > model.n_layers:
        yield f"parallel.pp={pp}", f"{pp} stages cannot share {model.n_layers} blocks.", f"parallel.pp={model.n_layers} at most"


@rule("parallel.tied_pp", reads=("parallel.pp", "model.tie_embeddings"))
def tied_pp(config: Config, world: World) -> Iterator[Finding]:
    """Tied embeddings cannot be pipelined: the table and the head live on different stages."""
    model, pp = config.model, config.parallel.pp
    if isinstance(model, Decoder) and model.tie_embeddings and pp > 1:
        yield f"parallel.pp={pp}", "model.tie_embeddings needs the table and the head on one stage.", "model.tie_embeddings=false"


@rule("parallel.ep_needs_moe", reads=("parallel.ep",))
def ep_needs_moe(config: Config, world: World) -> Iterator[Finding]:
    """Expert parallelism needs a model with experts."""
    if config.parallel.ep > 1 and not config.model.is_moe:
        yield f"parallel.ep={config.parallel.ep}", "parallel.ep > 1 needs a mixture-of-experts model; this one is dense.", "parallel.ep=1"


@rule("parallel.no_effect", reads=(), warning=True)
def no_effect(config: Config, world: World) -> Iterator[Finding]:
    """Settings of collectives and pipelines have no effect on one rank."""
    if world.size > 1:
        return
    defaults = {f.name: default_of(f) for f in dataclasses.fields(Parallel)}
    for name in ("pp_schedule", "nccl_timeout_sec", "backend"):
        value = getattr(config.parallel, name)
        if value != defaults[name]:
            yield f"parallel.{name}={value}", f"parallel.{name} has no effect on one rank.", f"leave it at {defaults[name]}"
    if config.train.nccl_health_check_interval:
        value = config.train.nccl_health_check_interval
        yield (
            f"train.nccl_health_check_interval={value}",
            "there is no collective to check on one rank.",
            "train.nccl_health_check_interval=0",
        )


def ranks(world: World) -> str:
    """'is 1 rank' or 'are 8 ranks'."""
    return "is 1 rank" if world.size == 1 else f"are {world.size} ranks"
