"""Rules on the environment of completions of several turns."""

from __future__ import annotations

import re

from forge.build import build
from forge.config.bounds import check_bounds
from forge.config.environments.entry import NAME, TARGET, built_by, options_of
from forge.config.problems import ConfigError
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.resolve.rules.run import unstorable

ASSIGNED = re.compile(r'"?\w+=')


@rule("environment", "environment", "rewards", "rollout")
def environment(config: Config) -> Findings:
    """An environment has a _target_, options that every environment has, and answers rollouts."""
    entry = config.environment
    if not entry:
        return
    if not config.rollout.active:
        yield NAME, "no completions are written that it could answer.", "leave it out"
    if NAME in config.rewards:
        message = "the rewards of the environment have this name."
        yield f"rewards.{NAME}", message, f"~rewards.{NAME}"
    if TARGET not in entry:
        message = "it has no _target_, the class that answers."
        yield NAME, message, "+environment._target_=forge.environments.calculator.Calculator"
    elif other := unstorable(entry, NAME):
        hint = "give it texts, numbers, booleans, null, lists and dicts of them"
        yield NAME, f"{other}, which no file can keep.", hint
    else:
        problems = list(check_bounds(options_of(entry), f"{NAME}."))
        yield from ((problem.key, problem.what, problem.fix) for problem in problems)
        if str(entry[TARGET]).startswith("forge.environments.") and not problems:
            yield from _forge_faults(config)


def _forge_faults(config: Config) -> Findings:
    """Faults of one of forge's environments, which is built without torch."""
    try:
        made = build(built_by(config.environment), path=NAME)
    except ConfigError as error:
        yield from ((problem.key, problem.what, problem.fix) for problem in error.problems)
        return
    for message, hint in made.faults():
        yield NAME, message, re.sub(r'^("?)', rf"\1{NAME}.", hint) if ASSIGNED.match(hint) else hint
