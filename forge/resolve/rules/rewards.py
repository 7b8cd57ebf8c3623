"""Rules on rewards: their entries, and what forge's own need here."""

from __future__ import annotations

import re
from typing import Any

from forge.build import build
from forge.config.data.reading import NAME
from forge.config.problems import ConfigError
from forge.config.rewards.entry import TARGET, entry_faults, keywords_of
from forge.config.root import Config
from forge.config.rule import Findings, rule
from forge.resolve.rules.run import path_fault, unstorable

ASSIGNED = re.compile(r"\w+=")
FORGE, LEARNED = "forge.rewards.", "forge.training.learned_reward.LearnedReward"


@rule("rewards")
def rewards(config: Config) -> Findings:
    """A reward has a _target_, options that every reward has, and what forge's own need here."""
    for name, entry in config.rewards.items():
        key, entry_problems = f"rewards.{name}", list(entry_faults(name, entry))
        if not NAME.fullmatch(name):
            message = f"'{name}' is part of the names of metrics: letters, digits, _ and -."
            yield "rewards", message, "another name"
        elif entry_problems:
            yield from ((problem.key, problem.what, problem.fix) for problem in entry_problems)
        elif other := unstorable(entry, key):
            hint = f"~{key}, or give it texts, numbers, booleans, null, lists and dicts of them"
            yield key, f"{other}, which no file can keep.", hint
        elif str(entry[TARGET]).startswith(FORGE):
            yield from _own_faults(key, entry)
        elif entry[TARGET] == LEARNED:
            yield from _learned_faults(key, entry.get("path"))


def _learned_faults(key: str, path: Any) -> Findings:
    if not path:
        message = "it has no path, of a run of objective=reward_model."
        yield f"{key}.path", message, f"{key}.path=runs/reward"
    elif fault := path_fault(str(path)):
        yield f"{key}.path={path}", *fault


def _own_faults(key: str, entry: dict) -> Findings:
    """Faults of one of forge's rewards, which is built without torch."""
    try:
        reward = build({TARGET: entry[TARGET], **keywords_of(entry)}, path=key)
    except ConfigError as error:
        yield from ((problem.key, problem.what, problem.fix) for problem in error.problems)
        return
    for message, hint in reward.faults():
        is_option = ASSIGNED.match(hint)
        yield key, message, f"{key}.{hint}" if is_option else hint
