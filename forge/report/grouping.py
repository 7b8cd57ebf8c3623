"""Which runs are seeds of one arm, and what an arm is called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from forge.config.problems import short_keys
from forge.launch.sweep.state import DONE
from forge.report.runs import SEED, Run, text_of
from forge.rundir.identity import is_free

APART = ("run", "launch", "sweep", "sweeper", "metrics", "profiling")
"""Sections that say where and how a run was started and watched: no difference between arms."""
Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """Runs that differ in nothing but their seed."""

    name: str
    runs: tuple[Run, ...]

    @property
    def done(self) -> list[Run]:
        return [run for run in self.runs if run.state == DONE]

    @cached_property
    def config(self) -> dict[str, str]:
        """Every option by its dotted key; all values of one in which the runs differ."""
        known = [run.texts for run in self.runs if run.texts]
        keys = dict.fromkeys(key for one in known for key in one)
        return {key: " | ".join(sorted({one[key] for one in known if key in one})) for key in keys}


def arms_of(runs: Sequence[Run], default: str) -> list[Arm]:
    """The arms in the order of their first runs, called as an ablation does, else by what varies in
    the sweep, else `default`.

    Runs are of one arm when the ablation calls them by one name and their configs differ in nothing
    but the seed and free options that the sweep does not vary. A run that was never prepared is
    known by its overrides.
    """
    keys = dict.fromkeys(key for run in runs for key in run.point.varied)
    varied = [key for key in keys if key != SEED]
    free = [key for key in varied if is_free(key)]
    known = [run for run in runs if run.texts]
    prepared = {run: (_identity(run), *(value_of(run, key) for key in free)) for run in known}
    by_overrides = {_overrides(run): identity for run, identity in prepared.items()}
    groups: dict[object, list[Run]] = {}
    for run in runs:
        identity = prepared.get(run) or by_overrides.get(_overrides(run), _overrides(run))
        groups.setdefault((run.point.arm, identity), []).append(run)
    firsts = [next((run for run in group if run.texts), group[0]) for group in groups.values()]
    words = short_keys(varied)
    names = []
    for run in firsts:
        values = {words[key]: value for key in varied if (value := value_of(run, key)) is not None}
        names.append(run.point.arm or _joined(values) or default)
    named = zip(_distinct(names, firsts), groups.values(), strict=True)
    return [Arm(name=name, runs=tuple(group)) for name, group in named]


def normal(name: str) -> str:
    """The name of an arm with its numbers as arms have them: lr=0.001 for lr=1e-3."""
    return re.sub(r"(?<==)\S+", lambda value: text_of(value[0]), name)


def differing(configs: Sequence[Texts], *, seeds: bool = False) -> list[str]:
    """The keys in which configs differ, apart from APART. seeds: the seed may be among them.

    Where the variants of a group differ, an option that only some of them have counts when it
    differs among those.
    """
    keys = dict.fromkeys(key for one in configs for key in one if seeds or key != SEED)
    keys = [key for key in keys if key.partition(".")[0] not in APART]
    values = {key: {one.get(key) for one in configs} for key in keys}

    def allowed(key: str) -> int:
        groups = [key[: dot.start()] for dot in re.finditer(r"\.", key)]
        of_variant = any(len(values.get(group, ())) > 1 for group in groups)
        return 2 if of_variant and None in values[key] else 1

    return [key for key in values if len(values[key]) > allowed(key)]


def _identity(run: Run) -> tuple[tuple[str, str], ...]:
    keys = [key for key in sorted(run.texts) if key != SEED and not is_free(key)]
    return tuple((key, run.texts[key]) for key in keys)


def _overrides(run: Run) -> tuple[str, ...]:
    return tuple(sorted(text for text in run.point.overrides if text.partition("=")[0] != SEED))


def _typed(run: Run) -> dict[str, str]:
    words = (text.lstrip("+").partition("=") for text in run.point.overrides)
    return {key: text_of(value) for key, _, value in words}


def value_of(run: Run, key: str) -> str | None:
    if key in run.point.varied:
        return text_of(run.point.varied[key])
    return _typed(run).get(key, run.texts.get(key))


def _joined(values: Texts) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def _distinct(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The names; where several runs have one, with what was typed for one and not for another, else
    with a number.
    """
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        same = [i for i, other in enumerate(names) if other == name]
        values = [_typed(runs[i]) for i in same]
        words = short_keys(differing(values)).items()
        more = [_joined({word: one[key] for key, word in words if key in one}) for one in values]
        if len(set(more)) < len(more):
            more = [f"({n})" for n in range(1, len(same) + 1)]
        for i, text in zip(same, more, strict=True):
            result[i] = f"{name} {text}".rstrip()
    return result
