"""Rules on ranks, devices and their memory: needs of the parallel layout on the machine."""

from __future__ import annotations

from math import prod

from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.numbers import byte_size
from forge.config.optimizers.base import GROUPED
from forge.config.parallel import Parallel
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.config.run import Run
from forge.config.train import Train
from forge.planning.context import parts_seen
from forge.planning.memory import memory_of
from forge.planning.state import STATE
from forge.planning.world import World, ranks_of, ranks_per_node
from forge.resolve.auto import device_memory
from forge.resolve.layout import DEGREES

RANKS = ("run.num_processes", *DEGREES)
HOST_MEMORY, MEMORY = "run.host_memory", "parallel.memory"
TRAIN_TIMEOUT = "parallel.nccl_train_timeout_sec"
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl", "hccl")


@rule("parallel.world_size", *RANKS)
def world_size(parallel: Parallel, world: World) -> Findings:
    """dp_replicate * dp_shard * tp * pp * cp * ep must equal the number of ranks."""
    degrees = parallel.degrees()
    product = prod(degrees.values())
    if product != world.size:
        arithmetic = " * ".join(f"{axis}={size}" for axis, size in degrees.items())
        available = f"there {'is' if world.size == 1 else 'are'} {ranks_of(world.size)}"
        hint = "parallel=auto, or other degrees, or another number of ranks"
        only_replicas = degrees["dp_replicate"] > 1 and degrees["dp_shard"] == 1
        axis = "dp_replicate" if only_replicas else "dp_shard"
        other_degrees = prod(size for name, size in degrees.items() if name != axis)
        if world.size >= other_degrees and world.size % other_degrees == 0:
            hint = f"parallel.{axis}={world.size // other_degrees}"
        message = f"{arithmetic} = {product}, and {available} (from {world.source})."
        yield "parallel.dp_shard", message, hint


@rule("run.gpus", "run.device", "run.num_processes")
def gpus(run: Run, world: World) -> Findings:
    """On GPUs every rank has one of its own."""
    gpu_count = world.devices.gpus
    if run.device == "cuda" and 0 < gpu_count < world.size and not world.elsewhere:
        available = (
            f"there {'is' if gpu_count == 1 else 'are'} {gpu_count} ({world.devices.source})"
        )
        message = f"{world.size} ranks (from {world.source}) need {world.size} GPUs; {available}."
        count = f"run.num_processes={gpu_count} " if world.source == "run.num_processes" else ""
        hint = f"{count}parallel=auto, or run.device=cpu"
        yield f"run.num_processes={world.size}", message, hint


@rule("run.mps_ranks", "run.device", *RANKS)
def mps_ranks(run: Run, world: World) -> Findings:
    """run.device=mps is one rank: an Apple GPU is one device, without collectives in torch."""
    if run.device == "mps" and world.size > 1:
        message = f"there are {ranks_of(world.size)} (from {world.source}), and an Apple GPU is one"
        hint = "parallel=single run.num_processes=1, or run.device=cpu"
        yield "run.device", f"{message} device, for which torch has no collectives.", hint


@rule("parallel.needs_decoder", "parallel.tp", "parallel.pp", "parallel.cp")
def cuts_need_decoder(model: Model, parallel: Parallel) -> Findings:
    """tp, pp and cp cut forge's Decoder, whose layers they know; any other model is sharded and
    replicated only.
    """
    for key in ("parallel.tp", "parallel.pp", "parallel.cp"):
        degree = getattr(parallel, key.partition(".")[2])
        if degree > 1 and not model.has_blocks:
            yield key, f"{key}=1; parallel.dp_shard and dp_replicate take any model"


@rule("parallel.backend", "parallel.backend", "run.device")
def backend(parallel: Parallel, world: World) -> Findings:
    """parallel.backend is one of torch.distributed for the device of the run; nccl is for GPUs."""
    text, device = parallel.backend, world.device
    if device == "mps":  # its one rank speaks to no other
        return
    names = {device: text}
    if ":" in text:
        pairs = [pair.strip().partition(":") for pair in text.split(",")]
        names = {kind: name for kind, _, name in pairs}
    chosen, ours = names.get(device, ""), "gloo" if device == "cpu" else "nccl"
    on_gpu_only = chosen == "nccl" and device == "cpu"
    if not all(names.values()) or chosen not in BACKENDS or on_gpu_only:
        yield "parallel.backend", f"parallel.backend={ours}"


@rule("parallel.nccl_train_timeout_sec", TRAIN_TIMEOUT, "parallel.nccl_timeout_sec")
def train_timeout(parallel: Parallel) -> Findings:
    """The timeout after the first step, parallel.nccl_train_timeout_sec, is at most the timeout
    until then.
    """
    longer = parallel.nccl_train_timeout_sec > parallel.nccl_timeout_sec
    if longer and parallel.nccl_train_timeout_sec != Parallel().nccl_train_timeout_sec:
        before, after = parallel.nccl_timeout_sec, parallel.nccl_train_timeout_sec
        yield TRAIN_TIMEOUT, f"parallel.nccl_timeout_sec={after}, or {TRAIN_TIMEOUT}={before}"


@rule("parallel.offload_backend", "parallel.cpu_offload", "parallel.backend", "run.device")
def offload_backend(parallel: Parallel, world: World) -> Findings:
    """With parallel.cpu_offload the norm of the gradient is summed between CPUs, which nccl alone
    cannot.
    """
    text = parallel.backend
    sums = "cpu:" in text or text == "gloo"
    if parallel.cpu_offload and world.device == "cuda" and not sums:
        yield "parallel.backend", "parallel.cpu_offload=false, or no parallel.backend"


@rule(
    MEMORY,
    *RANKS,
    "train.batch_size",
    "train.seq_len",
    *GROUPED,
    "adapter",
    warning=True,
)
def fits_memory(config: Config, world: World) -> Findings:
    """The estimated memory of a device should be at most what its GPU has."""
    capacity = world.devices.memory if world.device == "cuda" else None
    needed = memory_of(config).allocated
    if capacity is not None and needed > capacity:
        message = f"a device is estimated to need {byte_size(needed)}; the smallest GPU here has"
        hint = "another layout, full activation checkpointing, a smaller batch or model, more GPUs"
        yield "parallel", f"{message} {byte_size(capacity)}.", hint


@rule(HOST_MEMORY, "run.device", *RANKS, *GROUPED, "adapter", warning=True)
def host_memory(config: Config, world: World) -> Findings:
    """On a CPU the weights, gradients and optimizer state of all ranks fit in the machine's memory;
    forge.train refuses others.
    """
    parts, capacity, ranks = memory_of(config).state, device_memory(world), ranks_per_node(world)
    needed = sum(bytes for name, bytes in parts.items() if name.startswith(STATE))
    if world.device != "cpu" or capacity is None or needed <= capacity:
        return
    demand = f"needs a GPU, or {byte_size(needed)}"
    if ranks > 1:
        demand = (
            f"need {ranks} GPUs, or {ranks} * {byte_size(needed)} = {byte_size(ranks * needed)}"
        )
    message = f"{ranks_of(ranks)} (from {world.source}) {demand} of a CPU's memory for weights,"
    message += f" gradients and optimizer state; this machine has {world.devices.gpus or 'no'} GPUs"
    message += f" ({world.devices.source}) and {byte_size(ranks * capacity)}."
    hint = "a smaller model, such as model=small, or a machine with GPUs"
    yield f"run.num_processes={world.size}", message, hint


@rule("parallel.symmetric_memory", "parallel.symmetric_memory", "parallel.backend", "run.device")
def symmetric_memory(parallel: Parallel, run: Run, world: World) -> Findings:
    """parallel.symmetric_memory is NCCL's: run.device must be cuda and its backend nccl."""
    pairs, version = parallel.backend.split(","), world.devices.torch
    nccl = "nccl" in pairs or "cuda:nccl" in pairs
    if not parallel.symmetric_memory:
        return
    if not (run.device == "cuda" and nccl):
        yield "parallel.symmetric_memory", "parallel.symmetric_memory=false"
    elif version is not None and version < (2, 13):
        message = f"torch {version[0]}.{version[1]} has it not for FSDP's collectives, 2.13 has."
        yield "parallel.symmetric_memory", message, "parallel.symmetric_memory=false"


@rule("parallel.cp_ring_torch", "parallel.cp", "parallel.cp_method", "train.compile_model")
def cp_ring_torch(parallel: Parallel, train: Train, world: World) -> Findings:
    """Before torch 2.12 the compiler gives ring attention gradients of zero: it runs uncompiled."""
    version = world.devices.torch
    ring = parallel.cp > 1 and parallel.cp_method == "ring"
    if ring and train.compile_model and version is not None and version < (2, 12):
        hint = "train.compile_model=false, or parallel.cp_method=all_gather, or torch 2.12"
        yield "parallel.cp_method", hint


@rule(
    "parallel.cp_ring_compiled",
    "parallel.cp",
    "parallel.cp_method",
    "parallel.cp_load_balance",
    "train.compile_model",
    "train.seq_len",
    "model.sliding_window_size",
    "model.chunk_attn_window_size",
    "model.kinds",
)
def cp_ring_compiled(model: Decoder, parallel: Parallel, train: Train) -> Findings:
    """A compiled ring hangs where a rank sees no keys of another: every part must be seen."""
    if not (parallel.cp > 1 and parallel.cp_method == "ring" and train.compile_model):
        return
    spans = [layer.span for _, layer in model.in_use() if not layer.mixer.recurrent]
    if all(parts_seen(parallel, train.seq_len, span) for span in spans):
        return
    if parallel.runs_of_sequence == 1:
        message = "contiguous parts: the first rank sees no keys of others."
        yield "parallel.cp_load_balance", message, "parallel.cp_load_balance=true"
    else:
        message = f"with cp={parallel.cp} a window or chunk hides whole parts from some ranks."
        yield "parallel.cp_method", message, "parallel.cp_method=all_gather"
