"""Loading: a checkpoint into a model and its optimizer, or weights alone."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from forge.config.root import Config
from forge.parallel.owned import copy_owned
from forge.rundir import saved_config
from forge.rundir.checkpoints import WEIGHTS, CheckpointError
from forge.rundir.saved_config import CONFIG
from forge.training import tensor_files
from forge.training.checkpoint import Tensors, one_process, prefixed

log = logging.getLogger(__name__)
Shapes = dict[str, tuple[int, ...]]
ADVICE = "Choose the model it was trained with, or checkpoint.exclude_from_loading"


def config_of(path: Path, *, trust: Sequence[str]) -> Config:
    """The config inside a checkpoint. Raises CheckpointError when it cannot be read, or needs code
    that is not trusted.
    """
    try:
        return saved_config.load(path / CONFIG, trust=trust)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        reason = next(iter(str(error).splitlines()), "no details")
        advice = "" if type(error) is ValueError else "; take another checkpoint"
        raise CheckpointError(
            f"{path / CONFIG} cannot be read ({type(error).__name__}: {reason}){advice}"
        ) from error


def load(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    exclude: tuple[str, ...] = (),
    changed: bool = False,
    with_optimizer_state: bool = True,
    group: dist.ProcessGroup | None = None,
) -> Tensors:
    """Load weights, and the state of an optimizer where one is given, in place; returns the tensors
    of callbacks.

    Parameters whose names begin with a prefix of `exclude` keep what they have, and begin with
    fresh optimizer state; so do, when the model was `changed` on purpose, those that do not fit,
    with a warning that names them. Raises CheckpointError naming the parameters that only one side
    has or that differ in shape, and a prefix that fits no parameter. group: of all ranks, of which
    each may have other parameters.
    """
    with _unreadable(path):
        stored = tensor_files.stored(path / WEIGHTS)
    own = model.state_dict()
    theirs = {
        k.removeprefix("model/"): tuple(v.size) for k, v in stored.items() if k.startswith("model/")
    }
    kept = _kept(path, _shapes(own, group), theirs, exclude, changed) & set(own)
    wanted = prefixed("model", {name: own[name] for name in sorted(kept)})
    rest = (
        ()
        if optimizer is None
        else ("optimizer/", "callbacks/")
        if with_optimizer_state
        else ("callbacks/",)
    )
    for key, what in stored.items():
        if key.startswith(rest) and (
            key.startswith("callbacks/")
            or key.removeprefix("optimizer/").rpartition("/")[0] in kept
        ):
            wanted[key] = _like(own.get(key.removeprefix("optimizer/").rpartition("/")[0]), what)
    _read(path, wanted, group)
    if optimizer is not None and with_optimizer_state:
        with _unreadable(path):
            restore_optimizer(model, optimizer, _below("optimizer/", wanted))
    return _below("callbacks/", wanted)


def load_weights(
    path: Path,
    *,
    model: nn.Module,
    exclude: tuple[str, ...] = (),
    group: dist.ProcessGroup | None = None,
) -> None:
    """Load the weights of a checkpoint or of a .safetensors file. Raises CheckpointError as `load`
    does.
    """
    if path.is_dir():
        load(path, model=model, exclude=exclude, group=group)
        return
    from safetensors import SafetensorError, safe_open

    own = model.state_dict()
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118, it is no dict
            for name in _kept(path, _shapes(own, group), shapes, exclude, changed=False) & set(own):
                copy_owned(own[name], file.get_tensor(name))
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _like(parameter: Tensor | None, what: Any) -> Tensor:
    """Room for a stored tensor: laid out as its parameter is, where it has the parameter's shape."""
    if isinstance(parameter, DTensor) and tuple(what.size) == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=what.properties.dtype, requires_grad=False)
    return torch.empty(what.size, dtype=what.properties.dtype)


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimizer, fresh or used, the state that `optimizer_tensors` took.

    Raises ValueError when the parameters of a group have different kinds of it.
    """
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    indices = {names[p]: index for index, p in enumerate(ordered)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        state.setdefault(indices[name], {})[entry] = value
    start = 0
    for group in optimizer.param_groups:
        kinds = {
            tuple(sorted(state[i]))
            for i in range(start, start + len(group["params"]))
            if i in state
        }
        start += len(group["params"])
        if len(kinds) > 1:
            raise ValueError(
                f"the optimizer state is of several kinds: {' and '.join(map(str, sorted(kinds)))}"
            )
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def _read(path: Path, wanted: Tensors, group: dist.ProcessGroup | None) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load as read_tensors

    one_process()
    with _unreadable(path), tensor_files.causes():
        read_tensors(
            wanted, storage_reader=tensor_files.reader(path / WEIGHTS), process_group=group
        )


def _shapes(own: Tensors, group: dist.ProcessGroup | None) -> Shapes:
    """Names and shapes of the whole model, of which each stage of a pipeline has a part."""
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if group is None:
        return shapes
    of_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, shapes, group=group)
    return {name: shape for each in of_ranks for name, shape in each.items()}


def _kept(
    path: Path, own: Shapes, stored: Shapes, exclude: tuple[str, ...], changed: bool
) -> set[str]:
    """The names to load."""
    _check_prefixes(exclude, own)
    ours = {name: shape for name, shape in own.items() if not name.startswith(exclude)}
    theirs = {name: shape for name, shape in stored.items() if not name.startswith(exclude)}
    faults = {name: "is missing there" for name in ours if name not in theirs}
    faults |= {name: "is missing here" for name in theirs if name not in ours}
    faults |= {
        name: f"is {theirs[name]} there and {shape} here"
        for name, shape in ours.items()
        if name in theirs and theirs[name] != shape
    }
    if faults:
        items = [f"{name} {fault}" for name, fault in faults.items()]
        shown = "; ".join(items[:5]) + (f"; and {len(items) - 5} more" if len(items) > 5 else "")
        if not changed:
            raise CheckpointError(f"{path} does not fit this model: {shown}. {ADVICE}")
        log.warning(
            "the model was changed, so what does not fit begins with its initial value: %s", shown
        )
    return set(ours) - set(faults)


def _check_prefixes(exclude: tuple[str, ...], names: Iterable[str]) -> None:
    names = list(names)
    for prefix in exclude:
        if not any(name.startswith(prefix) for name in names):
            raise CheckpointError(
                f"checkpoint.exclude_from_loading: no parameter of this model begins with {prefix!r}"
            )


def _below(prefix: str, tensors: Tensors) -> Tensors:
    return {
        key.removeprefix(prefix): tensor
        for key, tensor in tensors.items()
        if key.startswith(prefix)
    }


@contextmanager
def _unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = next(iter(str(error).splitlines()), "no details")
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}: {reason}); take another checkpoint"
        ) from error
