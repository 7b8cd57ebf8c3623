"""The horizon of a run: steps, tokens, or tokens for each parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge.config.model.layer import Model
from forge.config.model.tensors import EMBEDDING, HEAD, POSITION

STEPS, MAX_TOKENS = "train.max_steps", "train.max_tokens"
PER_PARAMETER, COUNTED = "train.tokens_per_parameter", "train.parameters_counted"
HORIZON = (STEPS, MAX_TOKENS, PER_PARAMETER)
"""Keys that say how long a run is, of which one is given."""
OPEN = {STEPS: -1, MAX_TOKENS: None, PER_PARAMETER: None}
"""By key the value that leaves the horizon to the others."""
ALL, ACTIVE, NON_EMBEDDING = "all", "active", "non_embedding"
COUNTS = (ALL, ACTIVE, NON_EMBEDDING)
TABLES = (EMBEDDING, POSITION, HEAD, "value_embedding")
"""Roles of parameters left out of the count `non_embedding`."""


def parameters(model: Model, count: str) -> int:
    """The parameters of a model by one of COUNTS; 0 = not known.

    all: every weight. active: those of one token, without the experts of other tokens.
    non_embedding: the active ones without token and position tables and the output head.
    """
    if model.of_forge() and not model.has_own_target:
        return 0  # a class of the user's, of which the section of forge knows nothing
    tensors = list(model.tensors())
    if count == ALL:
        return sum(tensor.size for tensor in tensors)
    tables = TABLES if count == NON_EMBEDDING else ()
    return sum(tensor.active for tensor in tensors if tensor.role not in tables)


def typed(overrides: Sequence[str]) -> tuple[str, ...]:
    """The keys of HORIZON that overrides give a value to."""
    values: dict[str, str] = {}
    for word in overrides:
        key, _, value = word.lstrip("+").partition("=")
        values[key] = value.strip()
    return tuple(key for key in HORIZON if values.get(key, "null") not in ("null", "-1"))


def given(values: Mapping[str, float | None], overrides: Sequence[str]) -> tuple[str, ...]:
    """The keys of HORIZON that decide: the typed ones, or else all with a value.

    So a typed horizon is taken in place of one from a file.
    """
    return typed(overrides) or tuple(key for key in HORIZON if values[key] != OPEN[key])
