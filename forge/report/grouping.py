"""The grouping of runs into arms (runs differing in the seed), and the names of arms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from forge.config.problems import short_keys
from forge.launch.sweep.state import DONE
from forge.report.runs import SEED, Run, shortest_text
from forge.rundir.identity import is_free

APART = ("run", "launch", "sweep", "sweeper", "metrics", "profiling")
"""Sections about the start and the observation of a run: no difference between arms."""
Texts = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """Runs differing in their seed only."""

    name: str
    runs: tuple[Run, ...]

    @property
    def done(self) -> list[Run]:
        return [run for run in self.runs if run.state == DONE]

    @cached_property
    def config(self) -> dict[str, str]:
        """Every option by its dotted key; a differing option has the values of all runs."""
        configs = [run.texts for run in self.runs if run.texts]
        keys = dict.fromkeys(key for config in configs for key in config)
        return {
            key: " | ".join(sorted({config[key] for config in configs if key in config}))
            for key in keys
        }


def arms_of(runs: Sequence[Run], default: str) -> list[Arm]:
    """The arms in the order of their first runs.

    An arm is named by the ablation, else by the varied values of the sweep, else `default`. Runs of
    one arm have the same name in the ablation and configs differing only in the seed and in free
    options not varied by the sweep. A run never prepared is identified by its overrides.
    """
    keys = dict.fromkeys(key for run in runs for key in run.point.varied)
    varied = [key for key in keys if key != SEED]
    groups = _alike(runs, [key for key in varied if is_free(key)])
    firsts = [next((run for run in group if run.texts), group[0]) for group in groups]
    words = short_keys(varied)
    names = []
    for run in firsts:
        values = {
            words[key]: value for key in varied if (value := option_value(run, key)) is not None
        }
        names.append(run.point.arm or _joined(values) or default)
    pairs = zip(_distinct(names, firsts), groups, strict=True)
    return [Arm(name=name, runs=tuple(group)) for name, group in pairs]


def _alike(runs: Sequence[Run], free: Sequence[str]) -> list[list[Run]]:
    """Runs by arm; an unprepared run is beside a prepared one with its overrides.

    free: varied options that tell arms apart beside the identity of a config.
    """
    with_config = [run for run in runs if run.texts]
    prepared = {
        run: (_identity(run), *(option_value(run, key) for key in free)) for run in with_config
    }
    by_overrides = {_overrides(run): identity for run, identity in prepared.items()}
    groups: dict[object, list[Run]] = {}
    for run in runs:
        identity = prepared.get(run) or by_overrides.get(_overrides(run), _overrides(run))
        groups.setdefault((run.point.arm, identity), []).append(run)
    return list(groups.values())


def normal(name: str) -> str:
    """The name of an arm with numbers in the form of arm names: lr=0.001 for lr=1e-3."""
    return re.sub(r"(?<==)\S+", lambda value: shortest_text(value[0]), name)


def differing(configs: Sequence[Texts], *, seeds: bool = False) -> list[str]:
    """The keys differing between configs, apart from APART. seeds: include the seed.

    Where the variants of a group differ, an option existing in only some of the variants counts
    when its values differ among the variants.
    """
    keys = dict.fromkeys(key for config in configs for key in config if seeds or key != SEED)
    keys = [key for key in keys if key.partition(".")[0] not in APART]
    values = {key: {config.get(key) for config in configs} for key in keys}

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
    return {key: shortest_text(value) for key, _, value in words}


def option_value(run: Run, key: str) -> str | None:
    if key in run.point.varied:
        return shortest_text(run.point.varied[key])
    return _typed(run).get(key, run.texts.get(key))


def _joined(values: Texts) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items())


def _distinct(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The names of arms, made unique.

    An equal name is followed by the differing typed values of its runs, else by a number.
    """
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        indices = [i for i, other in enumerate(names) if other == name]
        values = [_typed(runs[i]) for i in indices]
        words = short_keys(differing(values)).items()
        suffixes = [
            _joined({word: options[key] for key, word in words if key in options})
            for options in values
        ]
        if len(set(suffixes)) < len(suffixes):
            suffixes = [f"({n})" for n in range(1, len(indices) + 1)]
        for i, text in zip(indices, suffixes, strict=True):
            result[i] = f"{name} {text}".rstrip()
    return result
