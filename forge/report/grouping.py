"""Which runs are seeds of one arm, and what an arm is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from forge.launch.sweep.state import DONE
from forge.report import flat_config
from forge.report.runs import Run


@dataclass(frozen=True, kw_only=True, eq=False)
class Arm:
    """Runs that differ in nothing but their seed, or that the sweep has given one name. spelled:
    that with values as they were typed.
    """

    name: str
    runs: tuple[Run, ...]
    spelled: frozenset[str] = field(default=frozenset())

    @property
    def done(self) -> list[Run]:
        """Those that statistics count."""
        return [run for run in self.runs if run.state == DONE]

    @cached_property
    def options(self) -> flat_config.Settings:
        """The config of the arm; where its runs differ, all their values."""
        known = [run.options for run in self.runs if run.options]
        keys = dict.fromkeys(key for one in known for key in one)
        return {key: " | ".join(sorted({one[key] for one in known if key in one})) for key in keys}


def arms_of(runs: Sequence[Run], otherwise: str) -> list[Arm]:
    """The arms in the order of their first runs: by their config apart from the seed, free options
    aside unless the sweep varies them, and by the name that an ablation has given a point.

    An arm is called by that name, else by what varies in the sweep; `otherwise` where nothing does.
    """
    varied = list(
        dict.fromkeys(key for run in runs for key in run.point.varied if key != flat_config.SEED)
    )
    free = [key for key in varied if flat_config.is_free(key)]
    same = {
        run: (flat_config.identity(run.options), tuple(_value(run, key) for key in free))
        for run in runs
        if run.options
    }
    prepared = {_typed(run): key for run, key in same.items()}
    groups: dict[object, list[Run]] = {}
    for run in runs:
        key = same.get(run) or prepared.get(_typed(run), _typed(run))
        groups.setdefault((run.point.arm, key), []).append(run)
    words = flat_config.short(varied)
    firsts = [next((run for run in group if run.options), group[0]) for group in groups.values()]
    names = [
        run.point.arm or _joined(words, {key: _value(run, key) for key in varied}) or otherwise
        for run in firsts
    ]
    names = _distinct(names, firsts)
    return [
        Arm(
            name=name,
            runs=tuple(group),
            spelled=frozenset(
                _joined(words, {key: _as_typed(run, key) for key in varied}) for run in group
            ),
        )
        for name, group in zip(names, groups.values(), strict=True)
    ]


def _joined(words: Mapping[str, str], values: Mapping[str, str | None]) -> str:
    return " ".join(f"{words[key]}={value}" for key, value in values.items() if value is not None)


def _typed_apart(runs: Sequence[Run]) -> list[str]:
    """Of each run what was typed for it, and for another not, or otherwise; nothing where all that
    it has is in the others' too.
    """
    typed = [
        {key: _shown(run, key, text) for key, text in _overrides(run).items() if _counts(key)}
        for run in runs
    ]
    keys = [
        key
        for key in dict.fromkeys(key for one in typed for key in one)
        if len({one.get(key) for one in typed}) > 1
    ]
    words = flat_config.short(keys)
    return [" ".join(f"{words[key]}={one[key]}" for key in keys if key in one) for one in typed]


def _shown(run: Run, key: str, text: str) -> str:
    """A value however it was spelled; of a group the option that was chosen."""
    return (run.numbers.get(key) or run.options.get(key, text)) if "." in key else text


def _counts(key: str) -> bool:
    return key != flat_config.SEED and key.partition(".")[0] not in flat_config.APART


def _typed(run: Run) -> tuple[str, ...]:
    """What was typed for a point, apart from its seed: how one that was never prepared is known."""
    return tuple(
        sorted(text for text in run.point.overrides if text.partition("=")[0] != flat_config.SEED)
    )


def _value(run: Run, key: str) -> str | None:
    """What a key that varies in the sweep has in a run: a number in one form however it was
    spelled, else as it was typed or resolved.
    """
    text = _as_typed(run, key)
    return (run.numbers.get(key) if run.options else flat_config.number_text(text)) or text


def _as_typed(run: Run, key: str) -> str | None:
    return run.point.varied.get(key, _overrides(run).get(key, run.options.get(key)))


def _overrides(run: Run) -> dict[str, str]:
    return {
        text.lstrip("+").partition("=")[0]: text.partition("=")[2] for text in run.point.overrides
    }


def _distinct(names: list[str], runs: Sequence[Run]) -> list[str]:
    """The names, those that several arms would have with what tells these apart, best what was
    typed; a number where nothing does.
    """
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [i for i, other in enumerate(names) if other == name]
        typed = _typed_apart([runs[i] for i in places])
        if len(set(typed)) == len(typed):
            for i, more in zip(places, typed, strict=True):
                result[i] = f"{name} {more}".rstrip()
            continue
        keys = flat_config.differing([runs[i].options for i in places])
        keys = [key for key in keys if any(key in _overrides(runs[i]) for i in places)] or keys
        words = flat_config.short(keys)
        for count, i in enumerate(places, 1):
            more = " ".join(
                f"{words[key]}={_shown(runs[i], key, value)}"
                for key in keys
                if (value := runs[i].options.get(key))
            )
            result[i] = f"{name} {more or f'({count})'}"
    return result
