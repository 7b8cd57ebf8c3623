"""What is known of a folder whose model_type may be no family: its keys and tensors, and what is
missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge.families.family import Family, decoder_section
from forge.families.folder import CONFIG, Folder, all_families, family_of, read_content, stored_rows
from forge.families.shards import FolderError
from forge.families.table import shapes

CLOSEST = 6
"""Families whose tensors are compared, after the comparison of keys."""
SHOWN = 12
"""Names shown of a longer list."""
BROKEN = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass
class Reading:
    """A config.json read as one family.

    faults: keys with values that the family refuses. unknown: keys that it does not read. absent:
    patterns of tensors that the family has and the files lack; extra: the opposite; unlike:
    patterns with other shapes. compared: tensors of the files with a place.
    """

    family: Family
    folder: Folder | None = None
    faults: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    fitting: int = 0
    stored: int = 0
    weights: str = ""

    @property
    def distance(self) -> tuple[int, int]:
        """Patterns of tensors without a partner, and keys without a meaning."""
        tensors = len(self.absent) + len(self.extra) + len(self.unlike)
        return tensors, len(self.faults) + len(self.unknown)


def diagnosis(place: Path) -> list[str]:
    """Return the lines of a diagnosis of a folder.

    Raises FolderError for a folder without a readable config.json.
    """
    if not (place / CONFIG).is_file():
        hint = "the folder of a model, as save_pretrained of transformers writes it"
        raise FolderError(f"{place} has no {CONFIG}", hint)
    content, model_type, inside = read_content(place / CONFIG)
    family = family_of(str(model_type))
    if family is not None:
        reading = _with_tensors(_read_as(family, place, content, inside))
        return [f"model_type={model_type!r} is the family {family.model_type}.", *_lines(reading)]
    readings = [_read_as(candidate, place, content, inside) for candidate in all_families()]
    readings.sort(key=lambda reading: (reading.folder is None, reading.distance))
    closest = [_with_tensors(reading) for reading in readings[:CLOSEST]]
    closest.sort(key=lambda reading: (reading.folder is None, reading.distance))
    nearest, *others = closest
    lines = [f"model_type={model_type!r} is no family of forge.", "", *_lines(nearest), ""]
    lines += ["Families behind it, by patterns of tensors and by keys that do not fit:"]
    return lines + [
        f"  {other.family.model_type}: {other.distance[0]}, {other.distance[1]}" for other in others
    ]


def _read_as(family: Family, place: Path, content: dict[str, Any], inside: bool) -> Reading:
    """Read a config.json as one family."""
    keys = family.keys(content)
    reading = Reading(family)
    try:
        options = family.options(keys)
        keys.finish()
        reading.unknown = list(keys.unknown.values())
        reading.faults = list(keys.faults)
        if not keys.faults:
            reading.faults += family.unread(decoder_section(options))
        parts: dict[str, Any] = {"path": place, "family": family, "content": content}
        parts |= {"options": options, "unknown": keys.unknown, "unread": keys.unread}
        reading.folder = Folder(inside=inside, **parts)
        reading.folder.family.rows(reading.folder.section)
    except BROKEN as error:
        reading.folder = None
        reading.faults.append(f"a value that no model has ({type(error).__name__}: {error})")
    return reading


def _with_tensors(reading: Reading) -> Reading:
    """Compare also the tensors of the files, by their patterns."""
    if reading.folder is None:
        return reading
    try:
        rows, files = stored_rows(reading.folder, reading.folder.section)
    except (FolderError, OSError) as error:
        reading.weights = str(error)
        return reading
    section, expected = reading.folder.section, shapes(rows)
    optional = {pattern(name) for row in rows if row.ours.role == "buffer" for name in row.names}
    reading.absent = [p for p in _patterns(expected.keys() - files.keys()) if p not in optional]
    other = [name for name in files if name not in expected]
    other = [name for name in other if not reading.family.ignored(name, section)]
    reading.extra = list(_patterns(other))
    both = expected.keys() & files.keys()
    unlike = [name for name in both if tuple(files[name].shape) != expected[name]]
    reading.unlike = [
        f"{pattern(name)} {list(files[name].shape)} in place of {list(expected[name])}"
        for name in _first_of_patterns(sorted(unlike))
    ]
    reading.fitting, reading.stored = len(both) - len(unlike), len(files)
    return reading


def pattern(name: str) -> str:
    """Return the name of a tensor with * in place of each number."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _patterns(names: Any) -> Iterator[str]:
    return iter(sorted({pattern(name) for name in names}))


def _first_of_patterns(names: Sequence[str]) -> list[str]:
    """Return the first name of each pattern."""
    return list({pattern(name): name for name in reversed(names)}.values())


def _lines(reading: Reading) -> list[str]:
    """Return a reading in lines."""
    folder, name = reading.folder, reading.family.model_type
    lines = [f"Read as {name}:"]
    if folder is not None:
        options = {key: value for key, value in folder.options.items() if value is not None}
        lines += [f"  options known: {_short([f'{k}={v}' for k, v in options.items()])}"]
    for title, entries in (
        ("keys refused", reading.faults),
        ("keys unknown", reading.unknown),
        ("tensors in the files without a place", reading.extra),
        ("tensors missing in the files", reading.absent),
        ("tensors of other shapes", reading.unlike),
    ):
        lines += [f"  {title}: {_short(entries)}"] if entries else []
    if reading.weights:
        lines.append(f"  tensors not compared: {reading.weights}")
    elif folder is not None:
        lines.append(f"  tensors that fit: {reading.fitting} of {reading.stored}")
    return [*lines, f"  {_verdict(reading)}"]


def _short(entries: Sequence[str]) -> str:
    beyond = len(entries) - SHOWN
    return ", ".join(entries[:SHOWN]) + (f", and {beyond} more" if beyond > 0 else "")


def _verdict(reading: Reading) -> str:
    """Return the next step."""
    tensors, keys = reading.distance
    folder, family = reading.folder, reading.family
    if folder is None or tensors or reading.faults:
        return "missing: what is listed above; a family is one file of forge/families/each."
    steps = []
    if folder.content["model_type"] not in (family.model_type, *family.model_types):
        steps.append(f'"model_type": "{family.model_type}" in a copy of its config.json')
    if keys:
        ignored = ", ".join(text.split("=")[0] for text in reading.unknown)
        steps.append(f"model.ignore_keys=[{ignored}] where these keys change nothing")
    if not steps:
        return "nothing is missing: it can be imported."
    reads = " and ".join(steps)
    return f"nothing else is missing: {reads}; then compare its logits with its own code's."
