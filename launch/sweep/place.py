"""Which directory a command belongs in: that of the sweep which it adds to, or one of its own."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forge.config.problems import short_keys, shown
from forge.launch.sweep.directory import SweepDirectory, slug_of
from forge.launch.sweep.messages import print_line
from forge.launch.sweep.preflight import Planned, Preflight
from forge.rundir.directory import short
from forge.rundir.identity import identity
from forge.rundir.untrusted import option_of

SEED, GLOBAL_BATCH, KIND = "seed", "train.global_batch_size", "._type_"
COMPARED = 200  # points of a command compared for their common values
NAMED = 2  # differences in a directory's name, and in the message
Common = dict[str, Any]
"""Of what all points of a command have alike, the value by key."""


def own_place(
    flight: Preflight,
    planned: Sequence[Planned],
    varied: Iterable[str],
    overrides: Iterable[str],
) -> Path:
    """The directory of a command with these varied keys and set overrides, named by sweep.name,
    else by the experiment or model; a directory taken by another sweep gets a suffix of the varied
    keys, or of other differences.

    A command belongs to a sweep when it varies no further keys, sets all varied keys of the sweep,
    and has all other options alike. More or fewer seeds are no other sweep.
    """
    varied_keys = {*varied} - {SEED}
    flight.common = common(planned, varied_keys)
    first = SweepDirectory(flight.place)
    if flight.sweep.name is not None or not first.exists:
        return first.path
    set_keys = varied_keys | {option_of(text) for text in overrides}
    words, why = _another(first, flight.common, planned, varied_keys, set_keys)
    if not why:
        return first.path
    print_line(
        f"{short(first.path)} has {why}; this one gets a directory of its own, or a sweep.name"
    )
    path = first.path.with_name("_".join([first.path.name, *words]))
    taken = SweepDirectory(path)
    if not taken.exists or not _another(taken, flight.common, planned, varied_keys, set_keys)[1]:
        return path
    content = json.dumps([sorted(varied_keys), flight.common], sort_keys=True)
    unique = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
    return path.with_name(f"{path.name}_{unique}")


def varied_without_seed(varied: Mapping[str, str], arm: str | None) -> set[str]:
    """The varied keys of a point, without the seed."""
    return {*varied, *({"arm"} if arm else ())} - {SEED}


def common(planned: Sequence[Planned], varied: set[str]) -> Common:
    """The values of identity common to all points, without seeds, varied keys and derived options;
    the global batch stays, although varied keys may decide on it.
    """
    shared: Common = {}
    for number, point in enumerate(planned[:: -(-len(planned) // COMPARED)]):
        config = point.resolution.config
        values = dict(_flat(identity(config)))
        for key in [key for key in values if key.endswith(KIND)]:
            section = functools.reduce(getattr, key.removesuffix(KIND).split("."), config)
            values[key] = getattr(section, "schema_name", "") or values[key]
        derived = {option.key for option in point.resolution.derived} - {GLOBAL_BATCH}
        for key in [key for key in values if key in derived or _is_one_of(key, varied)]:
            del values[key]
        shared = values if not number else {k: v for k, v in shared.items() if values.get(k) == v}
    return json.loads(json.dumps(shared, default=str))


def _another(
    sweep: SweepDirectory,
    mine: Common,
    planned: Sequence[Planned],
    here: set[str],
    given: set[str],
) -> tuple[list[str], str]:
    """Words for the name of a separate directory, and a description of the other sweep; "" for a
    command of this sweep.
    """
    points = sweep.points()
    varied_before = {
        key for point in points for key in varied_without_seed(point.varied, point.arm)
    }
    if not here <= varied_before <= given:
        words = list(short_keys(sorted(here)).values()) if here else [SEED]
        return words, f"a sweep over {', '.join(sorted(varied_before)) or 'seeds'}"
    common_before = sweep.common()
    if keys := _differing(mine, common_before, varied_before):
        differences = ", ".join(
            f"{key.removesuffix(KIND)}={shown(common_before[key])}" for key in keys
        )
        changes = {key.removesuffix(KIND): shown(mine[key]) for key in keys}
        return [slug_of(changes)], f"a sweep with {differences}"
    hashes = {(point.arm, *sorted(point.varied.items())): point.hash for point in points}
    for point in planned:
        combination = point.combination
        earlier_hash = hashes.get((combination.arm, *sorted(combination.varied.items())))
        if earlier_hash not in (None, point.hash):
            return ["other"], "points of the same values with other options"
    return [], ""


def _differing(mine: Common, before: Common, varied: set[str]) -> list[str]:
    """The first keys of different values; of a section of another kind, the kind alone."""
    keys = [key for key in mine if key in before and before[key] != mine[key]]
    keys = [key for key in keys if not _is_one_of(key, varied)]
    kinds = [key.removesuffix(KIND) for key in keys if key.endswith(KIND)]
    return [key for key in keys if key.endswith(KIND) or not _is_one_of(key, kinds)][:NAMED]


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries of dicts by keys of their own; without the seed."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat({f"{key}.{name}": inner for name, inner in value.items()})
        elif key != SEED:
            yield key, value


def _is_one_of(key: str, keys: Iterable[str]) -> bool:
    """Whether a key, or a section above the key, is among typed keys."""
    sections = (typed.lstrip("+~").rpartition("@")[2].replace("/", ".") for typed in keys)
    return any(f"{key}.".startswith(f"{section}.") for section in sections)
