"""Windows of layers by a pattern of letters, as in nanochat: L = long, S = short."""

from __future__ import annotations

from forge.config.field import Condition, Section, opt, section

LONG, SHORT = "L", "S"
TILE = 128  # short windows are multiples of a tile of attention kernels

PATTERNED = Condition(
    lambda config, ranks: bool(config.model.window_pattern), "without model.window_pattern"
)


@section
class WindowPattern(Section):
    window_pattern: str = opt(
        "",
        "windows of the layers, S = short and L = long, repeated until there are n_layers; the "
        "last layer is long, as in nanochat: SSSL; empty = sliding_window_size in all layers",
    )
    short_window: int | None = opt(
        None,
        "tokens before the present one that a short layer sees; null = a quarter of max_seq_len, "
        "rounded up to a multiple of 128",
        gt=0,
        acts_when=PATTERNED,
    )


def is_short(pattern: str, layer: int, n_layers: int) -> bool:
    """Whether a layer, counted from 0, is short; the last never is."""
    return layer < n_layers - 1 and pattern[layer % len(pattern)].upper() == SHORT


def short_window(stated: int | None, max_seq_len: int) -> int:
    """Return the tokens before the present one that a short layer sees."""
    return stated or -(-max_seq_len // (4 * TILE)) * TILE
