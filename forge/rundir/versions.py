"""The parts of each config of a run: overrides, derived, warnings; of a change also provenance and
changes.

The parts of config.yaml are in files of the same names; the parts of each later config, with the
config, are a row of changes.jsonl, where earlier forges wrote numbered files.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.rundir.files import read_json, read_rows, write_json, write_text
from forge.rundir.saved_config import CHANGES, newest, numbered_file, version


def number_in_force(run_dir: Path) -> int:
    """The number of the config in force."""
    return version(newest(run_dir).name)


def part_file(run_dir: Path, name: str, n: int) -> Path:
    """The file with a part of a config."""
    earlier = run_dir / numbered_file(f"{name}.json", n)
    return earlier if n == 1 or earlier.exists() else run_dir / CHANGES


def read_config_part(run_dir: Path, name: str, n: int) -> Any:
    """A part of the config with this number. Raises OSError and ValueError."""
    file = part_file(run_dir, name, n)
    if file.name != CHANGES:
        return read_json(file)
    for row in reversed(read_rows(file)):
        if row.get("version") == n and name in row:
            return row[name]
    raise ValueError(f"it has no {name} of config {n}")


def write_parts(run_dir: Path, n: int, **parts: Any) -> None:
    """Store the parts of a config, in place of stored parts of this and later configs."""
    if n == 1:
        for name, content in parts.items():
            write_json(run_dir / f"{name}.json", content)
        return
    rows = [row for row in read_rows(run_dir / CHANGES) if row.get("version", n) < n]
    _write_rows(run_dir, [*rows, {"version": n, **parts}])


def replace_part(run_dir: Path, n: int, name: str, content: Any) -> None:
    """Replace the content of a part."""
    file = part_file(run_dir, name, n)
    if file.name != CHANGES:
        write_json(file, content)
        return
    rows = read_rows(file)
    for row in rows:
        if row.get("version") == n:
            row[name] = content
    _write_rows(run_dir, rows)


def prune(run_dir: Path, least: int) -> None:
    """Remove numbered configs before `least` if changes.jsonl has the config too."""
    stored = {row.get("version") for row in read_rows(run_dir / CHANGES) if "config" in row}
    for n in range(2, least):
        if n in stored:
            with suppress(FileNotFoundError):
                (run_dir / f"config.{n}.yaml").unlink()


def _write_rows(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False, default=str) for row in rows)
    write_text(run_dir / CHANGES, "".join(f"{line}\n" for line in lines))
