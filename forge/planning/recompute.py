"""Choose the tensors blocks keep for the backward pass, within a budget of memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from forge.config.model.decoder import Decoder
from forge.config.parallel import ZERO_BUBBLE_SCHEDULES
from forge.config.recompute import CONTEXT, CUSTOM, DEVICE, FULL, INPUT, NONE, OFFLOAD, Recompute
from forge.config.root import Config
from forge.planning.activations import Activations, flops_again
from forge.planning.memory import memory_of

OF_ATTENTION = 1.5
"""Time of a FLOP of attention over the time of a FLOP of a large product: FlashAttention-2 and 3
reach about two thirds of the rate of products (arXiv:2407.08608, figure 5).
"""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A choice of recomputation. policy, table, blocks: options of `train`. needed: bytes of a
    device. again: FLOPs of recomputation a token. order: worth of each name, in FLOPs a byte.
    """

    policy: str
    table: Recompute
    blocks: int | None
    needed: int
    again: float
    order: dict[str, float]


def choose_recompute(config: Config, model: Decoder, budget: float) -> Choice:
    """Choose the cheapest recomputation within `budget` bytes of a device by the estimate; else the
    least memory: full, with inputs of blocks in host memory.

    A knapsack of tensors of blocks. Blocks are alike: take names in the order of time spared a
    byte, each in as many blocks as fit. The result is at most one tensor of one block of a rank
    from the optimum, but for room left to smaller tensors. Where all names fit, leave as many
    blocks as fit without recomputation.
    """
    worth = _flops_per_byte(config, model)
    configured = config.train.recompute

    def tried(policy: str, table: Recompute = configured, blocks: int | None = None) -> Config:
        train = replace(
            config.train, activation_checkpointing=policy, recompute=table, recompute_layers=blocks
        )
        return replace(config, train=train)

    def needed(each: Config) -> int:
        return memory_of(each).reserved

    def chosen(policy: str, table: Recompute = configured, blocks: int | None = None) -> Choice:
        each = tried(policy, table, blocks)
        measures = {"needed": needed(each), "again": flops_again(each), "order": worth}
        return Choice(policy=policy, table=table, blocks=blocks, **measures)

    def fits(policy: str, table: Recompute = configured, blocks: int | None = None) -> bool:
        return needed(tried(policy, table, blocks)) <= budget

    if fits(NONE):
        return chosen(NONE)
    parallel, n_layers = config.parallel, model.n_layers
    base = CUSTOM if config.train.recompute.given() != {INPUT: DEVICE} else FULL
    in_halves = parallel.pp > 1 and parallel.pp_schedule in ZERO_BUBBLE_SCHEDULES
    if not fits(base):
        hosted = replace(configured, decoder_layer_input=OFFLOAD)
        return chosen(base) if parallel.ep > 1 and base == CUSTOM else chosen(CUSTOM, hosted)
    table = configured
    for name in () if in_halves else worth:
        extended = replace(table, **{name: DEVICE})

        def part(number: int, kept: Recompute = extended, name: str = name) -> Recompute:
            return replace(kept, layers=dict(kept.layers) | {name: number})

        if fits(CUSTOM, extended):
            table = extended
        elif number := most(lambda n: fits(CUSTOM, part(n)), n_layers):
            table = part(number)
    policy = CUSTOM if table.given() != {INPUT: DEVICE} else FULL
    without = most(lambda n: fits(policy, table, n_layers - n), n_layers - 1)
    return chosen(policy, table, n_layers - without if without else None)


def _flops_per_byte(config: Config, model: Decoder) -> dict[str, float]:
    """FLOPs spared by a kept byte, by name, the most first. FLOPs stand for time: products are
    bound by arithmetic at any width in use.
    """
    activations, bytes, flops = Activations(config, model), dict[str, float](), dict[str, float]()
    options = {name for name in Recompute.__dataclass_fields__ if name != "layers"}
    for kind, number in model.kinds_in().items():
        if (block := activations.block(kind)) is None:
            continue
        for name, tensor in block.keepable().items():
            if name in options and name not in config.train.recompute.given():
                slower = OF_ATTENTION if name == CONTEXT else 1.0
                bytes[name] = bytes.get(name, 0) + number * tensor.bytes
                flops[name] = flops.get(name, 0) + number * tensor.flops * slower
    ranks = config.parallel.tp
    worth = {name: flops[name] / ranks / bytes[name] for name in bytes if bytes[name]}
    return dict(sorted(worth.items(), key=lambda item: -item[1]))


def most(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` for which `holds`, by bisection; 0 = none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
