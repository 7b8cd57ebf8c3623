"""The `rollout` group: completions that a model writes, to learn from."""

from __future__ import annotations

from typing import ClassVar

from forge.config.field import Section, opt, section

SPARE_PLACES = 64
"""Places of a sampler's cache beyond the longest text, so that texts are moved rarely."""


@section
class Rollout(Section):
    """Base of every rollout section. active: whether the run learns from its own completions."""

    active: ClassVar[bool] = False


@section
class NoRollout(Rollout):
    """The run reads the text of its data."""

    schema_name = "none"


@section
class SampledRollout(Rollout):
    """Base of the sections whose completions a model draws."""

    active = True
    num_generations: int = opt(8, "completions of each prompt: a group", gt=0)
    max_new_tokens: int = opt(128, "tokens of a completion at most", gt=0)
    temperature: float = opt(1.0, "softmax temperature, of the loss too", gt=0)
    stop: list[str] = opt([], "texts that end a completion, beside the end of text")
    table_rows: int = opt(
        16, "completions in the table that trackers get at every log; 0 = no table", ge=0, free=True
    )
    keep_last: int = opt(
        0,
        "rollouts kept in rollouts/ of the run directory, the last ones; 0 = all",
        ge=0,
        free=True,
    )


@section
class LocalRollout(SampledRollout):
    """Completions by forge's sampler, on the ranks that train."""

    schema_name = "local"
    batch_size: int = opt(
        16, "rows a rank writes at a time; one that ends makes room for the next", gt=0, free=True
    )
    top_k: int = opt(
        0, "tokens to draw from, the likeliest, in the loss too; 0 = all", ge=0, le=1000
    )
    top_p: float = opt(
        1.0, "of these the fewest with this joint probability, in the loss too", gt=0, le=1
    )
