"""`parallel.layout=auto`: the degrees that the model, the memory of a device and the number of
ranks ask for.
"""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass

from forge.config.model import Decoder
from forge.config.numbers import byte_size
from forge.config.parallel import AXES, Parallel
from forge.config.root import Config
from forge.plan.memory import memory_by_part
from forge.plan.world import World, ranks_of, ranks_per_node
from forge.resolve.derivation import Derived, derivation
from forge.resolve.layout import batch, pipeline
from forge.resolve.rule import Rule
from forge.resolve.rules import context, expert, tensor
from forge.resolve.rules import pipeline as rules_pipeline

# of a device's memory: the rest is for the CUDA context, buffers of collectives and what the
# allocator cannot use
USABLE = 0.9
CHOSEN = ("dp_replicate", "dp_shard", "tp", "pp", "ep")
MODEL = ("dim", "n_layers", "n_heads", "n_kv_heads", "ffn_hidden_dim", "vocab_size")
MODEL += ("moe.num_experts", "moe.frequency", "moe.ffn_hidden_dim")
SHAPE_RULES = tuple(
    value
    for module in (tensor, expert, rules_pipeline, context)
    for value in vars(module).values()
    if isinstance(value, Rule)
)
"""What the degrees must divide, whatever machine it is."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A layout in words and in degrees."""

    name: str
    degrees: dict[str, int]


@derivation(
    reads=(
        *(f"parallel.{axis}" for axis in AXES),
        *(f"model.{name}" for name in MODEL),
        "train.batch_size",
        "train.seq_len",
    ),
    writes=("parallel.layout", *(f"parallel.{axis}" for axis in CHOSEN)),
)
def auto(config: Config, world: World) -> Iterator[Derived]:
    """With parallel.layout=auto: the first that fits of ddp, hsdp, fsdp, then ep and tp inside a
    node, then pp, with fsdp over the rest.
    """
    if config.parallel.layout != "auto" or config.parallel.dp_shard != -1 or world.size < 1:
        return
    chosen, why = choose(config, world)
    if chosen is not None:
        yield Derived(key="parallel.layout", value="given", why=f"{chosen.name}: {why}")
        for axis, degree in chosen.degrees.items():
            if degree != getattr(config.parallel, axis):
                yield Derived(key=f"parallel.{axis}", value=degree, why=chosen.name)


@derivation(
    reads=(
        "parallel.layout",
        "parallel.dp_shard",
        "parallel.pp",
        "train.batch_size",
        "train.seq_len",
        "train.grad_accum_steps",
    ),
    writes=("parallel.reshard_after_forward", "parallel.reduce_gradients"),
)
def memory_for_time(config: Config, world: World) -> Iterator[Derived]:
    """What saves time and takes memory, where there is enough: weights that stay gathered,
    gradients that are reduced once a step.
    """
    parallel, alone = (
        config.parallel,
        world.size == 1 and config.precision.mixed_precision == "fp32",
    )
    if parallel.reshard_after_forward == "auto":
        if alone:
            chosen, why = "never", "one device in fp32 gathers nothing"
        elif parallel.pp > 1:
            chosen, why = "never", f"parallel.pp={parallel.pp}"
        elif parallel.fsdp > 1:
            chosen, why = "always", f"{parallel.fsdp} shards"
        else:
            fits, why = _fits(config, world, reshard_after_forward="never")
            chosen, why = "never" if fits else "always", f"nothing is sharded, and {why}"
        yield Derived(key="parallel.reshard_after_forward", value=chosen, why=why)
        parallel = dataclasses.replace(parallel, reshard_after_forward=chosen)
    if parallel.reduce_gradients == "auto":
        if parallel.pp > 1 or config.train.grad_accum_steps == 1:
            fits, why = (
                True,
                f"parallel.pp={parallel.pp}" if parallel.pp > 1 else "one micro-batch a step",
            )
        elif alone:
            fits, why = True, "one device in fp32 reduces nothing"
        else:
            fits, why = _fits(
                dataclasses.replace(config, parallel=parallel), world, reduce_gradients="step"
            )
        yield Derived(
            key="parallel.reduce_gradients", value="step" if fits else "micro_batch", why=why
        )


def _fits(config: Config, world: World, **options: str) -> tuple[bool, str]:
    """Whether a rank has the memory that it needs with these options of the layout, and the
    numbers; it has where they are not known.
    """
    memory = device_memory(world)
    needed = sum(
        memory_by_part(
            dataclasses.replace(config, parallel=dataclasses.replace(config.parallel, **options))
        ).values()
    )
    if memory is None or not needed:
        return True, "how much memory it takes or a device has is not known"
    key, value = next(iter(options.items()))
    return (
        needed <= USABLE * memory,
        f"{key}={value} needs {byte_size(needed)}, and a device has {byte_size(memory)}",
    )


def choose(config: Config, world: World) -> tuple[Candidate | None, str]:
    """The first candidate that may be and fits, and why; the leanest when none fits, the first that
    shards when memory is unknown.
    """
    memory = device_memory(world)
    found: list[tuple[int, Candidate]] = []
    for candidate in candidates(config.parallel, world, _experts(config)):
        tried = laid_out(config, candidate.degrees, world)
        if broken(tried, world):
            continue
        needed = sum(memory_by_part(tried).values())
        if memory is None or not needed:
            if candidate.degrees["dp_replicate"] == config.parallel.dp_replicate:
                return candidate, "how much memory it takes or a device has is not known"
        elif needed <= USABLE * memory:
            return (
                candidate,
                f"{byte_size(needed)} of the {byte_size(memory)} of a device on {ranks_of(world.size)}",
            )
        found.append((needed, candidate))
    if not found:
        return None, ""
    needed, leanest = min(found, key=lambda pair: pair[0])
    why = (
        f"{byte_size(needed)} of the {byte_size(memory or 0)} of a device on {ranks_of(world.size)}"
    )
    return leanest, f"{why}; none that was tried fits, and this needs least"


def candidates(given: Parallel, world: World, experts: int = 0) -> Iterator[Candidate]:
    """Layouts of all ranks, first without what talks in every layer. Degrees above 1 that are given
    stay.

    experts: those of a layer; 0 = a dense model. tp and ep stay inside a node; ep is as large as tp
    lets it be.
    """
    node = ranks_per_node(world)
    tp_sizes = (
        [given.tp] if given.tp > 1 else [1, *(size for size in (2, 4, 8) if node % size == 0)]
    )
    pp_sizes = [given.pp] if given.pp > 1 else [1, 2, 4, 8, 16]

    def ep_sizes(tp: int) -> list[int]:
        return (
            [given.ep]
            if given.ep > 1
            else [
                1,
                *(
                    size
                    for size in (2, 4, 8)
                    if experts and node % (tp * size) == experts % size == 0
                ),
            ]
        )

    def over_the_rest(*, tp: int, pp: int, ep: int, replicate: int) -> Iterator[Candidate]:
        others = tp * pp * ep * given.cp * replicate
        if world.size % others == 0:
            degrees = {
                "dp_replicate": replicate,
                "dp_shard": world.size // others,
                "tp": tp,
                "pp": pp,
                "ep": ep,
            }
            yield Candidate(name=_name(degrees), degrees=degrees)

    tp, pp, ep = tp_sizes[0], pp_sizes[0], ep_sizes(tp_sizes[0])[0]
    ranks, nodes = world.size // (tp * pp * ep * given.cp), world.size // node
    replicas = (
        [given.dp_replicate]
        if given.dp_replicate > 1
        else sorted({max(ranks, 1), nodes, 1}, reverse=True)
    )
    for replicate in replicas:
        yield from over_the_rest(tp=tp, pp=pp, ep=ep, replicate=replicate)
    for ep in ep_sizes(tp)[1:]:
        yield from over_the_rest(tp=tp, pp=pp, ep=ep, replicate=given.dp_replicate)
    for tp in tp_sizes[1:]:
        yield from over_the_rest(tp=tp, pp=pp, ep=ep_sizes(tp)[-1], replicate=given.dp_replicate)
    for pp in pp_sizes[1:]:
        for tp in reversed(tp_sizes):
            yield from over_the_rest(
                tp=tp, pp=pp, ep=ep_sizes(tp)[-1], replicate=given.dp_replicate
            )


def laid_out(config: Config, degrees: dict[str, int], world: World) -> Config:
    """A copy of the config with these degrees, and what follows from them worked out."""
    tried = copy.copy(config)
    for section in ("parallel", "train"):
        setattr(tried, section, copy.copy(getattr(config, section)))
    for axis, degree in degrees.items():
        setattr(tried.parallel, axis, degree)
    for following in (batch, pipeline):
        for step in following.function(tried, world):
            assert isinstance(step, Derived)
            section, _, name = step.key.partition(".")
            setattr(getattr(tried, section), name, step.value)
    return tried


def broken(config: Config, world: World) -> bool:
    """Whether the model does not divide by the degrees."""
    return any(True for rule in SHAPE_RULES if not rule.warning for _ in rule.check(config, world))


def device_memory(world: World) -> int | None:
    """Bytes that a rank has: those of a GPU, or its share of this machine's on a CPU; None where
    that is not known.
    """
    if world.device == "cuda":
        return world.devices.memory
    if world.remote:
        return None
    try:
        return (
            os.sysconf("SC_PHYS_PAGES")
            * os.sysconf("SC_PAGE_SIZE")
            // max(1, ranks_per_node(world))
        )
    except (OSError, ValueError):
        return None


def _name(degrees: dict[str, int]) -> str:
    """Readable, as the presets are named: single, ddp, hsdp, ep8_fsdp."""
    named = [f"{axis}{degrees[axis]}" for axis in ("ep", "tp", "pp") if degrees[axis] > 1]
    replicate, shard = degrees["dp_replicate"] > 1, degrees["dp_shard"] > 1
    if replicate or shard:
        named.append("hsdp" if replicate and shard else "fsdp" if shard else "ddp")
    return "_".join(named) or "single"


def _experts(config: Config) -> int:
    """Experts of a layer."""
    model = config.model
    return model.moe.num_experts if isinstance(model, Decoder) and model.is_moe else 0
