"""The directory of a sweep: its points, each an ordinary run directory, and a ledger of what was
done with them.

<sweep.root>/<sweep.name>/
    sweep.json          its name, every command that was typed for it, and what all points of the
                        first have alike
    sweep.lock          held by the command that starts points now
    ledger.jsonl        what happened to its points, a line each; lines are only ever added
    points/000_lr-0.001_seed-1_1f0a9c2e/
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forge.compose.portable import absolute
from forge.config.problems import COMMAND_LINE, refusal, short_keys
from forge.config.sweep import Sweep
from forge.rundir import files
from forge.rundir.files import read_json, write_json
from forge.rundir.provenance import now
from forge.rundir.untrusted import leads_out

SWEEP, LEDGER, POINTS, LOCK = "sweep.json", "ledger.jsonl", "points", "sweep.lock"
VERSION = 1
LONGEST_SLUG = 80
OTHER_NAME = "give another sweep.name"


@dataclass(frozen=True, kw_only=True)
class Point:
    """A run of a sweep. hash: of its identity. varied: the varied overrides, by key. arm: of an
    ablation.

    event, code: the last event (submitted, started, ended or cancelled; '' for no event yet), and
    the exit code. job, cluster: the last submitted job, and its cluster. pid, host: of the main
    rank last started without a job.
    """

    number: int
    hash: str
    slug: str
    path: Path
    overrides: tuple[str, ...]
    varied: dict[str, str] = field(default_factory=dict)
    arm: str | None = None
    job: str | None = None
    cluster: str | None = None
    event: str = ""
    code: int | None = None
    pid: int | None = None
    host: str | None = None


class SweepDirectory:
    """The directory of a sweep, to read and to extend; adding points takes the directory's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()

    @property
    def exists(self) -> bool:
        return (self.path / SWEEP).is_file()

    @property
    def name(self) -> str:
        return str(self._content().get("name") or self.path.name)

    def commands(self) -> list[dict[str, Any]]:
        """The typed commands, oldest first: time, argv, overrides and config_dirs of each."""
        return list(self._content().get("commands", []))

    def common(self) -> dict[str, Any]:
        """The values common to all points of the first command, by key; {} for older sweeps."""
        common = self._content().get("common")
        return common if isinstance(common, dict) else {}

    def plan(self) -> dict[str, Any]:
        """Question, hypothesis and decision rule as first stated; {} without any."""
        plan = self._content().get("plan")
        return plan if isinstance(plan, dict) else {}

    def agree(self, plan: Mapping[str, str]) -> None:
        """Refuse another question, hypothesis or decision rule than stated first. Raises
        ConfigError.
        """
        stated = self.plan()
        for name, text in plan.items():
            if stated.get(name, text) != text:
                message = f"this sweep was begun with another: {stated[name]}"
                hint = f"leave sweep.{name} out, or {OTHER_NAME}"
                raise refusal(f"sweep.{name}={text}", message, hint)

    def begin(
        self,
        overrides: Sequence[str],
        argv: Sequence[str] | None = None,
        *,
        config_dirs: Sequence[str] = (),
        common: Mapping[str, Any] | None = None,
        plan: Mapping[str, str] | None = None,
    ) -> None:
        """Make a missing directory, and store the typed command. common: values common to all
        points; only the first command's are stored. plan: question, hypothesis and decision rule;
        only the first stated ones are stored.
        """
        stated = self.plan()
        new = {name: text for name, text in (plan or {}).items() if name not in stated}
        (self.path / POINTS).mkdir(parents=True, exist_ok=True)
        words = list(sys.argv if argv is None else argv)
        command: dict[str, Any] = {"time": now(), "argv": words, "overrides": list(overrides)}
        if config_dirs:
            command["config_dirs"] = [absolute(path) for path in config_dirs]
        content: dict[str, Any] = {"version": VERSION, "name": self.name}
        content["commands"] = [*self.commands(), command]
        if common := self.common() if self.exists else common:
            content["common"] = dict(common)
        if new:
            ended = {point.number for point in self.points() if point.event == "ended"}
            stated = {"time": now(), "ended_before": len(ended), **stated, **new}
        if stated:
            content["plan"] = stated
        write_json(self.path / SWEEP, content)

    def add(
        self,
        *,
        hash: str,
        overrides: Sequence[str],
        varied: Mapping[str, str],
        arm: str | None = None,
        number: int | None = None,
    ) -> Point:
        """Add a point with this number, or the next, still without a run directory."""
        number = self.next_number() if number is None else number
        slug = slug_of(varied, arm)
        line = {
            "hash": hash,
            "slug": slug,
            "dir": f"{POINTS}/{number:03d}_{slug}_{hash[:8]}",
            "overrides": list(overrides),
            "varied": dict(varied),
            "arm": arm,
        }
        self.note("point", number, **line)
        return self._point({"number": number, **line})

    def next_number(self) -> int:
        return 1 + max((point.number for point in self.points()), default=-1)

    def note(self, event: str, number: int, **more: Any) -> None:
        line = {"event": event, "time": now(), "number": number, **more}
        files.append_row(self.path / LEDGER, line)

    def points(self) -> list[Point]:
        """All points by number, each with its last event."""
        by_number: dict[int, Point] = {}
        for line in files.read_rows(self.path / LEDGER):
            event, number = line.get("event"), line.get("number")
            if event == "point":
                by_number.setdefault(line["number"], self._point(line))
            elif number in by_number:
                earlier = by_number[number]
                if (earlier.event, event) == ("cancelled", "ended"):
                    event = earlier.event
                job_facts = {
                    key: line[key] for key in ("job", "cluster", "pid", "host") if key in line
                }
                by_number[number] = replace(
                    earlier, event=str(event), code=line.get("code"), **job_facts
                )
        return [by_number[number] for number in sorted(by_number)]

    def _point(self, line: Mapping[str, Any]) -> Point:
        number, folder = line["number"], line["dir"]
        if leads_out(folder):
            message = f"{self.path / LEDGER} has point {number} in {folder}, outside of the sweep."
            raise refusal(str(self.path), message, OTHER_NAME)
        return Point(
            number=number,
            hash=line["hash"],
            slug=line["slug"],
            path=self.path / folder,
            overrides=tuple(line["overrides"]),
            varied=dict(line["varied"]),
            arm=line.get("arm"),
        )

    def _content(self) -> dict[str, Any]:
        if not self.exists:
            return {}
        try:
            content = read_json(self.path / SWEEP)
        except (OSError, ValueError):
            content = None
        if not isinstance(content, dict) or not isinstance(content.get("commands"), list):
            raise refusal(str(self.path), f"{self.path / SWEEP} cannot be read.", OTHER_NAME)
        return content


def slug_of(varied: Mapping[str, str], arm: str | None = None) -> str:
    """The arm and the varied values, without characters special to a shell or Hydra."""
    names = short_keys(list(varied))
    words = [*([arm] if arm else []), *(f"{names[key]}-{value}" for key, value in varied.items())]
    clean = re.sub(r"[^\w.+-]+", "-", "_".join(words), flags=re.ASCII).strip("-_.")
    return clean[:LONGEST_SLUG].rstrip("-_.") or "point"


def find_sweep(path: Path) -> SweepDirectory:
    sweep = SweepDirectory(path)
    if not sweep.exists:
        why = f"it has no {SWEEP}." if path.exists() else "there is no such directory."
        hint = f"give the directory of a sweep, like {example_sweeps(path)}"
        raise refusal(str(path), f"{path} is no sweep: {why}", hint, COMMAND_LINE)
    return sweep


def example_sweeps(path: Path | None = None, most: int = 3) -> str:
    """Probably meant sweeps, newest first: in `path`, else in the default root."""
    root = Path(Sweep().root)
    for folder in (path, root) if path is not None else (root,):
        sweeps = sorted(folder.glob(f"*/{SWEEP}"), key=lambda file: -file.stat().st_mtime)
        if sweeps:
            return ", ".join(str(file.parent) for file in sweeps[:most])
    return f"{root}/<name>"
