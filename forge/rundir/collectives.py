"""The last collectives of each rank, from torch's flight recorder, and which rank is behind."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

GROUPS = 8  # groups of ranks kept in a sign of life, the last used
ACTIVE = ("scheduled", "started")
MOST = 8  # ranks named
UNNAMED = ("", "undefined")


@dataclass(frozen=True, kw_only=True)
class Collective:
    """The last collective that a rank has issued in a group. waiting: not completed."""

    group: str
    number: int
    name: str
    waiting: bool

    def words(self) -> str:
        return f"{self.name} {self.number} of {self.group}"


def recorded_entries() -> list[Mapping[str, Any]]:
    """This process's last collectives as torch's flight recorder has them; none without it.

    Also called while another thread waits inside of a collective.
    """
    c10d: Any = sys.modules.get("torch._C._distributed_c10d")
    entries: list[Mapping[str, Any]] = []
    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        if (dump := getattr(c10d, name, None)) is not None:
            with suppress(Exception):  # a recorder that is off, or of another version of torch
                entries += pickle.loads(dump(True, False, False))["entries"]
    return entries


def last_collectives() -> list[Collective]:
    """This process's last collective in each group."""
    entries = recorded_entries()
    newest: dict[str, Collective] = {}
    for entry in entries:
        if entry.get("is_p2p"):
            continue
        name, description = entry["process_group"]
        group = f"group {name[:8]}" if description in UNNAMED else f"{description} ({name[:8]})"
        newest.pop(group, None)
        newest[group] = Collective(
            group=group,
            number=int(entry["collective_seq_id"]),
            name=str(entry["profiling_name"]).partition(":")[2].removeprefix("_"),
            waiting=entry["state"] in ACTIVE and not entry.get("retired", False),
        )
    return list(newest.values())[-GROUPS:]


def collective_rows(collectives: Iterable[Collective]) -> list[list[Any]]:
    return [[each.group, each.number, each.name, each.waiting] for each in collectives]


def read_collectives(rows: Any) -> list[Collective]:
    """Read `collective_rows`. Raises ValueError and TypeError."""
    return [
        Collective(group=str(group), number=int(number), name=str(name), waiting=bool(waiting))
        for group, number, name, waiting in rows
    ]


def who_waits(
    of_ranks: Mapping[int, Sequence[Collective]], places: Mapping[int, str] = MappingProxyType({})
) -> str:
    """The ranks that wait in a collective, and the ranks that have not come to it; empty where no
    rank waits for another. places: words for the process and host of a rank.
    """
    groups: dict[str, dict[int, Collective]] = {}
    for rank, collectives in of_ranks.items():
        for collective in collectives:
            groups.setdefault(collective.group, {})[rank] = collective
    for members in groups.values():
        furthest = max(members.values(), key=lambda collective: collective.number)
        waiting = [
            rank
            for rank, each in members.items()
            if each.number == furthest.number and each.waiting
        ]
        behind = {r: each for r, each in members.items() if each.number < furthest.number}
        if waiting and behind:
            verb = "waits" if len(waiting) == 1 else "wait"
            # Ranks that wait too, in an earlier one, are not to blame.
            order = sorted(behind, key=lambda rank: (behind[rank].waiting, rank))
            done = [_place(rank, behind[rank], places.get(rank, "")) for rank in order[:MOST]]
            return f"{_ranks(waiting)} {verb} in {furthest.words()}; {', '.join(done)}"
    return ""


def _place(rank: int, collective: Collective, place: str) -> str:
    """A rank that is behind: where it waits, or the last collective that it has done."""
    if collective.waiting:
        return f"rank {rank}{place} waits in {collective.name} {collective.number}"
    return f"rank {rank}{place} was last at {collective.number}"


def _ranks(ranks: Sequence[int]) -> str:
    """'rank 3', or 'ranks 0 to 2, 4'."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a} to {b}" for a, b in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"
