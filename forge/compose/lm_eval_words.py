"""Words of a command line that name tasks of lm-eval: lm_eval=[hellaswag,mmlu] and its options."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

from forge.config.problems import COMMAND_LINE, closest, did_you_mean, refusal

KEY = "lm_eval"
DEFAULTS = {"include": None, "shots": None, "chat_template": False}


@dataclass(frozen=True, kw_only=True)
class Harness:
    """Tasks for lm-eval to ask. include: folder with task files of the user's own. shots: examples
    before each question; None = as each task says.
    """

    tasks: tuple[str, ...]
    include: str | None = None
    shots: int | None = None
    chat_template: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tasks": list(self.tasks)}

    @staticmethod
    def of(options: dict[str, Any]) -> Harness:
        return Harness(**{**options, "tasks": tuple(options["tasks"])})


def harness_of(typed: Sequence[str]) -> tuple[Harness | None, list[str]]:
    """The tasks for lm-eval among the words of a command line, and all other words."""
    values: dict[str, Any] = {}
    others = []
    for word in typed:
        key, _, text = word.partition("=")
        if key != KEY and not key.startswith(f"{KEY}."):
            others.append(word)
            continue
        name = key.removeprefix(KEY).removeprefix(".")
        if name and name not in DEFAULTS:
            near = did_you_mean([f"{KEY}.{each}=" for each in closest(name, [*DEFAULTS])])
            hint = near or f"one of {', '.join(DEFAULTS)}"
            raise refusal(word, "lm_eval has no such option here.", hint, COMMAND_LINE)
        values[name] = _value(word, name, text)
    if not values:
        return None, others
    if not values.get(""):
        message, hint = "no task of lm-eval is named.", "lm_eval=[hellaswag,arc_easy]"
        raise refusal(KEY, message, hint, COMMAND_LINE)
    return Harness(tasks=values.pop(""), **values), others


def _value(word: str, name: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = text
    if not name:
        tasks = value if isinstance(value, list) else [value]
        fits, hint = all(isinstance(task, str) and task for task in tasks), "lm_eval=[hellaswag]"
        value = tuple(tasks)
    elif name == "include":
        value = os.path.abspath(os.path.expanduser(text))
        fits, hint = os.path.isdir(value), "a folder with YAML files of tasks"
    elif name == "shots":
        fits = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        hint = "lm_eval.shots=5"
    else:
        fits, hint = isinstance(value, bool), f"lm_eval.{name}=true"
    if not fits:
        raise refusal(word, "it is not what this option takes.", hint, COMMAND_LINE)
    return value
