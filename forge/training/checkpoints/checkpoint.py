"""Checkpoints: written under a temporary name, and renamed once they are on the disk."""

from __future__ import annotations

import errno
import json
import logging
import math
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge.config.numbers import byte_size
from forge.config.objectives.base import is_higher_better
from forge.config.root import Config
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.optim.offload import Offloaded
from forge.parallel.ranks import Ranks
from forge.rundir import checkpoints, saved_config
from forge.rundir.checkpoints import FORMAT, META, TOKENIZER, WEIGHTS, Saved
from forge.rundir.files import sync, write_json
from forge.rundir.provenance import now, versions
from forge.rundir.saved_config import CONFIG
from forge.tensors.masters import exact_state, trained_state
from forge.tensors.threads import pool
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.adapter_base import BASE
from forge.training.checkpoints.staging import Copies, Staging

log = logging.getLogger(__name__)
Tensors = dict[str, Tensor]
PARTIAL, REMOVED, UNDONE = "partial", "removed", "undone"


class Apart(Protocol):
    """Replicas with weights of their own, see `forge.training.callbacks.diloco`."""

    def saved_weights(self, weights: Tensors) -> Tensors: ...

    def saved_state(self, optimizer: torch.optim.Optimizer) -> Tensors: ...


class Checkpointer:
    """Saves the checkpoints of one run, and removes surplus checkpoints.

    A checkpoint is `step_N/` with the resolved config, the tokenizer, the tensors by the names of
    parameters (never of ranks), and `meta.json`. This file is written last, names every file with
    the size, small files with a hash, and has a checksum of the file itself. A checkpoint is
    written as `.step_N.partial`.

    base: of a run with an adapter, see `adapter_base`; then only trained tensors are saved. passed:
    checkpoints skipped at the start. apart: of replicas with weights of their own.
    before_commit: called with the partial directory once all
    but meta.json is written; for tests of a kill's remains.
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        tokenizer: Tokenizer,
        run_id: str,
        ranks: Ranks | None = None,
    ) -> None:
        self.folder, self.section, self.config = folder, config.checkpoint, config
        self.tokenizer, self.run_id, self.ranks = tokenizer, run_id, ranks or Ranks()
        self.base: dict[str, Any] | None = None
        self.passed = checkpoints.SkippedCheckpoints()
        self.before_commit: list[Callable[[Path], None]] = []
        self.apart: Apart | None = None
        self._thread = pool(1, name="checkpoint")
        self._staging: Staging | None = None
        self._copies: Copies | None = None
        self._pending: list[Future[None]] = []
        self._committed: list[Path] = []

    def reserve(self, model: nn.Module, optimizer: torch.optim.Optimizer, extra: Tensors) -> None:
        """Begin to pin memory for the first save, while training continues."""
        if self._staging is None:
            self._staging = Staging(pinned=True)
            self._staging.reserve(self.tensors_of(model, optimizer, extra).values())

    def save(
        self,
        step: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        meta: dict[str, Any],
        extra: Tensors,
        weights_only: bool = False,
    ) -> None:
        """Write step_N; asynchronously from a copy of the tensors, while training continues.

        extra: further tensors by name, the state of callbacks. weights_only: no optimizer state.
        Raises OSError, with a hint, if writing fails.
        """
        self.wait()  # an earlier save may still read the staging buffer
        target, scratch = self.folder / f"step_{step}", self.folder / f".step_{step}.{PARTIAL}"
        tensors = self.tensors_of(model, None if weights_only else optimizer, extra)
        tensors = {name: readable_by_threads(tensor) for name, tensor in tensors.items()}
        about = self.about(step, meta, weights_only=weights_only)
        fault = self._prepare(scratch, _disk_bytes(tensors)) if self.ranks.main else None
        # A fault of the main rank is raised by all ranks, since writing is a collective.
        fault = self.ranks.from_main(fault)
        if fault is not None:
            raise self._failed(target, scratch, fault) from fault
        if self.section.async_mode == "disabled":
            self._write(tensors, scratch, target, about)
            self.ranks.barrier()
            return
        self.write_copies(tensors, partial(self._write, tensors, scratch, target, about))

    def write_copies(self, tensors: Tensors, write: Callable[[Copies], None]) -> None:
        """Copy tensors, and have `write` called with the copies by the thread of saves."""
        pinned = self.section.async_mode == "async_with_pinned_mem"
        self._staging = self._staging or Staging(pinned=pinned)
        self._copies = self._staging.copy(tensors)
        self._pending.append(self._thread.submit(write, self._copies))

    def tensors_of(
        self, model: nn.Module, optimizer: torch.optim.Optimizer | None, extra: Tensors
    ) -> dict[str, Tensor]:
        """The tensors of a checkpoint; optimizer: None = weights alone."""
        if isinstance(optimizer, Offloaded):
            optimizer.settle()
        # The frozen weights below an adapter are referenced by `base`, not saved.
        weights = exact_state(model) if self.base is None else trained_state(model)
        if self.apart is not None:
            weights = self.apart.saved_weights(weights)
        tensors = prefixed("model", weights)
        if optimizer is not None and self.apart is not None:
            tensors |= self.apart.saved_state(optimizer)
        elif optimizer is not None:
            tensors |= prefixed("optimizer", optimizer_tensors(model, optimizer))
        return tensors | extra

    def save_weights(
        self, step: int, like: Tensors, values: Mapping[str, Tensor], meta: dict[str, Any]
    ) -> None:
        """Write step_N of weights alone, without a model.

        like: the weights on the meta device; values: gives each weight for writing. For one
        process; raises as `save_tensors`.
        """
        target, scratch = self.folder / f"step_{step}", self.folder / f".step_{step}.{PARTIAL}"
        tensors = prefixed("model", like)
        if fault := self._prepare(scratch, _disk_bytes(tensors)):
            raise self._failed(target, scratch, fault) from fault
        about = self.about(step, meta, weights_only=True)
        self._write(tensors, scratch, target, about, values=values)

    def about(
        self, step: int, meta: dict[str, Any], *, weights_only: bool = False
    ) -> dict[str, Any]:
        """The content of meta.json but for the files."""
        return {
            "format": FORMAT,
            "step": step,
            "time": now(),
            "run_id": self.run_id,
            "versions": versions(),
            "weights_only": weights_only,
            **({} if self.base is None else {BASE: self.base}),
            **meta,
        }

    @property
    def is_copying(self) -> bool:
        """Whether an asynchronous copy may still read saved tensors."""
        return self._copies is not None

    def wait_to_write(self) -> None:
        """Wait for an asynchronous copy; called before any saved tensor changes."""
        if self._copies is not None:
            self._copies.wait_to_write()
            self._copies = None

    def wait(self) -> None:
        """Wait until the present save is committed, and replaced checkpoints are gone.

        Raises failures of the save.
        """
        self._copies = None
        while self._pending:
            self._pending.pop(0).result()

    @property
    def is_idle(self) -> bool:
        """Whether no save is being written."""
        return all(save.done() for save in self._pending)

    def committed(self) -> list[Path]:
        """The checkpoints committed since the last call. Raises failures."""
        if self.is_idle:
            self.wait()
        done, self._committed = self._committed, []
        return done

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        """Add metrics to a checkpoint saved before the evaluation at the same step."""
        path = self.folder / f"step_{step}"
        if self.ranks.main and self.has(step):
            meta = Saved(path).meta | {"metrics": metrics}
            write_json(path / META, checkpoints.sealed(meta))
            self._prune()

    def close(self) -> None:
        """Wait, and release the staging buffer."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            if self._staging is not None:
                self._staging.close()

    def clean(self) -> None:
        """Remove half written and half removed checkpoints of a killed process."""
        for name in (PARTIAL, REMOVED):
            for path in self.folder.glob(f".step_*.{name}"):
                log.info("%s is left from a process that was killed, and is removed", path)
                shutil.rmtree(path, ignore_errors=True)

    def set_aside(self, after: int) -> list[Path]:
        """Rename the checkpoints of later steps, for a run resuming from step `after`."""
        moved = []
        for checkpoint in checkpoints.list_checkpoints(self.folder):
            if checkpoint.step > after:
                target = checkpoint.path.with_name(f"{checkpoint.path.name}.{UNDONE}")
                while target.exists():
                    target = target.with_name(f"{target.name}.{UNDONE}")
                checkpoint.path.rename(target)
                moved.append(target)
        return moved

    def has(self, step: int) -> bool:
        return Saved(self.folder / f"step_{step}").fault(self.run_id) is None

    def is_best(self, value: float) -> bool:
        """Whether a checkpoint with this value of eval.metric would be among the best to keep."""
        count, metric = self.section.keep_best, self.config.eval.metric
        if not count or not math.isfinite(value):
            return False
        best = checkpoints.best_checkpoints(self._usable(), metric, count)
        sign = 1 if is_higher_better(metric) else -1
        better_than = (
            sign * value > sign * checkpoint.meta["metrics"][metric] for checkpoint in best
        )
        return len(best) < count or any(better_than)

    def _usable(self) -> list[Saved]:
        return [
            checkpoint
            for checkpoint in checkpoints.list_checkpoints(self.folder)
            if checkpoint.fault(self.run_id) is None
        ]

    def _write(
        self,
        tensors: Tensors,
        scratch: Path,
        target: Path,
        about: dict[str, Any],
        copies: Copies | None = None,
        values: Mapping[str, Tensor] | None = None,
    ) -> None:
        try:
            local_copies = values if copies is None else copies.done.result()
            tensor_storage.save_tensors(
                tensors, scratch / WEIGHTS, copies=local_copies, group=self.ranks.saver
            )
            if self.ranks.main:
                self._commit(scratch, target, about)
        except OSError as error:
            raise self._failed(target, scratch, error) from error

    def _prepare(self, scratch: Path, needed: int) -> OSError | None:
        """Make the temporary directory with all but the tensors; returns a fault, if any."""
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            free = shutil.disk_usage(scratch).free
            if free < needed:
                message = f"it needs {byte_size(needed)}, and {byte_size(free)} are free"
                raise OSError(errno.ENOSPC, message)
            self.write_small_files(scratch)
        except OSError as error:
            return error
        return None

    def write_small_files(self, scratch: Path) -> None:
        """Write the config and the tokenizer. Raises OSError."""
        saved_config.save_config(self.config, scratch / CONFIG)
        self.tokenizer.save(scratch / TOKENIZER)

    def _commit(self, scratch: Path, target: Path, about: dict[str, Any]) -> None:
        for hook in self.before_commit:
            hook(scratch)
        for path in scratch.rglob("*"):
            sync(path)
        sizes, hashes = checkpoints.file_sizes(scratch), checkpoints.small_hashes(scratch)
        meta = checkpoints.sealed(about | {"files": sizes, checkpoints.HASHES: hashes})
        # meta.json comes last and after the syncs: its presence vouches for every other file.
        (scratch / META).write_text(json.dumps(meta, indent=1), encoding="utf-8")
        sync(scratch / META)
        sync(scratch)
        if target.exists():
            self._remove(target)
        scratch.rename(target)
        # The rename itself must reach the disk before older checkpoints are removed.
        sync(self.folder)
        self._committed.append(target)
        self._prune()

    def _prune(self) -> None:
        if not self.section.keep_last_n:
            return
        usable, metric = self._usable(), self.config.eval.metric
        keep = usable[-self.section.keep_last_n :]
        keep += checkpoints.best_checkpoints(usable, metric, self.section.keep_best)
        for checkpoint in usable:
            if checkpoint not in keep:
                self._remove(checkpoint.path)

    def _remove(self, path: Path) -> None:
        """Rename now, since a kill must leave no torn checkpoint; delete in the background."""
        scratch = path.with_name(f".{path.name}.{REMOVED}")
        shutil.rmtree(scratch, ignore_errors=True)
        path.rename(scratch)
        self._pending.append(self._thread.submit(shutil.rmtree, scratch, ignore_errors=True))

    def _failed(self, target: Path, scratch: Path, error: OSError) -> OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        last, _ = checkpoints.newest_usable(self.folder, self.run_id)
        fallback = "there is no earlier checkpoint"
        if last:
            fallback = f"the checkpoint of step {last.step} is complete"
        reason = error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
        hint = "Make room or give access, then continue with this run"
        return OSError(f"{target} cannot be written: {reason}. {hint}; {fallback}")


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Optimizer state by the names of parameters: 'blocks.0.attention.wq.weight/exp_avg'."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for p, state in optimizer.state.items()
        for key, value in state.items()
    }


def readable_by_threads(tensor: Tensor) -> Tensor:
    """The tensor, or a CPU copy from an Apple GPU, whose tensors several threads may not copy."""
    return tensor.detach().cpu() if tensor.device.type == "mps" else tensor


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _disk_bytes(tensors: Tensors) -> int:
    """Upper bound of a save on disk.

    The tensors, 1 kB of index for each chunk, and 64 kB of half-filled blocks for each rank.
    """
    total, ranks = 0, 1
    for tensor in tensors.values():
        parts = tensor.device_mesh.size() if isinstance(tensor, DTensor) else 1
        total += tensor.numel() * tensor.element_size() + 1024 * parts
        ranks = max(ranks, parts)
    return total + (ranks << 16)
