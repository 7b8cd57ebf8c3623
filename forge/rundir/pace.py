"""Which rank the others wait for, by when each comes to the collectives of a run.

Each rank writes now and then when it came to its last collectives, to RUN/alive/pace_RANK. Nothing
is sent for it: torch's flight recorder has the times.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.config.regular import open_regular, parse_json
from forge.rundir.collectives import recorded_entries
from forge.rundir.signs import ALIVE

PACE = "pace_"  # how the files begin
LAST, FEWEST = 100, 8
"""Collectives of a group that a file has, and that ranks must have in common to be compared."""
LATE = 0.2
"""Share of the time that others wait for a rank, from which it is named."""
LARGEST_FILE = 1 << 20  # of LAST collectives of some hundred groups
Moments = dict[str, dict[int, tuple[float, float | None]]]
"""By group and number of the collective: seconds at which the rank came, and seconds it took."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """When a rank came to its last collectives. ahead: its clock before the file system's."""

    rank: int
    host: str
    process: int
    ahead: float
    moments: Moments

    @property
    def place(self) -> str:
        return f"rank {self.rank} (process {self.process} on {self.host})"


def moments_of(entries: Sequence[Mapping[str, Any]]) -> Moments:
    """The last collectives of each group, from entries of torch's flight recorder."""
    moments: Moments = {}
    for entry in entries:
        if entry.get("is_p2p"):
            continue
        took = entry.get("duration_ms")
        of_group = moments.setdefault(str(entry["process_group"][0]), {})
        seconds = None if took is None else took / 1e3
        of_group[int(entry["collective_seq_id"])] = (entry["time_created_ns"] / 1e9, seconds)
    return {group: dict(list(each.items())[-LAST:]) for group, each in moments.items()}


def write_pace(run_dir: Path, rank: int) -> None:
    """Write the pace of this process; nothing without a recorder or a folder to write to."""
    with suppress(OSError):
        file = run_dir / ALIVE / f"{PACE}{rank}"
        rows = [
            [group, number, round(when, 6), took]
            for group, of_group in moments_of(recorded_entries()).items()
            for number, (when, took) in of_group.items()
        ]
        scratch = file.with_name(f".{file.name}")
        scratch.write_text("", encoding="utf-8")
        ahead = time.time() - os.stat(scratch).st_mtime
        who = {"host": platform.node(), "process": os.getpid(), "ahead": ahead}
        scratch.write_text(json.dumps({**who, "rows": rows}), encoding="utf-8")
        scratch.replace(file)


def remove_pace(run_dir: Path, rank: int) -> None:
    """Remove the file of this rank: no step follows."""
    with suppress(OSError):
        (run_dir / ALIVE / f"{PACE}{rank}").unlink()


def read_paces(run_dir: Path) -> list[Pace]:
    """The paces of all ranks that have written one."""
    paces = (_read_pace(file) for file in (run_dir / ALIVE).glob(f"{PACE}*"))
    return sorted((pace for pace in paces if pace), key=lambda pace: pace.rank)


def _read_pace(file: Path) -> Pace | None:
    try:
        with open_regular(file) as opened:
            content = parse_json(opened.read(LARGEST_FILE))
        moments: Moments = {}
        for group, number, when, took in content["rows"]:
            moments.setdefault(str(group), {})[int(number)] = (float(when), took)
        return Pace(
            rank=int(file.name.removeprefix(PACE)),
            host=str(content["host"]),
            process=int(content["process"]),
            ahead=float(content["ahead"]),
            moments=moments,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def shares_waited(paces: Sequence[Pace]) -> dict[int, float]:
    """Share of the time that most ranks of a group wait for a rank in collectives, by rank.

    Where collectives were timed, as by NCCL, a rank that comes late spends less time in them. Else
    the times of coming are compared, between hosts by the clock of the file system.
    """
    shares: dict[int, float] = {}
    several_hosts = len({pace.host for pace in paces}) > 1
    for group in {group for pace in paces for group in pace.moments}:
        members = {
            pace.rank: {
                number: (when - pace.ahead * several_hosts, took)
                for number, (when, took) in pace.moments[group].items()
            }
            for pace in paces
            if group in pace.moments
        }
        for rank, share in _of_group(members).items():
            shares[rank] = max(shares.get(rank, 0.0), share)
    return shares


def _of_group(members: Mapping[int, Mapping[int, tuple[float, float | None]]]) -> dict[int, float]:
    """`shares_waited` of the ranks of a group; empty with too few collectives in common."""
    numbers = set.intersection(*map(set, members.values()))
    if len(members) < 2 or len(numbers) < FEWEST:
        return {}
    late = dict.fromkeys(members, 0.0)
    for number in numbers:
        of_ranks = {rank: moments[number] for rank, moments in members.items()}
        timed = {rank: -took for rank, (_, took) in of_ranks.items() if took is not None}
        came = {rank: when for rank, (when, _) in of_ranks.items()}
        moments = timed if len(timed) == len(members) else came
        usual = sorted(moments.values())[(len(members) - 1) // 2]
        for rank, moment in moments.items():
            late[rank] += max(moment - usual, 0.0)
    times = [[moments[number][0] for number in numbers] for moments in members.values()]
    span = max(max(each) - min(each) for each in times)
    return {rank: seconds / max(span, 1e-9) for rank, seconds in late.items()}


def straggler(run_dir: Path) -> str:
    """A sentence on the rank that the others wait for most; empty if they wait for none."""
    paces = read_paces(run_dir)
    shares = shares_waited(paces)
    late = max(shares, key=shares.__getitem__, default=None)
    if late is None or shares[late] < LATE:
        return ""
    place = next(pace.place for pace in paces if pace.rank == late)
    share = f"{shares[late]:.0%} of the time"
    return f"{place} is slow: in collectives the others wait for it {share}"
