"""A process group of torchft whose members tell each other their options before they connect."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from forge.training.replicas.equal_options import Member


def meeting_group(
    kind: type[Any],
    member: Callable[[], Member],
    meet: Callable[[Sequence[Member], int], None],
) -> type[Any]:
    """A kind of process group that calls `meet` with all members of a new quorum, and this one's
    place, before it connects them.
    """
    from torchft.process_group import create_store_client  # type: ignore[import-not-found]

    class MeetingGroup(kind):
        def configure(
            self, store_addr: str, replica_id: str, rank: int, world_size: int, *more: Any
        ) -> None:
            store = create_store_client(store_addr, timeout=self._timeout)
            store.set(f"forge/member/{rank}", json.dumps(asdict(member())))
            texts = [store.get(f"forge/member/{place}") for place in range(world_size)]
            meet([Member(**json.loads(text)) for text in texts], rank)
            super().configure(store_addr, replica_id, rank, world_size, *more)

    return MeetingGroup
