"""A process group of torchft whose members compare their options before they connect."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from forge.training.replicas.equal_options import Member


def meeting_group(
    kind: type[Any],
    member: Callable[[], Member],
    meet: Callable[[int, Callable[[], list[Member]], int], bool],
) -> type[Any]:
    """A kind of process group that connects the members of a new quorum only if `meet` says so.

    meet: gets the number of the quorum, a function that exchanges `member` with the ranks of the
    same number in the other groups, and this group's place among them.
    """
    from torchft.process_group import create_store_client  # type: ignore[import-not-found]

    class MeetingGroup(kind):
        def configure(
            self,
            store_addr: str,
            replica_id: str,
            rank: int,
            world_size: int,
            quorum_id: int,
            *more: Any,
        ) -> None:
            def members() -> list[Member]:
                store = create_store_client(store_addr, timeout=self._timeout)
                store.set(f"forge/member/{rank}", json.dumps(asdict(member())))
                texts = [store.get(f"forge/member/{place}") for place in range(world_size)]
                return [Member(**json.loads(text)) for text in texts]

            if meet(quorum_id, members, rank):
                super().configure(store_addr, replica_id, rank, world_size, quorum_id, *more)

    return MeetingGroup
