"""`parallel.cp_method=auto` and `ep_method=auto`: the fastest exchange by the model of time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from forge.config.devices import DEVICES
from forge.config.model.moe import parts_of_bounded_rows
from forge.config.parallel import METHODS, Parallel
from forge.config.root import Config
from forge.config.rule import Derived, derivation
from forge.planning.world import World, ranks_per_node
from forge.resolve.auto import DEGREE_RULES, EQUAL, gathering, memory_needed, with_methods
from forge.resolve.rules.devices import cp_ring_compiled, cp_ring_torch
from forge.resolve.rules.quantization import rows_in_few_bits

RULES = (*DEGREE_RULES, cp_ring_torch, cp_ring_compiled, rows_in_few_bits, parts_of_bounded_rows)
"""Rules that say where an exchange cannot be."""


@derivation(
    "parallel.layout",
    "parallel.cp",
    "parallel.ep",
    "parallel.dp_shard",
    "train.batch_size",
    "train.seq_len",
    "train.grad_accum_steps",
    "plan.device",
    writes=tuple(METHODS),
)
def fastest_exchanges(config: Config, parallel: Parallel, world: World) -> Iterator[Derived]:
    """An open exchange of cp or ep: on plan.device the fastest that the rules allow, by the model
    of time, and the first of those within 5 %; elsewhere the first.
    """
    for key, methods in METHODS.items():
        name = key.partition(".")[2]
        if getattr(parallel, name) != "auto":
            continue
        axis = name.partition("_")[0]
        if getattr(parallel, axis) == 1:
            why = f"parallel.{axis}=1"
        elif config.plan.device not in DEVICES or not memory_needed(with_methods(config)):
            why = "without plan.device nothing is compared"
        else:
            tried = with_methods(replace(config, parallel=parallel))
            chosen, why = _fastest(tried, name, methods, world)
            methods = (chosen,)
        parallel = replace(parallel, **{name: methods[0]})
        yield Derived(key, methods[0], why)


def _fastest(config: Config, name: str, methods: tuple[str, ...], world: World) -> tuple[str, str]:
    """The fastest method, and the speeds compared."""
    from forge.planning.time import planned_time  # most commands do not need it

    speeds: dict[str, float] = {}
    for method in methods:
        tried = replace(config, parallel=replace(config.parallel, **{name: method}))
        if any(problem for rule in RULES for problem in rule.check(tried, world)):
            continue
        time = planned_time(gathering(tried), ranks_per_node(world))
        if time is not None:
            speeds[method] = time.tokens_per_second
    if not speeds:
        return methods[0], "of no method is the time known"
    best = max(speeds.values())
    chosen = next(method for method, speed in speeds.items() if speed * EQUAL >= best)
    compared = ", ".join(f"{method} {speed:,.0f}" for method, speed in speeds.items())
    return chosen, f"tokens/s a GPU: {compared}"
