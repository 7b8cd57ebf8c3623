"""Checkpoints: written under a temporary name by torch.distributed.checkpoint, committed by a
rename when they are durable.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forge.config.checkpoint import Checkpoint
from forge.config.eval import better
from forge.config.numbers import byte_size
from forge.config.root import Config
from forge.data.tokenizer import Tokenizer
from forge.parallel.ranks import Ranks
from forge.rundir import checkpoints, saved_config
from forge.rundir.checkpoints import FORMAT, META, TOKENIZER, WEIGHTS, Saved
from forge.rundir.files import write_json
from forge.rundir.provenance import now, versions
from forge.rundir.saved_config import CONFIG
from forge.training import tensor_files
from forge.training.staging import Copies, Staging

log = logging.getLogger(__name__)
Tensors = dict[str, Tensor]
PARTIAL, REMOVED, UNDONE = "partial", "removed", "undone"


class Checkpointer:
    """Saves to and prunes the checkpoints of one run.

    A checkpoint is `step_N/` with the resolved config, the tokenizer, the tensors and `meta.json`,
    which is written last and names every file with its size. It is written as `.step_N.partial` and
    gets its name when all of it is on the disk. Names inside are those of parameters, never of
    ranks.

    before_commit: called with the temporary directory when all is written, in the thread that
    writes; for tests of what a kill leaves behind.
    """

    def __init__(
        self,
        folder: Path,
        section: Checkpoint,
        config: Config,
        tokenizer: Tokenizer,
        run_id: str,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.folder, self.section, self.config, self.tokenizer, self.run_id = (
            folder,
            section,
            config,
            tokenizer,
            run_id,
        )
        self.before_commit: list[Callable[[Path], None]] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._staging: Staging | None = None
        self._copies: Copies | None = None
        self._pending: list[Future[None]] = []
        self._committed: list[Path] = []

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
        """Write step_N; asynchronously: copy the tensors while training goes on, and write them
        then. See `wait_to_write`.

        extra: further tensors by name, the state of callbacks. weights_only: neither these nor the
        optimizer's state. Raises OSError, with what to do, when it cannot be written.
        """
        self.wait()
        target, scratch = self.folder / f"step_{step}", self.folder / f".step_{step}.{PARTIAL}"
        tensors = prefixed("model", model.state_dict())
        if not weights_only:
            tensors |= {**prefixed("optimizer", optimizer_tensors(model, optimizer)), **extra}
        about = {
            "format": FORMAT,
            "step": step,
            "time": now(),
            "run_id": self.run_id,
            "versions": versions(),
        }
        about |= {"weights_only": weights_only, **meta}
        one_process()
        fault = self.ranks.from_main(
            self._prepare(scratch, tensor_files.size(tensors)) if self.ranks.main else None
        )
        if fault is not None:
            raise self._failed(target, scratch, fault) from fault
        if self.section.async_mode == "disabled":
            self._write(tensors, scratch, target, about)
            self.ranks.barrier()
            return
        self._staging = self._staging or Staging(
            pinned=self.section.async_mode == "async_with_pinned_mem"
        )
        copies = self._copies = self._staging.copy(tensors)
        self._pending.append(
            self._thread.submit(self._write, tensors, scratch, target, about, copies)
        )

    def wait_to_write(self) -> None:
        """Call before weights, optimizer state or state of callbacks change: an asynchronous save
        may still be copying them.
        """
        if self._copies is not None:
            self._copies.wait_to_write()
            self._copies = None

    def wait(self) -> None:
        """Until the save under way, if any, is committed, and what it replaces is removed. Raises
        what made it fail.
        """
        self._copies = None
        while self._pending:
            self._pending.pop(0).result()

    def committed(self) -> list[Path]:
        """What was committed since this was last asked. Raises what made an asynchronous save fail."""
        if all(one.done() for one in self._pending):
            self.wait()
        done, self._committed = self._committed, []
        return done

    def evaluated(self, step: int, metrics: dict[str, Any]) -> None:
        """Add the metrics of an evaluation to the checkpoint of the step it was made at, where that
        was saved before it.
        """
        path = self.folder / f"step_{step}"
        if self.ranks.main and self.has(step):
            write_json(path / META, Saved(path).meta | {"metrics": metrics})
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
        """Remove what a process that was killed left half written or half removed."""
        for name in (PARTIAL, REMOVED):
            for path in self.folder.glob(f".step_*.{name}"):
                log.info("%s is left from a process that was killed, and is removed", path)
                shutil.rmtree(path, ignore_errors=True)

    def set_aside(self, after: int) -> list[Path]:
        """Rename the checkpoints of later steps than `after`, so that the run goes on from there;
        returns their new names.
        """
        moved = []
        for one in checkpoints.listed(self.folder):
            if one.step > after:
                target = one.path.with_name(f"{one.path.name}.{UNDONE}")
                while target.exists():
                    target = target.with_name(f"{target.name}.{UNDONE}")
                one.path.rename(target)
                moved.append(target)
        return moved

    def has(self, step: int) -> bool:
        """Whether the run has saved this step."""
        return Saved(self.folder / f"step_{step}").fault(self.run_id) is None

    def is_best(self, value: float) -> bool:
        """Whether a checkpoint with this value of eval.metric would be among the best to keep."""
        count, metric = self.section.keep_best, self.config.eval.metric
        if not count or not math.isfinite(value):
            return False
        best = [
            one.meta["metrics"][metric] for one in checkpoints.best(self._usable(), metric, count)
        ]
        return len(best) < count or any(better(metric, value, other) for other in best)

    def _usable(self) -> list[Saved]:
        return [one for one in checkpoints.listed(self.folder) if one.fault(self.run_id) is None]

    def _write(
        self,
        tensors: Tensors,
        scratch: Path,
        target: Path,
        about: dict[str, Any],
        copies: Copies | None = None,
    ) -> None:
        """Write what `_prepare` made room for, from copies where there are any; in the thread that
        saves, or in that of the loop.
        """
        from torch.distributed.checkpoint.state_dict_saver import save

        planner = tensor_files.planner(copies.result()) if copies is not None else None
        try:
            with tensor_files.causes():
                save(
                    tensors,
                    storage_writer=tensor_files.writer(scratch / WEIGHTS),
                    planner=planner,
                    process_group=self.ranks.saver,
                )
            self._commit(scratch, target, about)
        except OSError as error:
            raise self._failed(target, scratch, error) from error

    def _check_space(self, needed: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise OSError(
                errno.ENOSPC, f"it needs {byte_size(needed)}, and {byte_size(free)} are free"
            )

    def _prepare(self, scratch: Path, needed: int) -> OSError | None:
        """Make the temporary directory with all but the tensors; returns what was in the way."""
        try:
            shutil.rmtree(scratch, ignore_errors=True)
            self._check_space(needed)
            scratch.mkdir(parents=True)
            saved_config.save(self.config, scratch / CONFIG)
            self.tokenizer.save(scratch / TOKENIZER)
        except OSError as error:
            return error
        return None

    def _commit(self, scratch: Path, target: Path, about: dict[str, Any]) -> None:
        if not self.ranks.main:
            return
        for hook in self.before_commit:
            hook(scratch)
        for path in scratch.rglob("*"):
            _sync(path)
        (scratch / META).write_text(
            json.dumps({**about, "files": checkpoints.file_sizes(scratch)}, indent=1),
            encoding="utf-8",
        )
        _sync(scratch / META)
        _sync(scratch)
        if target.exists():
            self._remove(target)
        scratch.rename(target)
        _sync(self.folder)
        self._committed.append(target)
        self._prune()

    def _prune(self) -> None:
        if not self.section.keep_last_n:
            return
        usable = self._usable()
        kept = [
            *usable[-self.section.keep_last_n :],
            *checkpoints.best(usable, self.config.eval.metric, self.section.keep_best),
        ]
        for one in usable:
            if one not in kept:
                self._remove(one.path)

    def _remove(self, path: Path) -> None:
        """Under another name at once: what a kill leaves of it is no checkpoint. Its files go while
        training goes on.
        """
        scratch = path.with_name(f".{path.name}.{REMOVED}")
        shutil.rmtree(scratch, ignore_errors=True)
        path.rename(scratch)
        self._pending.append(self._thread.submit(shutil.rmtree, scratch, ignore_errors=True))

    def _failed(self, target: Path, scratch: Path, error: OSError) -> OSError:
        shutil.rmtree(scratch, ignore_errors=True)
        last, _ = checkpoints.newest_usable(self.folder, self.run_id)
        kept = (
            f"the checkpoint of step {last.step} is whole"
            if last
            else "there is no earlier checkpoint"
        )
        reason = error.strerror or next(iter(str(error).splitlines()), type(error).__name__)
        return OSError(
            f"{target} cannot be written: {reason}. Make room or give access, then go on with this run; {kept}"
        )


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Optimizer state by parameter name: 'blocks.0.attention.wq.weight/exp_avg'."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for p, state in optimizer.state.items()
        for key, value in state.items()
    }


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors under names that begin with prefix/."""
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def one_process() -> None:
    """torch.distributed.checkpoint works without a process group, and shall not warn each time, in
    any thread, that there is none.
    """
    warnings.filterwarnings(
        "ignore", message="torch.distributed is disabled, unavailable or uninitialized"
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
