"""Checkpoints on the disks of nodes, each node's part with a copy on a partner node."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from forge.config.checkpoint import Checkpoint
from forge.config.problems import listed
from forge.parallel.ranks import Ranks
from forge.rundir import checkpoints
from forge.rundir.checkpoints import META, WEIGHTS, Saved
from forge.rundir.files import NoRename, check_rename, sync
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.checkpoint import (
    PARTIAL,
    Checkpointer,
    Tensors,
    readable_by_threads,
)
from forge.training.checkpoints.staging import Copies
from forge.training.process import say

log = logging.getLogger(__name__)
BLOCK = 32 << 20
"""Bytes of a message to a partner."""
LOCAL_KEPT = 2
"""Checkpoints on a node's disk: the newest, and the one before it until all nodes have it."""
Listing = dict[int, tuple[dict[str, Any], dict[str, int]]]
"""Of each step on a disk: its meta.json, and bytes by file."""


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """The nodes of a run: ranks of each, this rank's node, and the folder on its disk."""

    per_node: int
    number: int
    folder: Path

    @classmethod
    def of(cls, section: Checkpoint, ranks: Ranks, run_id: str) -> Nodes:
        """Find this rank's node; a collective. ValueError: no other node for a partner."""
        host = socket.gethostname()
        hosts = ranks.of_all(host)
        per_node = section.local_ranks or hosts.count(hosts[0])
        if ranks.size % per_node:
            message = f"{ranks.size} ranks are not divided into nodes of {per_node}"
            raise ValueError(f"checkpoint.local_ranks: {message}; give a divisor")
        number, local_dir = ranks.rank // per_node, section.local_dir or ""
        place = local_dir.replace("%n", str(number)).replace("%N", host)
        places = ranks.of_all((host, str(Path(place).resolve())))
        if section.local_partner:
            _check_partner(places, per_node)
        return cls(per_node=per_node, number=number, folder=Path(place) / run_id)


def _check_partner(places: list[tuple[str, str]], per_node: int) -> None:
    """Refuse a partner whose disk is the node's own."""
    for rank, place in enumerate(places):
        partner = (rank + per_node) % len(places)
        if places[partner] == place:
            node, other, (host, folder) = rank // per_node, partner // per_node, place
            message = (
                f"the partner of node {node} is node {other}, with the same {folder} on {host}"
            )
            hint = "more nodes; or checkpoint.local_partner=false, which keeps no copy"
            raise ValueError(f"checkpoint.local_partner=true: {message}. Give {hint}")


class LocalTier:
    """Saves every `checkpoint.local_interval` steps to each node's own disk.

    Each rank writes its files to `checkpoint.local_dir`, and sends them to the rank in its place on
    the next node, which writes them too; the small files are on every node. So all of a checkpoint
    is there if any node is lost, and if several are that are no neighbours.

    At the start of a run the newest step with all files on any disk is put together among the run's
    own checkpoints, if it is newer than these; from there on it is as any other.
    """

    def __init__(self, checkpointer: Checkpointer) -> None:
        self.checkpointer, self.section = checkpointer, checkpointer.section
        self.ranks, self.run_id = checkpointer.ranks, checkpointer.run_id
        self.savers = replace(self.ranks, host=self.ranks.saver)
        """The ranks, for agreement while training continues."""
        self.nodes = Nodes.of(self.section, self.ranks, self.run_id)
        _check_folders(self.ranks, self.nodes.folder if self.leads else None)

    @property
    def leads(self) -> bool:
        """Whether this rank is the first of its node."""
        return self.ranks.rank % self.nodes.per_node == 0

    def save(self, step: int, tensors: Tensors, about: dict[str, Any]) -> None:
        """Write step_N to the disks of all nodes, from a copy of the tensors while training
        continues unless checkpoint.async_mode=disabled; a collective. Raises OSError on all ranks,
        of an asynchronous save as the checkpointer is waited for.
        """
        scratch = self.nodes.folder / f".step_{step}.{PARTIAL}"
        fault = self._begin(scratch) if self.leads else None
        _agree(self.ranks, self.nodes.folder, fault)
        tensors = {name: readable_by_threads(tensor) for name, tensor in tensors.items()}
        if self.section.async_mode == "disabled":
            self._write(tensors, scratch, about)
        else:
            self.checkpointer.write_copies(tensors, partial(self._write, tensors, scratch, about))

    def _write(
        self, tensors: Tensors, scratch: Path, about: dict[str, Any], copies: Copies | None = None
    ) -> None:
        """Write what `_begin` has begun, with the collectives of the ranks' savers alone."""
        tensor_storage.save_tensors(
            tensors,
            scratch / WEIGHTS,
            copies=None if copies is None else copies.done.result(),
            group=self.savers.host,
        )
        fault = None
        try:
            self._complete(scratch, about)
        except OSError as error:
            fault = error
        _agree(self.savers, self.nodes.folder, fault)
        if self.leads:
            target = self.nodes.folder / f"step_{about['step']}"
            shutil.rmtree(target, ignore_errors=True)
            scratch.rename(target)
            sync(self.nodes.folder)
        self.savers.barrier()  # every node has it: an older one may go
        if self.leads:
            for saved in checkpoints.list_checkpoints(self.nodes.folder)[:-LOCAL_KEPT]:
                shutil.rmtree(saved.path, ignore_errors=True)

    def _begin(self, scratch: Path) -> OSError | None:
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            (scratch / WEIGHTS).mkdir(parents=True)
            if self.ranks.main:
                self.checkpointer.write_small_files(scratch)
        except OSError as error:
            return error
        return None

    def _complete(self, scratch: Path, about: dict[str, Any]) -> None:
        """Add copies of the partner's files, the small files and meta.json."""
        prefix = f"rank_{self.ranks.rank}."
        own = [path for path in (scratch / WEIGHTS).iterdir() if path.name.startswith(prefix)]
        sizes = {path.name: path.stat().st_size for path in sorted(own)}
        of_ranks: list[dict[str, int]] = self.savers.of_all(sizes)
        small: dict[str, bytes] | None = None
        if self.ranks.main:
            tensors = {f"{WEIGHTS}/{n}": size for rank in of_ranks for n, size in rank.items()}
            files = checkpoints.file_sizes(scratch) | tensors
            hashes = checkpoints.small_hashes(scratch)
            meta = checkpoints.sealed(about | {"files": files, checkpoints.HASHES: hashes})
            small = {
                str(path.relative_to(scratch)): path.read_bytes()
                for path in scratch.rglob("*")
                if path.is_file() and path.suffix != ".bin"
            }
            small[META] = json.dumps(meta, indent=1).encode()
        small = self.savers.from_main(small)
        assert small is not None
        if self.section.local_partner:
            self._exchange(scratch / WEIGHTS, of_ranks)
        if self.leads:
            for name, content in small.items():
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).write_bytes(content)
                sync(scratch / name)

    def _exchange(self, folder: Path, of_ranks: list[dict[str, int]]) -> None:
        """Send this rank's files to the rank in its place on the next node, in blocks."""
        size, per_node, rank = self.ranks.size, self.nodes.per_node, self.ranks.rank
        to, source = (rank + per_node) % size, (rank - per_node) % size
        outgoing = [_Block(folder / n, *part) for n, part in _blocks(of_ranks[rank])]
        incoming = [_Block(folder / n, *part) for n, part in _blocks(of_ranks[source])]
        for index in range(max(len(outgoing), len(incoming))):
            waiting: list[Any] = []
            if index < len(outgoing):
                content = outgoing[index].read()
                waiting.append(dist.isend(content, to, group=self.savers.host))
            if index < len(incoming):
                room = torch.empty(incoming[index].size, dtype=torch.uint8)
                waiting.append(dist.irecv(room, source, group=self.savers.host))
            for work in waiting:
                work.wait()
            if index < len(incoming):
                incoming[index].write(room)
        for name in of_ranks[source]:
            sync(folder / name)

    def put_together(self) -> None:
        """Make the newest step that the nodes' disks hold in full a checkpoint of the run, if it is
        newer than all of these; a collective.
        """
        listings: list[Listing] = self.ranks.of_all(self._listing())
        chosen = self.ranks.from_main(self._choose(listings) if self.ranks.main else None)
        if chosen is None:
            return
        step, owners = chosen
        target = self.checkpointer.folder / f"step_{step}"
        scratch = target.with_name(f".step_{step}.{PARTIAL}")
        if self.ranks.main:
            for path in (scratch, target):  # left by a kill
                shutil.rmtree(path, ignore_errors=True)
        self.ranks.barrier()
        fault = None
        try:
            for name in (name for name, rank in owners.items() if rank == self.ranks.rank):
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.nodes.folder / f"step_{step}" / name, scratch / name)
                sync(scratch / name)
        except OSError as error:
            fault = error
        faults = [each for each in self.ranks.of_all(fault) if each is not None]
        if faults:
            log.warning("step %d on the nodes' disks cannot be used: %s", step, faults[0])
        elif self.ranks.main:
            scratch.rename(target)
            sync(self.checkpointer.folder)
        self.ranks.barrier()

    def forget_after(self, step: int) -> None:
        """Remove what the node's disk has of later steps, which are made again, and of a save that
        a kill has ended.
        """
        if self.leads:
            for path in self.nodes.folder.glob(f".step_*.{PARTIAL}"):
                shutil.rmtree(path, ignore_errors=True)
            for saved in checkpoints.list_checkpoints(self.nodes.folder):
                if saved.step > step:
                    shutil.rmtree(saved.path, ignore_errors=True)

    def _listing(self) -> Listing:
        """The steps on this node's disk."""
        return {
            saved.step: (saved.meta, checkpoints.file_sizes(saved.path) | {META: -1})
            for saved in checkpoints.list_checkpoints(self.nodes.folder)
            if saved.meta.get("run_id") == self.run_id
        }

    def _choose(self, listings: list[Listing]) -> tuple[int, dict[str, int]] | None:
        """The newest step with all files, and the rank that copies each file; None = none."""
        newest, _ = checkpoints.newest_usable(self.checkpointer.folder, self.run_id, to_go_on=True)
        steps = {step for listing in listings for step in listing}
        for step in sorted(steps, reverse=True):
            if newest is not None and step <= newest.step:
                return None
            metas = [listing[step][0] for listing in listings if step in listing]
            wanted = metas[0]["files"] | {META: -1}
            owners: dict[str, int] = {}
            for rank, listing in reversed(list(enumerate(listings))):
                _, sizes = listing.get(step, ({}, {}))
                owners |= {name: rank for name, size in sizes.items() if wanted.get(name) == size}
            if missing := wanted.keys() - owners.keys():
                log.warning("step %d on the nodes' disks lacks %s", step, listed(sorted(missing)))
                continue
            self._tell(step, listings, newest)
            return step, owners
        return None

    def _tell(self, step: int, listings: list[Listing], newest: Saved | None) -> None:
        """Say which nodes have lost their part."""
        nodes = range(0, len(listings), self.nodes.per_node)
        lost = [str(rank // self.nodes.per_node) for rank in nodes if step not in listings[rank]]
        text = f"step {step} is taken from the nodes' disks"
        if newest is not None:
            text += f", newer than step {newest.step} on shared storage"
        if lost:
            text += f"; the part of node {', '.join(lost)} comes from its partner"
        say(text)


def _check_folders(ranks: Ranks, folder: Path | None) -> None:
    """Raise ValueError on all ranks where a node's folder cannot take saves. folder: of a rank that
    leads its node.
    """
    fault = ""
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            check_rename(folder)
    except OSError as error:
        if isinstance(error, NoRename) and folder is not None:
            with suppress(OSError):  # it is not empty
                folder.rmdir()
        fault = f"{folder} on {socket.gethostname()}: {error.strerror or error}"
    if first := next(filter(None, ranks.of_all(fault)), None):
        hint = "Give a folder on a disk of each node, or checkpoint.local_interval=0"
        raise ValueError(f"checkpoint.local_dir: {first}. {hint}")


def _agree(ranks: Ranks, folder: Path, fault: OSError | None) -> None:
    """Raise the first rank's fault on all ranks."""
    faults = ranks.of_all(fault)
    if first := next((each for each in faults if each is not None), None):
        reason = first.strerror or str(first)
        hint = "Make room there, or checkpoint.local_interval=0"
        raise OSError(f"checkpoint.local_dir: {folder}: {reason}. {hint}")


@dataclass(frozen=True)
class _Block:
    """Bytes of a file."""

    path: Path
    start: int
    size: int

    def read(self) -> Tensor:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return torch.frombuffer(bytearray(file.read(self.size)), dtype=torch.uint8)

    def write(self, content: Tensor) -> None:
        with self.path.open("r+b" if self.start else "wb") as file:
            file.seek(self.start)
            file.write(content.numpy().data)


def _blocks(sizes: dict[str, int]) -> Iterator[tuple[str, tuple[int, int]]]:
    """(file, (start, bytes)) of all blocks of files, in order."""
    for name, size in sizes.items():
        for start in range(0, size, BLOCK):
            yield name, (start, min(BLOCK, size - start))


def local_tier_of(checkpointer: Checkpointer) -> LocalTier | None:
    """The tier of a run; None without checkpoint.local_interval."""
    section = checkpointer.section
    return LocalTier(checkpointer) if section.enabled and section.local_interval else None
