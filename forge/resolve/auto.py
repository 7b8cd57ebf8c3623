"""`parallel.layout=auto`: choose the degrees by the model, the memory of a device and the number
of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from forge.config.numbers import byte_size
from forge.config.optimizers.base import GROUPED
from forge.config.parallel import METHODS, Parallel
from forge.config.root import Config
from forge.config.rule import Derived, derivation, put, rules_of
from forge.planning.memory import memory_of
from forge.planning.world import World, ranks_of, ranks_per_node
from forge.resolve.layout import DEGREES, batch, pipeline
from forge.resolve.rules import degrees as degree_rules

USABLE = 0.95
"""Share of a device's memory to reserve; the rest is for the CUDA context and buffers of NCCL."""
EQUAL = 1.05
"""Ratio of step times within which two layouts count as equal: the model of time is no finer."""
CHOSEN = ("dp_replicate", "dp_shard", "tp", "pp", "ep")
UNKNOWN = "how much memory it takes or a device has is not known"
DEGREE_RULES = tuple(rule for rule in rules_of(degree_rules) if not rule.warning)
"""Rules on sizes the degrees must divide, the same on every machine."""


@derivation(
    *DEGREES,
    "model.dim",
    "model.n_layers",
    "model.n_heads",
    "model.n_kv_heads",
    "model.ffn_hidden_dim",
    "model.vocab_size",
    "model.moe.num_experts",
    *GROUPED,
    "adapter",
    "model.moe.frequency",
    "model.moe.ffn_hidden_dim",
    "model.moe.shared_hidden_dim",
    "train.batch_size",
    "train.seq_len",
    writes=("parallel.layout", *(f"parallel.{axis}" for axis in CHOSEN)),
)
def auto(config: Config, parallel: Parallel, world: World) -> Iterator[Derived]:
    """With parallel.layout=auto: the first that fits of ddp, hsdp, fsdp, then ep and tp inside a
    node, then pp, with fsdp over the rest; on plan.device the fastest of them.
    """
    if parallel.layout != "auto" or parallel.dp_shard != -1 or world.size < 1:
        return
    chosen, why = choose_degrees(config, world)
    if chosen:
        yield Derived("parallel.layout", "given", f"{layout_name(chosen)}: {why}")
        for axis, degree in chosen.items():
            if degree != getattr(parallel, axis):
                yield Derived(f"parallel.{axis}", degree, layout_name(chosen))


RESHARD, REDUCE = "parallel.reshard_after_forward", "parallel.reduce_gradients"


@derivation(
    "parallel.layout",
    "parallel.dp_shard",
    "parallel.pp",
    "train.batch_size",
    "train.seq_len",
    "train.grad_accum_steps",
    *GROUPED,
    "adapter",
    writes=(RESHARD, REDUCE),
)
def memory_for_time(config: Config, parallel: Parallel, world: World) -> Iterator[Derived]:
    """What saves time and takes memory, where there is enough: weights that stay gathered,
    gradients that are reduced once a step.
    """
    alone = world.size == 1 and not config.one_rank_has_fsdp
    precision = config.precision
    adds_in_place = alone and not (precision.any_16_bits or precision.gradients_in_bf16)
    pipelined = f"parallel.pp={parallel.pp}" if parallel.pp > 1 else ""
    if parallel.reshard_after_forward == "auto":
        fits, why = True, pipelined
        if alone:
            why = "one device gathers nothing"
            if not config.precision.any_16_bits:
                why = "one device in fp32 gathers nothing"
        elif not pipelined and parallel.fsdp > 1:
            fits, why = False, f"{parallel.fsdp} shards"
        elif not pipelined:
            fits, why = _fits(config, world, reshard_after_forward="never")
            why = f"nothing is sharded, and {why}"
        reshard = "never" if fits else "always"
        yield Derived(RESHARD, reshard, why)
        parallel = replace(parallel, reshard_after_forward=reshard)
    if parallel.reduce_gradients == "auto":
        fits, why = True, pipelined or "one micro-batch a step"
        if not pipelined and config.train.grad_accum_steps > 1:
            why = "one device in fp32 reduces nothing"
            if config.precision.reduces_in_bf16 and parallel.reduces:
                fits, why = False, "precision.reduce_dtype=bf16 is not for a rank's own sums"
            elif not adds_in_place:
                tried = replace(config, parallel=parallel)
                fits, why = _fits(tried, world, reduce_gradients="step")
        yield Derived(REDUCE, "step" if fits else "micro_batch", why)


def _fits(config: Config, world: World, **option: str) -> tuple[bool, str]:
    """Whether the layout with this option fits a device's memory, and a reason with numbers."""
    memory = device_memory(world)
    needed = memory_needed(replace(config, parallel=replace(config.parallel, **option)))
    if memory is None or not needed:
        return True, UNKNOWN
    ((name, value),) = option.items()
    why = f"{name}={value} needs {byte_size(needed)}, and a device has {byte_size(memory)}"
    return needed <= USABLE * memory, why


def choose_degrees(config: Config, world: World) -> tuple[dict[str, int], str]:
    """Choose the degrees of the first candidate legal for the model and within a device's memory.

    Returns degrees and a reason. Without a fit: the candidate of least memory; where memory is not
    known: the first to shard. On plan.device: the first of at most 1.05 times the fastest's time.
    """
    memory, needs, model = device_memory(world), [], config.model
    timed: list[tuple[float, int, dict[str, int]]] = []
    experts = model.routed_experts
    for degrees in candidate_degrees(config.parallel, world, experts):
        tried = laid_out(config, degrees, world)
        if any(problem for rule in DEGREE_RULES for problem in rule.check(tried, world)):
            continue
        needed = memory_needed(tried)
        needs.append((needed, degrees))
        if memory is None or not needed:
            if degrees["dp_replicate"] == config.parallel.dp_replicate:
                return degrees, UNKNOWN
        elif needed <= USABLE * memory:
            if config.plan.device is None:
                break
            from forge.planning.time import planned_time  # most commands do not need it

            time = planned_time(gathering(tried), ranks_per_node(world))
            if time is None:
                break
            timed.append((1 / time.tokens_per_second, needed, degrees))
    if not needs:
        return {}, ""
    if timed:
        return _fastest(timed, memory or 0, world)
    needed, degrees = min(needs, key=lambda pair: pair[0])
    why = (
        f"{byte_size(needed)} of the {byte_size(memory or 0)} of a device on {ranks_of(world.size)}"
    )
    if needed > USABLE * (memory or 0):
        why += "; none that was tried fits, and this needs least"
    return degrees, why


def gathering(tried: Config) -> Config:
    """Set an open parallel.reshard_after_forward to the value its derivation would give."""
    parallel = tried.parallel
    if parallel.reshard_after_forward != "auto":
        return tried
    gathered = "always" if parallel.fsdp > 1 and parallel.pp == 1 else "never"
    return replace(tried, parallel=replace(parallel, reshard_after_forward=gathered))


def _fastest(
    timed: list[tuple[float, int, dict[str, int]]], memory: int, world: World
) -> tuple[dict[str, int], str]:
    """The degrees of the fastest layout, and a reason; the first of all within EQUAL of it.

    timed: seconds a token and GPU, bytes, degrees.
    """
    least = min(seconds for seconds, _, _ in timed)
    seconds, needed, degrees = next(entry for entry in timed if entry[0] <= EQUAL * least)
    why = f"{1 / seconds:,.0f} tokens/s a GPU, {byte_size(needed)} of the {byte_size(memory)} of a"
    why += f" device on {ranks_of(world.size)}"
    slower = [layout_name(layout) for other, _, layout in timed if other > EQUAL * least]
    return degrees, why + (f"; slower: {', '.join(dict.fromkeys(slower))}" if slower else "")


def candidate_degrees(given: Parallel, world: World, experts: int = 0) -> Iterator[dict[str, int]]:
    """Yield degrees that use all ranks, least communication first; given degrees above 1 stay.

    experts: number in a layer. tp and ep stay inside a node; ep is the largest beside tp.
    """
    node, given_replicas = ranks_per_node(world), given.dp_replicate

    def sizes(axis: str, others: Iterator[int]) -> list[int]:
        return [getattr(given, axis)] if getattr(given, axis) > 1 else [1, *others]

    def ep_sizes(tp: int) -> list[int]:
        return sizes(
            "ep", (n for n in (2, 4, 8) if experts and node % (tp * n) == experts % n == 0)
        )

    tp_sizes = sizes("tp", (n for n in (2, 4, 8) if node % n == 0))
    pp_sizes = sizes("pp", iter((2, 4, 8, 16)))
    tp, pp, ep = tp_sizes[0], pp_sizes[0], ep_sizes(tp_sizes[0])[0]
    replicas = {max(world.size // (tp * pp * ep * given.cp), 1), world.size // node, 1}
    in_order = [
        (n, tp, pp, ep)
        for n in ([given_replicas] if given_replicas > 1 else sorted(replicas, reverse=True))
    ]
    in_order += [(given_replicas, tp, pp, n) for n in ep_sizes(tp)[1:]]
    in_order += [(given_replicas, n, pp, ep_sizes(n)[-1]) for n in tp_sizes[1:]]
    in_order += [
        (given_replicas, n, m, ep_sizes(n)[-1]) for m in pp_sizes[1:] for n in reversed(tp_sizes)
    ]
    for replicate, tp, pp, ep in in_order:
        shard, remainder = divmod(world.size, replicate * tp * pp * ep * given.cp)
        if not remainder:
            yield dict(zip(CHOSEN, (replicate, shard, tp, pp, ep), strict=True))


def laid_out(config: Config, degrees: dict[str, int], world: World) -> Config:
    """A copy of the config with these degrees, and with batch and pipeline derived from them."""
    config = with_methods(config)
    parallel = replace(config.parallel, **degrees)
    tried = replace(config, parallel=parallel, train=replace(config.train))
    for following in (batch, pipeline):
        for derived in following.call(tried, world):
            put(tried, derived.key, derived.value)
    return tried


def with_methods(config: Config) -> Config:
    """A copy of the config with the first exchange of METHODS where one is open."""
    parallel = config.parallel
    names = {key.partition(".")[2]: methods[0] for key, methods in METHODS.items()}
    set_here = {name: first for name, first in names.items() if getattr(parallel, name) == "auto"}
    return replace(config, parallel=replace(parallel, **set_here)) if set_here else config


def memory_needed(config: Config) -> int:
    """Estimated bytes that one device reserves; 0 for a model of unknown layers."""
    return memory_of(config).reserved


def device_memory(world: World) -> int | None:
    """Bytes of memory for a rank: a GPU's, or a share of this machine's; None where not known."""
    if world.device == "cuda":
        return world.devices.memory
    if world.remote:
        return None
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine // max(1, ranks_per_node(world))


def layout_name(degrees: dict[str, int]) -> str:
    """The name of a layout in the style of the presets: single, ddp, hsdp, ep8_fsdp."""
    parts = [f"{axis}{degrees[axis]}" for axis in ("ep", "tp", "pp") if degrees[axis] > 1]
    replicate, shard = degrees["dp_replicate"] > 1, degrees["dp_shard"] > 1
    if replicate or shard:
        parts.append("hsdp" if replicate and shard else "fsdp" if shard else "ddp")
    return "_".join(parts) or "single"
