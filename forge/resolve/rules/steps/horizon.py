"""Rules on how long a run is."""

from __future__ import annotations

from forge.config.data.budget import (
    ALL,
    COUNTED,
    HORIZON,
    MAX_TOKENS,
    OPEN,
    PER_PARAMETER,
    STEPS,
    given,
    parameters,
    typed,
)
from forge.config.model.layer import Model
from forge.config.objectives.base import Pretrain
from forge.config.problems import literal
from forge.config.root import Config
from forge.config.rule import Findings, get, rule
from forge.config.train import Train
from forge.planning.flops import tokens_in_all, tokens_of_sample
from forge.resolve.horizon import steps_of, tokens_of_budget

LARGE = 10**9
"""Parameters from which a model is not trained with the settings of a first run."""


@rule("train.horizon", *HORIZON, COUNTED)
def horizon(config: Config, train: Train) -> Findings:
    """A run is as long as one of train.max_steps, train.max_tokens and train.tokens_per_parameter
    says.
    """
    values = {key: get(config, key) for key in HORIZON}
    keys = given(values, config.overrides)
    budgets = [key for key in keys if key != STEPS]
    if not keys:
        yield STEPS, "nothing says how long the run is.", f"{STEPS}=1000 or {MAX_TOKENS}=1000000"
    elif len(keys) > 1 and not _agree(config, budgets):
        named = " and ".join(f"{key}={literal(values[key])}" for key in keys)
        hints = [
            " ".join(f"{other}={literal(OPEN[other])}" for other in keys if other != key)
            for key in keys
        ]
        yield keys[-1], f"the run has {len(keys)} horizons: {named}.", " or ".join(hints)


def _agree(config: Config, budgets: list[str]) -> bool:
    """Whether train.max_steps is worked out from the only budget."""
    if len(budgets) != 1:
        return False
    return config.train.max_steps == steps_of(config, tokens_of_budget(config, budgets[0])[0])


@rule("train.budget", *HORIZON, COUNTED, "train.global_batch_size", "train.seq_len")
def budget(config: Config, train: Train) -> Findings:
    """A budget of tokens has a whole step or more."""
    if train.max_steps:
        return
    key = MAX_TOKENS if train.max_tokens is not None else PER_PARAMETER
    number = parameters(config.model, train.parameters_counted)
    if key == PER_PARAMETER and not number:
        return  # the next rule
    tokens, words = tokens_of_budget(config, key)
    step = train.batch_sizes.first * tokens_of_sample(config)
    smallest = step
    if key == PER_PARAMETER:
        words += f" = {tokens} tokens"
        smallest = -(-step // number)
    message = f"{words} are less than one step, which has {step}."
    yield key, message, f"{key}={smallest}, or a smaller batch"


@rule("train.parameters", PER_PARAMETER, "model")
def known_parameters(model: Model, train: Train) -> Findings:
    """train.tokens_per_parameter needs a model whose parameters are known."""
    if train.tokens_per_parameter is not None and not parameters(model, train.parameters_counted):
        yield PER_PARAMETER, f"{PER_PARAMETER}=null {MAX_TOKENS}=1000000"


@rule(
    "train.recipe",
    "model",
    *HORIZON,
    "train.global_batch_size",
    "train.seq_len",
    "checkpoint.init_from",
    "checkpoint.resume_from",
    warning=True,
)
def toy_settings(config: Config, model: Model, objective: Pretrain) -> Findings:
    """A model from 1B parameters on is trained from random weights on a token or more for each."""
    number, tokens = parameters(model, ALL), tokens_in_all(config)
    checkpoint, is_trained = config.checkpoint, config.adapter.active
    is_trained |= bool(checkpoint.init_from or checkpoint.resume_from)
    if number < LARGE or tokens >= number or is_trained:
        return
    step = config.train.global_batch_tokens or 0
    message = f"these are settings of a first run on a laptop: {tokens:,} tokens, {step:,} a step,"
    message += f" for {number:,} parameters."
    keys = typed(config.overrides)
    instead = [f"{key}={literal(OPEN[key])}" for key in keys if key != PER_PARAMETER]
    instead += [f"{PER_PARAMETER}=20"] * any(key != STEPS for key in keys)
    yield STEPS, message, " ".join([f"recipe={model.recipe}", *instead])
