"""Rules on the parallel layout as a whole: its arithmetic, the devices and models it needs, and
options that do nothing in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from forge.config.field import default_of
from forge.config.model import Decoder
from forge.config.numbers import byte_size
from forge.config.parallel import AXES, Parallel
from forge.config.problems import literal, shown, typed
from forge.config.root import Config
from forge.plan.memory import STATE, memory_by_part
from forge.plan.world import World, ranks_of, ranks_per_node
from forge.resolve.auto import choose, device_memory, laid_out
from forge.resolve.rule import Finding, rule

DEGREES = ("run.num_processes", *(f"parallel.{axis}" for axis in AXES))
HOST_MEMORY = "run.host_memory"
OTHER_LAYOUT = "other degrees, or another number of ranks"
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")


@rule("parallel.world_size", reads=DEGREES)
def world_size(config: Config, world: World) -> Iterator[Finding]:
    """dp_replicate * dp_shard * tp * pp * cp * ep must equal the number of ranks."""
    degrees = config.parallel.degrees()
    if prod(degrees.values()) != world.size:
        arithmetic = " * ".join(f"{axis}={size}" for axis, size in degrees.items())
        what = f"{arithmetic} = {prod(degrees.values())}, and there {ranks(world)} (from {world.source})."
        yield f"parallel.dp_shard={degrees['dp_shard']}", what, _product_fix(config, world)


@rule("run.gpus", reads=("run.device", "run.num_processes"))
def gpus(config: Config, world: World) -> Iterator[Finding]:
    """On GPUs every rank has one of its own."""
    here = world.devices.gpus
    if config.run.device == "cuda" and 0 < here < world.size and not world.elsewhere:
        there = f"there {'is' if here == 1 else 'are'} {here}"
        what = f"{world.size} ranks (from {world.source}) need {world.size} GPUs; {there} ({world.devices.source})."
        count = f"run.num_processes={here} " if world.source == "run.num_processes" else ""
        yield (
            f"run.num_processes={world.size}",
            what,
            f"{count}parallel=auto, or run.device=cpu",
        )


@rule("parallel.needs_decoder", reads=("parallel.tp", "parallel.pp", "parallel.cp"))
def needs_decoder(config: Config, world: World) -> Iterator[Finding]:
    """tp, pp and cp cut forge's Decoder, whose layers they know; any other model is sharded and
    replicated only.
    """
    if not isinstance(config.model, Decoder):
        for axis in ("tp", "pp", "cp"):
            if (size := getattr(config.parallel, axis)) > 1:
                what = f"{config.model._target_} is no Decoder of forge, and parallel.{axis} knows the layers of that only."
                yield (
                    f"parallel.{axis}={size}",
                    what,
                    f"parallel.{axis}=1; parallel.dp_shard and dp_replicate take any model",
                )


@rule("parallel.backend", reads=("parallel.backend", "run.device"))
def backend(config: Config, world: World) -> Iterator[Finding]:
    """parallel.backend names a backend for the device of the run; nccl is for GPUs."""
    text, fix = (
        config.parallel.backend,
        f"parallel.backend={'nccl' if world.device == 'cuda' else 'gloo'}",
    )
    pairs = [pair.strip().partition(":") for pair in text.split(",")]
    by_device = (
        {device: name for device, _, name in pairs}
        if ":" in text
        else {"cpu": text.strip(), "cuda": text.strip()}
    )
    chosen = by_device.get(world.device, "")
    if not chosen or not all(by_device.values()):
        yield (
            f"parallel.backend={text}",
            f"it names no backend for {world.device}, which the run is on.",
            fix,
        )
    elif chosen not in BACKENDS:
        yield (
            f"parallel.backend={text}",
            f"torch.distributed has no backend {chosen}; it has {', '.join(BACKENDS)}.",
            fix,
        )
    elif by_device.get("cpu") == "nccl" and (world.device == "cpu" or ":" in text):
        yield f"parallel.backend={text}", "nccl needs GPUs, and has no place on a CPU.", fix


@rule("parallel.offload_backend", reads=("parallel.cpu_offload", "parallel.backend", "run.device"))
def offload_backend(config: Config, world: World) -> Iterator[Finding]:
    """With parallel.cpu_offload the norm of the gradient is summed between CPUs, which nccl alone
    cannot.
    """
    parallel = config.parallel
    if (
        parallel.cpu_offload
        and world.device == "cuda"
        and "cpu:" not in parallel.backend
        and parallel.backend != "gloo"
    ):
        what = (
            f"gradients are on the CPU, and parallel.backend={parallel.backend} sums on GPUs only."
        )
        yield (
            f"parallel.backend={parallel.backend}",
            what,
            "parallel.cpu_offload=false, or no parallel.backend",
        )


@rule("parallel.memory", reads=(*DEGREES, "train.batch_size", "train.seq_len"), warning=True)
def memory(config: Config, world: World) -> Iterator[Finding]:
    """The estimated memory of a device should be at most what its GPU has."""
    there = world.devices.memory if world.device == "cuda" else None
    needed = sum(memory_by_part(config).values())
    if there is not None and needed > there:
        what = f"a device is estimated to need {byte_size(needed)}; the smallest GPU here has {byte_size(there)}."
        yield (
            "parallel",
            what,
            " or ".join([*_leaner(config, world, there), "a smaller model, or more GPUs"]),
        )


@rule(HOST_MEMORY, reads=("run.device", *DEGREES), warning=True)
def host_memory(config: Config, world: World) -> Iterator[Finding]:
    """On a CPU the weights, gradients and optimizer state of all ranks fit in the machine's memory;
    forge.train refuses others.
    """
    parts, there = memory_by_part(config), device_memory(world)
    needed = sum(parts.get(name, 0) for name in STATE)
    if world.device != "cpu" or there is None or needed <= there:
        return
    here = ranks_per_node(world)
    of_all = f"{here} * {byte_size(needed)} = {byte_size(here * needed)}"
    demand = (
        f"needs a GPU, or {byte_size(needed)}" if here == 1 else f"need {here} GPUs, or {of_all}"
    )
    found = f"this machine has {world.devices.gpus or 'no'} GPUs ({world.devices.source}) and {byte_size(here * there)}"
    what = f"{ranks_of(here)} (from {world.source}) {demand} of a CPU's memory for weights, gradients and optimizer state; {found}."
    yield (
        f"run.num_processes={world.size}",
        what,
        "a smaller model, such as model=small, or a machine with GPUs",
    )


@rule("parallel.no_effect", reads=(), warning=True)
def no_effect(config: Config, world: World) -> Iterator[Finding]:
    """An option of a technique has an effect only where the layout uses the technique."""
    parallel = config.parallel
    fields = {f"parallel.{field.name}": field for field in dataclasses.fields(parallel)}
    fields |= {f"train.{field.name}": field for field in dataclasses.fields(config.train)}
    for key, where, acts, neutral in effects(config, world):
        group, _, name = key.partition(".")
        value, default = getattr(getattr(config, group), name), default_of(fields[key])
        value = list(value) if isinstance(value, tuple) else value
        if not acts and value not in (default, neutral):
            yield (
                f"{key}={shown(value)}",
                f"{key} has no effect {where}.",
                typed(key, literal(default) if "," in str(default) else shown(default)),
            )


def _leaner(config: Config, world: World, there: int) -> Iterator[str]:
    """What takes no more memory than there is, as it is typed."""
    chosen, _ = (
        choose(replace(config, parallel=Parallel(layout="auto")), world)
        if world.size > 1
        else (None, "")
    )
    if (
        chosen is not None
        and sum(memory_by_part(laid_out(config, chosen.degrees, world)).values()) <= there
    ):
        yield "without other degrees parallel=auto"
    for changes in (
        {"activation_checkpointing": "full"},
        {"batch_size": 1},
        {"activation_checkpointing": "full", "batch_size": 1},
    ):
        tried = replace(config, train=replace(config.train, **changes))
        if tried.train != config.train and sum(memory_by_part(tried).values()) <= there:
            yield " ".join(f"train.{name}={value}" for name, value in changes.items())
            return


def effects(config: Config, world: World) -> Iterator[tuple[str, str, bool, Any]]:
    """(key, where it has no effect, whether it has one here, what it is worked out to where it has
    none).
    """
    parallel = config.parallel
    several, wrapped = world.size > 1, world.size > 1 or config.precision.mixed_precision != "fp32"
    for name in ("nccl_timeout_sec", "backend"):
        yield f"parallel.{name}", "on one rank", several, None
    yield "parallel.cpu_offload", "on one rank in fp32", wrapped, None
    yield "train.nccl_health_check_interval", "on one rank", several, None
    yield "parallel.reshard_after_forward", "on one rank in fp32", wrapped, "never"
    adds_up = wrapped and (config.train.grad_accum_steps > 1 or parallel.pp > 1)
    yield (
        "parallel.reduce_gradients",
        "with one micro-batch a step, or on one rank in fp32",
        adds_up,
        "step",
    )
    for name in ("sequence_parallel", "loss_parallel"):
        yield f"parallel.{name}", "with parallel.tp=1", parallel.tp > 1, None
    for name in ("pp_schedule", "pp_microbatches", "pp_stages_per_rank", "pp_layers"):
        yield f"parallel.{name}", "with parallel.pp=1", parallel.pp > 1, 1
    yield "parallel.cp_method", "with parallel.cp=1", parallel.cp > 1, None
    gathered = parallel.cp > 1 and parallel.cp_method == "all_gather"
    where = (
        "with parallel.cp=1"
        if parallel.cp == 1
        else f"with parallel.cp_method={parallel.cp_method}"
    )
    yield "parallel.cp_load_balance", where, gathered, None
    yield "parallel.layout", "where parallel.dp_shard is given", parallel.layout != "auto", None


def _product_fix(config: Config, world: World) -> str:
    """The one degree that makes the product right, else the presets that would."""
    degrees = config.parallel.degrees()
    axis = (
        "dp_replicate" if degrees["dp_replicate"] > 1 and degrees["dp_shard"] == 1 else "dp_shard"
    )
    size, rest = divmod(
        world.size, prod(degree for name, degree in degrees.items() if name != axis)
    )
    if size and not rest:
        return f"parallel.{axis}={size}"
    return f"parallel=auto, or {OTHER_LAYOUT}"


def ranks(world: World) -> str:
    """'is 1 rank' or 'are 8 ranks'."""
    return f"{'is' if world.size == 1 else 'are'} {ranks_of(world.size)}"
