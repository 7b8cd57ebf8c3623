"""The connection of this group to the others: quorum, gradients and votes, by torchft."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed import ReduceOp, TCPStore  # type: ignore[attr-defined]

from forge.config.replicas.fault_tolerance import LIGHTHOUSE, FaultTolerance
from forge.parallel.ranks import Ranks
from forge.training.process import say
from forge.training.replicas.equal_options import Member, fault
from forge.training.replicas.meeting import meeting_group

HINT = "start `torchft_lighthouse --min_replicas 1 --bind '[::]:29510'` first"


class Joining:
    """The manager of torchft for this rank of its group, and the store that its ranks meet at.

    Each rank exchanges with the ranks of the same number in the other groups.
    """

    def __init__(
        self,
        section: FaultTolerance,
        ranks: Ranks,
        *,
        state: Callable[[], dict[str, Any]],
        load: Callable[[dict[str, Any]], None],
        step: int,
        options: dict[str, str],
    ) -> None:
        """state: what a returning group gets from this group; load: takes it. step: updates so far.
        options: those that all groups have in common.

        Raises ValueError without an answer of the lighthouse.
        """
        self.section, self.ranks, self.options = section, ranks, options
        self.trained, self.fault, self.faults = False, "", list[str]()
        os.environ.setdefault("RUST_LOG", "warn")  # of torchft, which else writes 6 lines a step
        import torchft  # type: ignore[import-not-found]

        wait = timedelta(milliseconds=section.process_group_timeout_ms)
        address = section.lighthouse or os.environ.get(LIGHTHOUSE)
        try:
            self.manager: Any = torchft.Manager(
                pg=self._group(torchft, wait),
                load_state_dict=lambda state: None if self.fault else load(state),
                state_dict=state,
                min_replica_size=section.min_replica_size,
                use_async_quorum=False,  # a group heals before it computes, and then counts
                timeout=wait,
                quorum_timeout=timedelta(seconds=section.quorum_timeout_sec),
                connect_timeout=wait,
                lighthouse_addr=address,
                replica_id=f"forge_{section.replica_id}",
                **self._place(ranks, wait),
            )
        except (RuntimeError, TimeoutError, OSError) as error:
            message = f"fault_tolerance.lighthouse={address} does not answer ({error})"
            raise ValueError(f"{message}; {HINT}") from error
        self.manager.load_state_dict({"step": step, "batches_committed": 0})

    def _group(self, torchft: Any, wait: timedelta) -> Any:
        """The group of this rank and its counterparts, whose members compare their options."""
        nccl = self.section.process_group == "nccl"
        kind = torchft.ProcessGroupNCCL if nccl else torchft.ProcessGroupGloo
        return meeting_group(kind, self._member, self._meet)(timeout=wait)

    def _place(self, ranks: Ranks, wait: timedelta) -> dict[str, Any]:
        """A rank's place in its group, and the group's store, started by the main rank."""
        endpoint: tuple[str, int] | None = None
        if ranks.main:
            host = socket.gethostname() if ranks.size > 1 else "localhost"
            self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=wait)
            endpoint = host, self.store.port
        endpoint = ranks.from_main(endpoint)
        assert endpoint is not None
        host, port = endpoint
        if not ranks.main:
            self.store = TCPStore(host, port, wait_for_workers=False, timeout=wait)
        numbers = {"rank": ranks.rank, "world_size": ranks.size}
        return {**numbers, "store_addr": host, "store_port": port}

    def _member(self) -> Member:
        """This group, for the others."""
        return Member(
            replica_id=self.section.replica_id,
            step=self.manager.current_step(),
            trained=self.trained,
            ranks=self.ranks.size,
            options=self.options,
        )

    def _meet(self, quorum: int, exchange: Callable[[], list[Member]], mine: int) -> bool:
        """Compare groups before they exchange anything; returns whether they can train together.

        The main ranks of the groups meet, and each passes the result on in its own group: with
        fewer ranks in another group some ranks have no counterpart to wait for.
        """
        key = f"forge/meeting/{quorum}"
        if self.ranks.main:
            members = exchange()
            faults = [text for member in members if (text := fault(member, members))]
            self.store.set(key, json.dumps([fault(members[mine], members), faults]))
        self.fault, self.faults = json.loads(self.store.get(key))
        return not self.faults

    def quorum(self) -> None:
        """Agree on the groups of an update; a group that is behind loads the state of another.

        Raises ValueError where this group has other options than the others.
        """
        self.faults = []
        self.manager.start_quorum()
        if self.fault:
            raise ValueError(self.fault)
        if self.faults:  # no sum with that group counts, until a quorum without it
            say(f"{self.faults[0]}; it is left out")
            self.manager.report_error(RuntimeError("a replica group has other options"))
        elif error := self.manager.errored():
            # Not fatal: the vote on this update fails, and a new quorum follows.
            self.manager._logger.warn(f"quorum: {error}")

    @property
    def participants(self) -> int:
        return self.manager.num_participants()

    def sum(self, values: Tensor) -> None:
        """The sum over groups, in place; after a failure the vote says no."""
        self.manager.allreduce(values, reduce_op=ReduceOp.SUM).wait()

    def vote(self) -> bool:
        """Whether every rank of this group has the sums."""
        agreed = self.manager.should_commit()
        self.trained |= agreed
        return agreed

    def close(self) -> None:
        self.manager.shutdown(wait=False)
        self.manager._pg.abort()
