"""Metrics in a CSV file: step, name, value."""

from __future__ import annotations

import csv
from pathlib import Path


class CSV:
    """One row a metric. A run that resumes from a checkpoint writes over the rows after it."""

    def __init__(self, run_dir: Path, file_name: str = "metrics.csv") -> None:
        self.path = run_dir / file_name
        self.rows: list[list[str]] = []
        if self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                self.rows = list(csv.reader(file))[1:]
        self.file = None

    def log(self, step: int, values: dict[str, float]) -> None:
        """Append the metrics of a step."""
        if self.file is None:
            self.file = self._begin(step)
        writer = csv.writer(self.file)
        writer.writerows([step, name, repr(value)] for name, value in values.items())
        self.file.flush()

    def close(self) -> None:
        """Close the file."""
        if self.file is not None:
            self.file.close()

    def _begin(self, first: int):
        file = self.path.open("w", newline="", encoding="utf-8")
        writer = csv.writer(file)
        writer.writerow(["step", "name", "value"])
        writer.writerows(row for row in self.rows if int(row[0]) < first)
        return file
