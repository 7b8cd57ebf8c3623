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
from forge.launch.sweep.messages import say
from forge.launch.sweep.preflight import Planned, Preflight
from forge.rundir.directory import short
from forge.rundir.identity import identity
from forge.rundir.untrusted import key_of

SEED, GLOBAL_BATCH, KIND = "seed", "train.global_batch_size", "._type_"
COMPARED = 200  # points of a command that are looked at for what all have in common
NAMED = 2  # differences in a directory's name, and in what is said
Common = dict[str, Any]
"""Of what all points of a command have alike, the value by key."""


def own_place(
    flight: Preflight,
    planned: Sequence[Planned],
    varied: Iterable[str],
    overrides: Iterable[str],
) -> Path:
    """The directory of a command, of which these keys vary and these overrides are set: that of
    sweep.name, else of the experiment or model; where another sweep is in that already, one that is
    named by what varies, or by what else differs, too.

    A command belongs to a sweep when it varies nothing else, sets all that varies there, and has
    all other options alike. A seed more or less is no other sweep.
    """
    here = {*varied} - {SEED}
    flight.common = common(planned, here)
    first = SweepDirectory(flight.place)
    if flight.sweep.name is not None or not first.exists:
        return first.path
    given = here | {key_of(text) for text in overrides}
    words, why = _another(first, flight.common, planned, here, given)
    if not why:
        return first.path
    say(f"{short(first.path)} has {why}; this one gets a directory of its own, or a sweep.name")
    path = first.path.with_name("_".join([first.path.name, *words]))
    taken = SweepDirectory(path)
    if not taken.exists or not _another(taken, flight.common, planned, here, given)[1]:
        return path
    content = json.dumps([sorted(here), flight.common], sort_keys=True)
    unique = hashlib.blake2b(content.encode(), digest_size=4).hexdigest()
    return path.with_name(f"{path.name}_{unique}")


def keys_of(varied: Mapping[str, str], arm: str | None) -> set[str]:
    """What varies of a point, the seed left out."""
    return {*varied, *({"arm"} if arm else ())} - {SEED}


def common(planned: Sequence[Planned], varied: set[str]) -> Common:
    """What all points have alike: of their identity, without seeds and what varies; without what is
    worked out too, but for the global batch, as it may follow from what varies.
    """
    found: Common = {}
    for number, point in enumerate(planned[:: -(-len(planned) // COMPARED)]):
        config = point.resolution.config
        values = dict(_flat(identity(config)))
        for key in [key for key in values if key.endswith(KIND)]:
            section = functools.reduce(getattr, key.removesuffix(KIND).split("."), config)
            values[key] = getattr(section, "schema_name", "") or values[key]
        derived = {one.key for one in point.resolution.derived} - {GLOBAL_BATCH}
        for key in [key for key in values if key in derived or _is_one_of(key, varied)]:
            del values[key]
        found = values if not number else {k: v for k, v in found.items() if values.get(k) == v}
    return json.loads(json.dumps(found, default=str))


def _another(
    sweep: SweepDirectory,
    mine: Common,
    planned: Sequence[Planned],
    here: set[str],
    given: set[str],
) -> tuple[list[str], str]:
    """Words for the name of a directory of its own, and why a command needs one: "" if it belongs
    to this sweep.
    """
    points = sweep.points()
    there = {key for point in points for key in keys_of(point.varied, point.arm)}
    if not here <= there <= given:
        words = list(short_keys(sorted(here)).values()) if here else [SEED]
        return words, f"a sweep over {', '.join(sorted(there)) or 'seeds'}"
    its = sweep.common()
    keys = [key for key in mine if key in its and its[key] != mine[key]]
    keys = [key for key in keys if not _is_one_of(key, there)]
    kinds = [key.removesuffix(KIND) for key in keys if key.endswith(KIND)]
    keys = [key for key in keys if key.endswith(KIND) or not _is_one_of(key, kinds)][:NAMED]
    if keys:
        before = ", ".join(f"{key.removesuffix(KIND)}={shown(its[key])}" for key in keys)
        after = {key.removesuffix(KIND): shown(mine[key]) for key in keys}
        return [slug_of(after)], f"a sweep with {before}"
    hashes = {(point.arm, *sorted(point.varied.items())): point.hash for point in points}
    for point in planned:
        one = point.combination
        known = hashes.get((one.arm, *sorted(one.varied.items())))
        if known not in (None, point.hash):
            return ["other"], "points of the same values with other options"
    return [], ""


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Entries of dicts by keys of their own; without the seed."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat({f"{key}.{name}": inner for name, inner in value.items()})
        elif key != SEED:
            yield key, value


def _is_one_of(key: str, keys: Iterable[str]) -> bool:
    """Whether a key, or a section above it, is one of those that were typed."""
    sections = (one.lstrip("+~").rpartition("@")[2].replace("/", ".") for one in keys)
    return any(f"{key}.".startswith(f"{section}.") for section in sections)
