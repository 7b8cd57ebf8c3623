"""Numbers that tp ranks agree on for products in few bits: the largest values behind scales."""

from __future__ import annotations

from collections.abc import Iterable

from forge.config.model.decoder import Decoder
from forge.config.quantization import Quantization, matrix_cuts
from forge.config.root import Config

ONES = {
    ("tensorwise", False): {0: (1, 1), 1: (2, 0)},
    ("tensorwise", True): {0: (1, 3), 1: (2, 2)},
    ("rowwise", False): {0: (0, 0), 1: (0, 0)},
    ("rowwise_with_gw_hp", False): {0: (0, 1), 1: (0, 1)},
}
"""Single numbers of a product, by recipe and emulation, and by the dimension of the weight [out,
in] that is cut: in forward and in backward. An emulation casts again for backward."""


def scales_agreed(
    config: Config, model: Decoder, blocks: Iterable[int], *, tokens: int, passes: int
) -> tuple[int, int]:
    """Numbers and collectives of a step, for the largest values of factors cut over tp.

    blocks: of the rank. tokens: of the rank in a step.
    """
    section, tp = config.quantization, config.parallel.tp
    recipe, emulated = section.scales_agreed
    if tp == 1 or not recipe:
        return 0, 0
    by_recipe = ONES.get((recipe, emulated)) or ONES[recipe, False]
    cuts, mine = matrix_cuts(section, model, tp), set(blocks)
    again = config.train.policy.name == "full"
    numbers = calls = 0
    for name, sides in _sides(section, model).items():
        cut = cuts[name]
        if cut is None or int(name.split(".")[1]) not in mine:
            continue
        forward, backward = by_recipe[cut]
        ones = passes * (forward * (1 + again) + backward)
        numbers, calls = numbers + ones, calls + ones
        if recipe != "tensorwise":  # a number for each row whose sum is cut
            times = 1 + again if cut else 1
            of_weight = cut == 1 or recipe == "rowwise"
            numbers += times * (tokens + passes * of_weight * sides[1 - cut])
            calls += times * passes * (1 + of_weight)
    return numbers, calls


def _sides(section: Quantization, model: Decoder) -> dict[str, tuple[int, ...]]:
    """The shapes of quantized matrices, by the name of the module."""
    return {t.name.rpartition(".")[0]: t.shape[-2:] for t in section.chosen(model)}
