"""The configs that a run directory holds: config.yaml, and config.2.yaml and on for each change when the run went on."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

CONFIG, ATTEMPTS = "config.yaml", "attempts.jsonl"
MAKING = {"run.lock", "overrides.json", "derived.json", "warnings.json", "provenance.json", "git.diff"}
"""What is written before config.yaml, the last, makes a directory a run."""


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
    return run_dir / numbered(CONFIG, max((number(path.name) for path in run_dir.glob("config*.yaml")), default=1))


def settled(run_dir: Path) -> int:
    """The number of the last config that the run was started with: what a change is judged against. 0: every start failed.

    Where nobody noted a start yet, it is the newest.
    """
    last = number(newest(run_dir).name)
    try:
        lines = (run_dir / ATTEMPTS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return last
    started = [number(str(line.get("config"))) for line in parsed(lines) if line.get("event") == "start"]
    return min(max(started, default=0), last)


def parsed(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The objects of JSON lines; one that a kill left unfinished is left out."""
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def is_run(path: Path) -> bool:
    """Whether a directory holds a run; one with a meta.json is a checkpoint, which has a config too."""
    return os.path.isfile(path / CONFIG) and not os.path.exists(path / "meta.json")


def is_new(path: Path) -> bool:
    """Whether a run may be made there: absent, empty, or left behind when one was being made."""
    try:
        return not os.path.exists(path) or all(n in MAKING or n.startswith(".") for n in os.listdir(path))
    except OSError:
        return False
