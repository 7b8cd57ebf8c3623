"""What a search by Optuna needs, and what must be the same for all its trials, today's and those of
earlier commands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from forge.config.problems import ConfigError, Problem
from forge.config.sweeper import Optuna
from forge.launch.optuna.space import Space, param_of

if TYPE_CHECKING:
    from optuna import Study

NEEDS = {"cmaes": ("cmaes",), "gp": ("torch", "scipy")}
"""Packages beside Optuna itself, by sampler."""
SHOWN = 5
OTHER_NAME = "give another sweep.name"
ABSENT = object()


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Which metric is to be small or large, and all options that a trial has, searched or not, by
    key.
    """

    objective: str
    direction: str
    options: Mapping[str, Any]

    @property
    def kept(self) -> dict[str, Any]:
        """What the journal keeps of it; of the direction Optuna itself does."""
        return json.loads(
            json.dumps({"objective": self.objective, "options": dict(self.options)}, default=str)
        )


def check_installed(section: Optuna) -> None:
    """Raises ConfigError when Optuna, or what the sampler needs beside it, is not installed."""
    if find_spec("optuna") is None:
        what, fix = "the package optuna is not installed.", "pip install 'forge-lm[sweep]'"
        raise ConfigError([Problem(key="sweeper=optuna", what=what, fix=fix)])
    missing = [name for name in NEEDS.get(section.sampler, ()) if find_spec(name) is None]
    if missing:
        what, fix = (
            f"it needs the package {missing[0]}, which is not installed.",
            f"pip install {missing[0]}, or sweeper.sampler=tpe",
        )
        raise ConfigError([Problem(key=f"sweeper.sampler={section.sampler}", what=what, fix=fix)])


def check_same(setting: Setting, space: Space, study: Study, name: str) -> None:
    """Raises ConfigError when trials of this setting cannot be compared with those of a study.
    name: of the sweep.
    """
    before = study.user_attrs.get("setting") or setting.kept
    problems = []
    if before["objective"] != setting.objective:
        what = f"the trials of {name} were judged by {before['objective']}."
        fix = f"{OTHER_NAME}, or run.objective={before['objective']}"
        problems.append(Problem(key=f"run.objective={setting.objective}", what=what, fix=fix))
    direction = study.direction.name.lower()
    if direction != setting.direction:
        what, fix = (
            f"the trials of {name} were to {direction} {before['objective']}.",
            f"{OTHER_NAME}, or sweeper.direction={direction}",
        )
        problems.append(Problem(key=f"sweeper.direction={setting.direction}", what=what, fix=fix))
    known = {
        key: one
        for trial in study.get_trials(deepcopy=False)
        for key, one in trial.distributions.items()
    }
    problems += _other_kinds(space, known, name)
    others = list(
        _other_options(before["options"], setting.kept["options"], {*known, *space.params}, name)
    )
    problems += others[:SHOWN]
    if len(others) > SHOWN:
        problems.append(
            Problem(
                key=f"sweep.name={name}",
                what=f"{len(others) - SHOWN} more options differ.",
                fix=OTHER_NAME,
            )
        )
    if problems:
        raise ConfigError(problems)


def _other_kinds(space: Space, known: Mapping[str, Any], name: str) -> Iterator[Problem]:
    """Parameters whose earlier values Optuna cannot learn from: it takes other ends of a range, but
    no other kind of it.
    """
    from optuna.distributions import check_distribution_compatibility

    for key, param in space.params.items():
        if key in known:
            try:
                check_distribution_compatibility(known[key], param.distribution)
            except ValueError:
                what = f"the trials of {name} were chosen from {param_of(known[key])}, and only the ends of a range may change."
                yield Problem(key=f"{key}={param}", what=what, fix=OTHER_NAME)


def _other_options(
    before: Mapping[str, Any], now: Mapping[str, Any], searched: set[str], name: str
) -> Iterator[Problem]:
    """Options that are not searched, and are not what they were."""
    above = tuple(f"{key.replace('/', '.')}." for key in searched)
    for key in sorted({*before, *now}):
        one, other = before.get(key, ABSENT), now.get(key, ABSENT)
        if one != other and not f"{key}.".startswith(above):
            was = f"no {key}" if one is ABSENT else f"{key}={one}"
            what = f"the trials of {name} had {was}, and what they reached cannot be compared."
            yield Problem(
                key=key if other is ABSENT else f"{key}={other}",
                what=what,
                fix=f"{OTHER_NAME}, or leave it as it was",
            )
