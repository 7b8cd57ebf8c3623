"""Length of a run under a scaling rule: one of several options says it."""

from __future__ import annotations

from forge.config.data.budget import HORIZON, MAX_TOKENS, OPEN, PER_PARAMETER, STEPS, parameters
from forge.config.rule import OverriddenValue
from forge.config.scaling.base import Settings

SIZE, TOKENS = "train.global_batch_size", "train.global_batch_tokens"
FLOPS, RATIO = "scaling.target_flops", "scaling.target_param_data_ratio"
MULTIPLE = "scaling.chinchilla_multiple"


def chosen(settings: Settings, *of_scaling: str) -> str:
    """The option that decides: the typed one, else the first given by an experiment, else the last
    of the scaling's own; "" after two typed ones. of_scaling: the options of the scaling that say
    how long a run is.
    """
    is_open = {key: settings.get(key) == value for key, value in OPEN.items()}
    of_run = [key for key in HORIZON if not is_open[key]]
    typed = [key for key in (*of_run, *of_scaling) if settings.is_typed(key)]
    if len(typed) > 1:
        message = f"{' and '.join(typed)} each say how long the run is."
        settings.refuse(typed[1], message, f"leave {' or '.join(typed)} out")
        return ""
    in_files = (key for key in of_run if settings.is_stated(key))
    given = (key for key in of_scaling if settings.get(key) is not None)
    return [*typed, *in_files, *given][0]


def set_steps(settings: Settings, ends_by: str, steps: int, why: str) -> None:
    """Set the number of steps, where no option of the run says how long it is."""
    if ends_by in HORIZON:
        settings.steps.append(OverriddenValue(STEPS, steps, why))
        return
    settings.in_files -= set(HORIZON)  # of an experiment, and a horizon is typed
    settings.set(STEPS, steps, why)
    for key in (MAX_TOKENS, PER_PARAMETER):
        if settings.get(key) is not None:
            settings.set(key, None, f"{STEPS} is worked out")


def budget(settings: Settings, ends_by: str) -> float | None:
    """Tokens that a budget of the run allows; None where another option says how long it is."""
    train = settings.config.train
    if ends_by == MAX_TOKENS:
        return train.max_tokens
    if ends_by == PER_PARAMETER:
        number = parameters(settings.config.model, train.parameters_counted)
        return number * train.tokens_per_parameter
    return None


def typed_batch(settings: Settings) -> int | None:
    """Tokens of a step that the user states; None = none are stated."""
    if settings.is_stated(SIZE) and settings.get(SIZE) is not None:
        return settings.get(SIZE) * settings.get("train.seq_len")
    return settings.get(TOKENS) if settings.is_stated(TOKENS) else None


def set_batch(settings: Settings, sequences: int, why: str) -> int:
    """Set the size of a step, in tokens and sequences, and return the tokens in force."""
    seq_len, stated = settings.get("train.seq_len"), typed_batch(settings)
    if stated is not None:
        settings.steps.append(OverriddenValue(TOKENS, sequences * seq_len, why))
        return stated
    settings.set(TOKENS, sequences * seq_len, why)
    settings.set(SIZE, sequences, f"{sequences * seq_len:,} tokens / {seq_len} a sequence")
    return sequences * seq_len
