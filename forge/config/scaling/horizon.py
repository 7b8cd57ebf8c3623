"""Length of a run under a scaling rule: one of several options says it."""

from __future__ import annotations

from forge.config.scaling.base import Settings

STEPS = "train.max_steps"
FLOPS, RATIO = "scaling.target_flops", "scaling.target_param_data_ratio"
HORIZONS = (STEPS, FLOPS, RATIO)
"""Options that say how long a run is, the first that is given deciding."""


def chosen(settings: Settings) -> str:
    """The option that decides: the typed one, else the first given; "" after two typed ones."""
    typed = [key for key in HORIZONS if settings.is_typed(key)]
    if len(typed) > 1:
        message = f"{' and '.join(typed)} each say how long the run is."
        settings.refuse(typed[1], message, f"leave {' or '.join(typed)} out")
        return ""
    if typed:
        return typed[0]
    if settings.is_stated(STEPS):
        return STEPS
    return RATIO if settings.get(FLOPS) is None else FLOPS
