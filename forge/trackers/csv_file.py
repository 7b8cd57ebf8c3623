"""Metrics as one CSV table, for spreadsheets and pandas."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from forge.rundir.files import replacing
from forge.rundir.history import history


class CSVFile:
    """`run_dir`/`file_name`: a row a step, a column a metric, empty where a step has no value.

    When a run continues, the table is made again from metrics.jsonl and performance.jsonl, cut at
    the checkpoint. Each row is flushed. A metric not logged before adds a column; the file is then
    written again.
    """

    def __init__(self, run_dir: Path, file_name: str = "metrics.csv") -> None:
        self.path = run_dir / file_name
        self._columns = ["step"]
        self._rows: list[dict[str, Any]] = history(run_dir)
        for row in self._rows:
            row.pop("time", None)  # in the log only, never given to trackers
        self._file: TextIO | None = None
        self._add_columns(name for row in self._rows for name in row)
        self._write_all()

    def log(self, step: int, values: dict[str, float]) -> None:
        """Add the values to the row of `step`, the last one or a new one."""
        same_step = bool(self._rows) and self._rows[-1]["step"] == step
        if not same_step:
            self._rows.append({"step": step})
        self._rows[-1].update(values)
        if self._add_columns(values) or same_step:
            self._write_all()
        elif self._file is not None:
            csv.DictWriter(self._file, self._columns).writerow(self._rows[-1])
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _add_columns(self, names: Iterable[str]) -> bool:
        n_columns = len(self._columns)
        self._columns = list(dict.fromkeys([*self._columns, *names]))
        return len(self._columns) > n_columns

    def _write_all(self) -> None:
        """Write the whole table under another name, then put it in place."""
        self.close()
        with (
            replacing(self.path) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, self._columns)
            writer.writeheader()
            writer.writerows(self._rows)
        self._file = self.path.open("a", newline="", encoding="utf-8")
