"""Checkpoints: written under a temporary name by torch.distributed.checkpoint, committed by a rename."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forge.config import serialize
from forge.config.checkpoint import Checkpoint
from forge.config.root import Config
from forge.data.tokenizer import Tokenizer

FORMAT = 1
META, CONFIG, TOKENIZER, WEIGHTS = "meta.json", "config.yaml", "tokenizer", "weights"
Tensors = dict[str, Tensor]


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded: which, why, and what to do."""


class Checkpointer:
    """Saves to and prunes the checkpoints of one run.

    A checkpoint is `step_N/` with the resolved config, the tokenizer, `meta.json` and the tensors. It exists only once it is
    complete, and `meta.json` is written last. Names inside are those of parameters, never of ranks.
    """

    def __init__(self, folder: Path, section: Checkpoint, config: Config, tokenizer: Tokenizer) -> None:
        self.folder, self.section, self.config, self.tokenizer = folder, section, config, tokenizer
        self._stager: Any = None
        self._pending: Future[Any] | None = None

    def save(self, step: int, *, model: nn.Module, optimizer: torch.optim.Optimizer, meta: dict[str, Any]) -> Path:
        """Write step_N. Asynchronous modes return once the tensors are copied; the rename follows when they are written."""
        from torch.distributed.checkpoint.state_dict_saver import async_save, save

        self.wait()
        target = self.folder / f"step_{step}"
        scratch = self.folder / f".step_{step}.partial"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        serialize.save(self.config, scratch / CONFIG)
        self.tokenizer.save(scratch / TOKENIZER)
        about = json.dumps({"format": FORMAT, "step": step, **meta}, indent=1)
        tensors = {**_prefixed("model", model.state_dict()), **_prefixed("optimizer", optimizer_tensors(model, optimizer))}
        _one_process()
        if self.section.async_mode == "disabled":
            with _causes(target):
                save(tensors, checkpoint_id=scratch / WEIGHTS)
            self._commit(scratch, target, about)
        else:
            response = async_save(tensors, checkpoint_id=scratch / WEIGHTS, async_stager=self._staging())
            future = response if isinstance(response, Future) else response.upload_completion
            self._pending = _then(future, target, lambda: self._commit(scratch, target, about))
        return target

    def wait(self) -> None:
        """Until the save under way, if any, is committed. Raises what made it fail."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and release the staging buffers."""
        try:
            self.wait()
        finally:
            stager, self._stager = self._stager, None
            if stager is not None:
                stager.close()

    def _staging(self) -> Any:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        if self._stager is None:
            pinned = self.section.async_mode == "async_with_pinned_mem"
            self._stager = DefaultStager(
                StagingOptions(use_pinned_memory=pinned, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pinned)
            )
        return self._stager

    def _commit(self, scratch: Path, target: Path, about: str) -> None:
        (scratch / META).write_text(about, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
        keep = self.section.keep_last_n
        for old in complete(self.folder)[:-keep] if keep else []:
            (old / META).unlink()
            shutil.rmtree(old)


def complete(folder: Path) -> list[Path]:
    """The complete checkpoints in a folder, oldest first."""
    found = [
        (int(m[1]), path) for path in folder.glob("step_*") if (m := re.fullmatch(r"step_(\d+)", path.name)) and (path / META).is_file()
    ]
    return [path for _, path in sorted(found)]


def find(path: Path, *, name: str = "") -> Path:
    """The checkpoint that `path` means: itself, or the newest one of a run or of a folder of checkpoints.

    Raises CheckpointError when there is none, its message beginning with `name`.
    """
    if (path / META).is_file():
        return path
    folders = [path]
    if (path / CONFIG).is_file():
        folders.append(path / serialize.load(path / CONFIG).checkpoint.dir)
    for folder in folders:
        found = complete(folder)
        if found:
            return found[-1]
    what = "there is no complete checkpoint" if path.is_dir() else "there is no such directory"
    raise CheckpointError(f"{name}{path}: {what}; give a step_N directory, or a run that has one")


def read_meta(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself. Raises CheckpointError for a format this version cannot read."""
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if meta.get("format") != FORMAT:
        raise CheckpointError(f"{path} has checkpoint format {meta.get('format')}; this version reads format {FORMAT}")
    return meta


def load(path: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, exclude: tuple[str, ...] = ()) -> dict[str, Any]:
    """Load weights, and optimizer state where an optimizer is given, in place; returns the checkpoint's meta.

    Parameters whose names begin with a prefix of `exclude` keep what they have, and begin with fresh optimizer state. Raises
    CheckpointError naming the parameters that only one side has or that differ in shape, and a prefix that fits no parameter.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load as read_tensors

    meta = read_meta(path)
    try:
        stored = FileSystemReader(path / WEIGHTS).read_metadata().state_dict_metadata
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise _unreadable(path, error) from error
    stored = {key: what for key, what in stored.items() if not key.partition("/")[2].startswith(exclude)}
    own = model.state_dict()
    _check_prefixes(exclude, own)
    wanted = _prefixed("model", {name: tensor for name, tensor in own.items() if not name.startswith(exclude)})
    _check_shapes(path, wanted, stored)
    if optimizer is not None:
        for key, what in stored.items():
            if key.startswith("optimizer/") and isinstance(what, TensorStorageMetadata):
                wanted[key] = torch.empty(what.size, dtype=what.properties.dtype)
    try:
        _one_process()
        read_tensors(wanted, checkpoint_id=path / WEIGHTS)
    except CheckpointException as error:
        raise _unreadable(path, _cause(error)) from error
    if optimizer is not None:
        restore_optimizer(model, optimizer, {k.removeprefix("optimizer/"): v for k, v in wanted.items() if k.startswith("optimizer/")})
    return meta


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """Optimizer state by parameter name: 'blocks.0.attention.wq.weight/exp_avg'."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{names[p]}/{key}": value if isinstance(value, Tensor) else torch.tensor(value)
        for p, state in optimizer.state.items()
        for key, value in state.items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimizer, fresh or used, the state that `optimizer_tensors` took."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    indices = {names[p]: index for index, p in enumerate(ordered)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        state.setdefault(indices[name], {})[entry] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _one_process() -> None:
    """torch.distributed.checkpoint works without a process group, and shall not warn each time, in any thread, that there is none."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def _prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}/{name}": tensor for name, tensor in tensors.items()}


def _check_shapes(path: Path, wanted: Tensors, stored: dict[str, Any]) -> None:
    faults = [f"{k.removeprefix('model/')} is missing there" for k in wanted if k not in stored]
    faults += [f"{k.removeprefix('model/')} is missing here" for k in stored if k.startswith("model/") and k not in wanted]
    for key, tensor in wanted.items():
        if key in stored and tuple(stored[key].size) != tuple(tensor.shape):
            faults.append(f"{key.removeprefix('model/')} is {tuple(stored[key].size)} there and {tuple(tensor.shape)} here")
    if faults:
        shown = "; ".join(faults[:5]) + (f"; and {len(faults) - 5} more" if len(faults) > 5 else "")
        raise CheckpointError(
            f"{path} does not fit this model: {shown}. Choose the model it was trained with, or checkpoint.exclude_from_loading"
        )


def _check_prefixes(exclude: tuple[str, ...], names: Iterable[str]) -> None:
    names = list(names)
    for prefix in exclude:
        if not any(name.startswith(prefix) for name in names):
            raise CheckpointError(f"checkpoint.exclude_from_loading: no parameter of this model begins with {prefix!r}")


def _unreadable(path: Path, error: BaseException) -> CheckpointError:
    reason = next(iter(str(error).splitlines()), "no details")
    return CheckpointError(f"{path} cannot be read ({type(error).__name__}: {reason}); take another checkpoint")


@contextmanager
def _causes(target: Path) -> Iterator[None]:
    """Raise what made a save fail: a CheckpointException is no Exception, and would pass by all that reports one."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        cause = _cause(error)
        raise (OSError(f"{target} cannot be written: {cause}") if isinstance(cause, OSError) else cause) from error


def _cause(error: Any) -> BaseException:
    cause, _ = next(iter(error.failures.values()))
    return cause


def _then(future: Future[Any], target: Path, action: Callable[[], None]) -> Future[Any]:
    """A future that is done when `action` is, after `future` has written `target`; it fails when either does."""
    done: Future[Any] = Future()

    def follow(first: Future[Any]) -> None:
        try:
            with _causes(target):
                first.result()
            action()
            done.set_result(None)
        except BaseException as error:
            done.set_exception(error)

    future.add_done_callback(follow)
    return done
