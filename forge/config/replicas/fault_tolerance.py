"""The `fault_tolerance` group: replicas that are runs of their own, and continue when one dies."""

from __future__ import annotations

import importlib.util

from forge.config.field import Condition, Section, opt, section

TORCHFT = Condition(lambda config, ranks: config.fault_tolerance.enabled, "without torchft")
LIGHTHOUSE = "TORCHFT_LIGHTHOUSE"
"""The environment variable of torchft with the address of the lighthouse."""


@section
class FaultTolerance(Section):
    """Data parallel over replica groups by torchft: each group is a run of its own, and the others
    continue when one dies.
    """

    enabled: bool = opt(False, "average gradients over replica groups by torchft")
    replica_id: int = opt(
        0,
        "number of this replica group, from 0",
        ge=0,
        acts_when=TORCHFT,
        free=True,
    )
    group_size: int = opt(
        2, "number of replica groups, each a run of its own", gt=0, acts_when=TORCHFT
    )
    min_replica_size: int = opt(
        1, "replica groups that an update needs at least", gt=0, acts_when=TORCHFT, free=True
    )
    process_group: str = opt(
        "gloo",
        "what carries gradients between groups",
        choices=("gloo", "nccl"),
        acts_when=TORCHFT,
        free=True,
    )
    process_group_timeout_ms: int = opt(
        60_000,
        "wait at most this long for gradients or the state of another group",
        gt=0,
        acts_when=TORCHFT,
        free=True,
    )
    quorum_timeout_sec: int = opt(
        600, "wait at most this long for enough groups", gt=0, acts_when=TORCHFT, free=True
    )
    lighthouse: str | None = opt(
        None,
        "address of torchft_lighthouse, http://HOST:PORT; null = of TORCHFT_LIGHTHOUSE",
        acts_when=TORCHFT,
        free=True,
    )

    @property
    def groups(self) -> int:
        """Number of replica groups; 1 without torchft."""
        return self.group_size if self.enabled else 1

    def part_of(self, rank: int, ranks: int) -> tuple[int, int]:
        """(i, n) over all groups, of the i-th of n parts of a batch in this group."""
        if not self.enabled:
            return rank, ranks
        return self.replica_id * ranks + rank, self.group_size * ranks

    @staticmethod
    def has_torchft() -> bool:
        """Whether torchft is installed."""
        return importlib.util.find_spec("torchft") is not None
