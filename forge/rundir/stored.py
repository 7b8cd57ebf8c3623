"""What a run directory holds: its configs, one for each change when the run went on, and how its
files are read, whoever wrote them.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import yaml

CONFIG, ATTEMPTS = "config.yaml", "attempts.jsonl"
BEST = "best"
"""In a path, in place of a step: the best checkpoint of a run."""
MAKING = {
    "run.lock",
    "overrides.json",
    "derived.json",
    "warnings.json",
    "provenance.json",
    "git.diff",
}
"""What is written before config.yaml, the last, makes a directory a run."""
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DEEPEST, LARGEST = 100, 2**28
"""Levels and bytes of a file: far beyond what forge writes, and what Python can take."""
TOO_DEEP = f"it is nested more than {DEEPEST} deep"


def number(name: str) -> int:
    """1 of config.yaml, n of config.n.yaml, 0 of any other name."""
    match = re.fullmatch(r"config(?:\.(\d+))?\.yaml", name)
    return int(match[1] or 1) if match else 0


def numbered(name: str, n: int) -> str:
    """The n-th version of a file: config.yaml, config.2.yaml."""
    stem, dot, suffix = name.partition(".")
    return name if n == 1 else f"{stem}.{n}{dot}{suffix}"


def newest(run_dir: Path) -> Path:
    """The config in force."""
    return run_dir / numbered(
        CONFIG, max((number(path.name) for path in run_dir.glob("config*.yaml")), default=1)
    )


def settled(run_dir: Path) -> int:
    """The number of the last config that the run was started with: what a change is judged against.
    0: every start failed.

    Where nobody noted a start yet, it is the newest.
    """
    last = number(newest(run_dir).name)
    try:
        lines = read_text(run_dir / ATTEMPTS).splitlines()
    except (OSError, ValueError):
        return last
    started = [
        number(str(line.get("config"))) for line in parsed(lines) if line.get("event") == "start"
    ]
    return min(max(started, default=0), last)


def parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines; one that a kill left unfinished is left out."""
    for line in lines:
        try:
            found = from_json(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def read_json(file: Path) -> Any:
    """The content of a JSON file. Raises OSError, and ValueError for one that is damaged, too large
    or nested too deep.
    """
    return from_json(read_text(file))


def from_json(text: str) -> Any:
    """What a JSON text says. Raises ValueError."""
    try:
        content = json.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    inside, depth = [content], 0
    while inside := [
        item
        for one in inside
        if isinstance(one, dict | list)
        for item in (one.values() if isinstance(one, dict) else one)
    ]:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(TOO_DEEP)
    return content


def fields_of(content: Any, types: Mapping[str, Any]) -> dict[str, Any]:
    """What was read, when it is an object whose fields, as far as they are there, have these types.
    Raises ValueError.
    """
    if not isinstance(content, dict):
        raise ValueError("it is no object")
    wrong = [
        name
        for name, kind in types.items()
        if name in content and not isinstance(content[name], kind)
    ]
    if wrong:
        raise ValueError(f"its {wrong[0]} is damaged")
    return content


def read_yaml(file: Path) -> Any:
    """The content of a YAML file. Raises OSError, ValueError for one that is too large, and
    YAMLError.

    Its depth is known before it is put together: the loader in C ends the process at one that is
    too great. An alias, which forge does not write, may make it endless.
    """
    text, depth = read_text(file), 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > DEEPEST:
            raise yaml.YAMLError(TOO_DEEP)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"it has an alias, *{event.anchor}")
    return yaml.load(text, Loader=LOADER)


def read_text(file: Path, *, most: int = LARGEST, errors: str = "strict") -> str:
    """The text of a file of at most so many bytes. Raises OSError and ValueError."""
    with opened(file) as source:
        if os.fstat(source.fileno()).st_size > most:
            raise ValueError(f"it is larger than {most >> 20} MiB")
        return source.read(most).decode("utf-8", errors)


def opened(file: Path) -> BinaryIO:
    """A file, to be read. Raises OSError, also for a pipe, which would be waited for, and for a
    device, which may have no end.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("it is no file")
    return os.fdopen(descriptor, "rb")


def is_run(path: Path) -> bool:
    """Whether a directory holds a run; one with a meta.json is a checkpoint, which has a config
    too.
    """
    return os.path.isfile(path / CONFIG) and not os.path.exists(path / "meta.json")


def is_new(path: Path) -> bool:
    """Whether a run may be made there: absent, empty, or left behind when one was being made."""
    try:
        return not os.path.exists(path) or all(
            n in MAKING or n.startswith(".") for n in os.listdir(path)
        )
    except OSError:
        return False
