"""What blocks had best keep for the backward pass, within some memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from forge.config.model.decoder import Decoder
from forge.config.parallel import ZERO_BUBBLE_SCHEDULES
from forge.config.recompute import CONTEXT, CUSTOM, DEVICE, FULL, INPUT, NONE, OFFLOAD, Recompute
from forge.config.root import Config
from forge.planning.activations import Activations, flops_again
from forge.planning.memory import memory_by_part

OF_ATTENTION = 1.5
"""Time of a FLOP of attention in that of a FLOP of a large product, as FlashAttention-2 and 3 reach
about two thirds of what products do (arXiv:2407.08608, figure 5).
"""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """policy, table and blocks: options of `train`. needed: bytes of a device. again: FLOPs that
    are computed again, in those of a token. order: the worth of each name, in FLOPs a byte.
    """

    policy: str
    table: Recompute
    blocks: int | None
    needed: int
    again: float
    order: dict[str, float]


def choose(config: Config, model: Decoder, budget: float) -> Choice:
    """The cheapest that needs at most `budget` bytes of a device by the estimate; else what needs
    least: full, with what enters a block in host memory.

    A knapsack of tensors of blocks. Blocks are alike, so that names are taken in the order of the
    time that a byte of them spares, each in as many blocks as fit: at most one tensor of one block
    of a rank from the best there is, but for what is left for smaller ones. Where all names fit,
    blocks that are not recomputed at all follow.
    """
    worth = order(config, model)
    table_given = config.train.recompute

    def tried(policy: str, table: Recompute = table_given, blocks: int | None = None) -> Config:
        train = replace(
            config.train, activation_checkpointing=policy, recompute=table, recompute_layers=blocks
        )
        return replace(config, train=train)

    def needed(each: Config) -> int:
        return sum(memory_by_part(each).values())

    def chosen(policy: str, table: Recompute = table_given, blocks: int | None = None) -> Choice:
        each = tried(policy, table, blocks)
        measures = {"needed": needed(each), "again": flops_again(each), "order": worth}
        return Choice(policy=policy, table=table, blocks=blocks, **measures)

    def fits(policy: str, table: Recompute = table_given, blocks: int | None = None) -> bool:
        return needed(tried(policy, table, blocks)) <= budget

    if fits(NONE):
        return chosen(NONE)
    parallel, n_layers = config.parallel, model.n_layers
    base = CUSTOM if config.train.recompute.given() != {INPUT: DEVICE} else FULL
    in_halves = parallel.pp > 1 and parallel.pp_schedule in ZERO_BUBBLE_SCHEDULES
    if not fits(base):
        hosted = replace(table_given, decoder_layer_input=OFFLOAD)
        return chosen(base) if parallel.ep > 1 and base == CUSTOM else chosen(CUSTOM, hosted)
    table = table_given
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


def order(config: Config, model: Decoder) -> dict[str, float]:
    """FLOPs that a kept byte spares, by name, the most first: times are as FLOPs, since products
    are bound by them at any width that is trained.
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
    """The largest number up to the limit of which it holds, as of all below it; 0 = of none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
