"""What belongs to each config of a run: overrides, derived, warnings; of a change also provenance
and changes.

That of config.yaml is in files of these names; that of each config after it, with the config, is a
row of changes.jsonl, where earlier forges wrote numbered files.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from forge.rundir.files import read_json, read_rows, write_json, write_text
from forge.rundir.saved_config import CHANGES, newest, numbered, version


def in_force(run_dir: Path) -> int:
    """The number of the config in force."""
    return version(newest(run_dir).name)


def place(run_dir: Path, name: str, n: int) -> Path:
    """The file that has it."""
    earlier = run_dir / numbered(f"{name}.json", n)
    return earlier if n == 1 or earlier.exists() else run_dir / CHANGES


def read(run_dir: Path, name: str, n: int) -> Any:
    """What belongs to the config with this number. Raises OSError and ValueError."""
    file = place(run_dir, name, n)
    if file.name != CHANGES:
        return read_json(file)
    for row in reversed(read_rows(file)):
        if row.get("version") == n and name in row:
            return row[name]
    raise ValueError(f"it has no {name} of config {n}")


def write(run_dir: Path, n: int, **parts: Any) -> None:
    """Keep it, in place of what belongs to that config, or to any after it, so far."""
    if n == 1:
        for name, content in parts.items():
            write_json(run_dir / f"{name}.json", content)
        return
    rows = [row for row in read_rows(run_dir / CHANGES) if row.get("version", n) < n]
    _write_rows(run_dir, [*rows, {"version": n, **parts}])


def update(run_dir: Path, n: int, name: str, content: Any) -> None:
    """Put something else in the place of one part."""
    file = place(run_dir, name, n)
    if file.name != CHANGES:
        write_json(file, content)
        return
    rows = read_rows(file)
    for row in rows:
        if row.get("version") == n:
            row[name] = content
    _write_rows(run_dir, rows)


def prune(run_dir: Path, least: int) -> None:
    """Remove numbered configs before `least` that changes.jsonl has as well."""
    kept = {row.get("version") for row in read_rows(run_dir / CHANGES) if "config" in row}
    for n in range(2, least):
        if n in kept:
            with suppress(FileNotFoundError):
                (run_dir / f"config.{n}.yaml").unlink()


def _write_rows(run_dir: Path, rows: list[dict[str, Any]]) -> None:
    lines = (json.dumps(row, ensure_ascii=False, default=str) for row in rows)
    write_text(run_dir / CHANGES, "".join(f"{line}\n" for line in lines))
