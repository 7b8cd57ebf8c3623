"""Options that replica groups have in common, and the comparison of groups that meet."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forge.config.changes import PLACES, permitted
from forge.config.field import Section
from forge.config.horizon import SCHEDULE
from forge.config.numbers import counted
from forge.config.problems import literal
from forge.config.root import Config

DIVIDED = (
    "train.batch_size",
    "train.grad_accum_steps",
    "train.max_steps",
    "parallel.dp_replicate",
    "parallel.dp_shard",
    "fault_tolerance.process_group",
)
"""Options that may change when a run continues, but decide on who computes which part."""
FOLLOWS = {
    "train.global_batch_tokens": ("train.global_batch_size", "train.seq_len"),
    "train.grad_accum_steps": ("train.global_batch_size", "train.batch_size"),
    **dict.fromkeys(SCHEDULE, ("train.max_steps",)),
}
"""Options that change with others: the cause is named alone."""
SHOWN = 5
REPLICA = "fault_tolerance.replica_id"


@dataclass(frozen=True, kw_only=True)
class Member:
    """A replica group as the others see it. trained: whether it has made an update since it was
    started. ranks: their number. options: by key, as `common_options`.
    """

    replica_id: int
    step: int
    trained: bool
    ranks: int
    options: dict[str, str]


def common_options(config: Config) -> dict[str, str]:
    """The options that decide on an update, with their values; a section's value is its schema."""
    return dict(_common(config, ""))


def _common(section: Section, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(section):
        key, value = f"{prefix}{field.name}", getattr(section, field.name)
        free = section.all_free or field.metadata.get("free", False)
        if isinstance(value, Section):
            if not value.all_free:
                yield key, value.schema_name or type(value).__name__
            yield from _common(value, f"{key}.")
        elif key in DIVIDED or not (free or permitted(key, PLACES)):
            yield key, literal(value)


def reference(members: Sequence[Member]) -> Member:
    """The group that the others are compared with: one that trains, the furthest, the first."""
    return max(members, key=lambda member: (member.trained, member.step, -member.replica_id))


def differences(member: Member, other: Member) -> dict[str, tuple[str, str]]:
    """Options with unequal values: by key the value of `member` and of `other`; of sections with
    another schema only the section.
    """
    mine, theirs = member.options, other.options
    keys = [key for key in mine | theirs if mine.get(key) != theirs.get(key)]
    keys = [key for key in keys if not any(key.startswith(f"{above}.") for above in keys)]
    causes = [key for key in keys if not set(FOLLOWS.get(key, ())).intersection(keys)]
    return {key: (mine.get(key, "absent"), theirs.get(key, "absent")) for key in causes}


def fault(member: Member, members: Sequence[Member]) -> str:
    """Why a group cannot train with the others, with what to do; empty where it can."""
    first = reference(members)
    if first is member:
        return ""
    if first.replica_id == member.replica_id:
        message = f"{REPLICA}={member.replica_id}: another replica group has this number"
        return f"{message}, and reads the same part of each batch; give each its own"
    if first.ranks != member.ranks:
        message = f"fault_tolerance: replica group {member.replica_id} has"
        message += f" {counted(member.ranks, 'rank')}, and group {first.replica_id} has"
        ranks = counted(first.ranks, "rank")
        message += f" {ranks}: each exchanges with the rank of its number"
        return f"{message}. Start it with {ranks}, as by run.num_processes={first.ranks}"
    unequal = differences(member, first)
    if not unequal:
        return ""
    pairs = [f"{key}={ours} instead of {theirs}" for key, (ours, theirs) in unequal.items()]
    more = f"; {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    fixes = " ".join(f"{key}={theirs}" for key, (_, theirs) in list(unequal.items())[:SHOWN])
    message = f"fault_tolerance: replica group {member.replica_id} differs from group"
    return f"{message} {first.replica_id}: {'; '.join(pairs[:SHOWN])}{more}. Give it {fixes}"
