"""Length of a run under a scaling rule: one of several options says it."""

from __future__ import annotations

from forge.config.rule import Overruled
from forge.config.scaling.base import Settings

SIZE, TOKENS = "train.global_batch_size", "train.global_batch_tokens"
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
    has_flops = getattr(settings.config.scaling, "target_flops", None) is not None
    return FLOPS if has_flops else RATIO


def set_steps(settings: Settings, ends_by: str, steps: int, why: str) -> None:
    """Set the number of steps, over those of an experiment where a horizon is typed."""
    if ends_by != STEPS:
        settings.in_files -= {STEPS}
    settings.set(STEPS, steps, why)


def typed_batch(settings: Settings) -> int | None:
    """Tokens of a step that the user states; None = none are stated."""
    if settings.is_stated(SIZE) and settings.get(SIZE) is not None:
        return settings.get(SIZE) * settings.get("train.seq_len")
    return settings.get(TOKENS) if settings.is_stated(TOKENS) else None


def set_batch(settings: Settings, sequences: int, why: str) -> int:
    """Set the size of a step, in tokens and sequences, and return the tokens in force."""
    seq_len, stated = settings.get("train.seq_len"), typed_batch(settings)
    if stated is not None:
        settings.steps.append(Overruled(TOKENS, sequences * seq_len, why))
        return stated
    settings.set(TOKENS, sequences * seq_len, why)
    settings.set(SIZE, sequences, f"{sequences * seq_len:,} tokens / {seq_len} a sequence")
    return sequences * seq_len
