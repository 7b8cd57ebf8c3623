"""Length of a run under a scaling rule: one of several options says it."""

from __future__ import annotations

from forge.config.data.budget import HORIZON, MAX_TOKENS, OPEN, PER_PARAMETER, parameters
from forge.config.rule import Overruled
from forge.config.scaling.base import Settings

SIZE, TOKENS = "train.global_batch_size", "train.global_batch_tokens"
STEPS = "train.max_steps"
FLOPS, RATIO = "scaling.target_flops", "scaling.target_param_data_ratio"
MULTIPLE = "scaling.chinchilla_multiple"
OF_RUN = HORIZON
"""Options of any run that say how long it is, the first that is given deciding."""
BUDGETS = (MAX_TOKENS, PER_PARAMETER)


def chosen(settings: Settings, *of_scaling: str) -> str:
    """The option that decides: the typed one, else the first given, else the last of the scaling's
    own; "" after two typed ones, which a rule reports if both are of any run. of_scaling: the
    options of the scaling that say how long a run is.
    """
    open_keys = {key for key in OF_RUN if settings.get(key) == OPEN[key]}
    typed = [
        key for key in (*OF_RUN, *of_scaling) if settings.is_typed(key) and key not in open_keys
    ]
    if len(typed) > 1 and set(typed) <= set(OF_RUN):
        return ""
    if len(typed) > 1:
        message = f"{' and '.join(typed)} each say how long the run is."
        settings.refuse(typed[1], message, f"leave {' or '.join(typed)} out")
        return ""
    in_files = (key for key in OF_RUN if settings.is_stated(key) and key not in open_keys)
    given = (key for key in of_scaling if settings.get(key) is not None)
    return [*typed, *in_files, *given][0]


def tokens_of(settings: Settings, ends_by: str) -> int:
    """Tokens of a budget of any run. ends_by: one of BUDGETS."""
    train, model = settings.config.train, settings.config.model
    if ends_by == MAX_TOKENS:
        return train.max_tokens
    return round(train.tokens_per_parameter * parameters(model, train.parameters_counted))


def set_budget(settings: Settings, ends_by: str, batch: int) -> None:
    """Set the number of steps of a budget of any run."""
    settings.in_files -= {STEPS}
    tokens = tokens_of(settings, ends_by)
    why = f"{ends_by}: {tokens} tokens // {batch:,}"
    settings.set(STEPS, tokens // batch, why, over_typed=True)


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
