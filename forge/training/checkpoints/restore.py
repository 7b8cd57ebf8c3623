"""Loading: a checkpoint into a model and its optimizer, weights alone, or the model of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn

from forge.adapters.adapter import adapter_of
from forge.adapters.packed import Packed, packed_in, plain_parameters
from forge.adapters.pissa import leave_rest
from forge.config.adapters.adapter import VALUE_HEAD, is_added
from forge.config.eval import EMA, TRAINED
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.layer import Model
from forge.config.model.tensors import TensorSpec, misfits, with_new_rows
from forge.config.problems import listed
from forge.config.root import Config
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families.folder import is_folder
from forge.hf.new_rows import widening
from forge.hf.read import load_folder
from forge.models.decoder import Decoder
from forge.models.plain import make_model
from forge.parallel.materialize import allocate, check_buffers, fill_weights
from forge.parallel.modules import FORMATS, HALF
from forge.rundir import checkpoints, saved_config
from forge.rundir.checkpoints import TOKENIZER, WEIGHTS, CheckpointError, Damaged, Saved
from forge.rundir.saved_config import CONFIG
from forge.tensors.local import copy_local, select
from forge.tensors.masters import exact_state, round_masters, round_weights
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.adapter_base import BASE, located
from forge.training.checkpoints.callback_state import BY_PARAMETER
from forge.training.checkpoints.checkpoint import Tensors, prefixed
from forge.training.checkpoints.damage import share_damage
from forge.training.checkpoints.merging import Merged, load_mean
from forge.training.checkpoints.new_rows import fill_tables, tables_with_new_rows
from forge.training.checkpoints.replicas import Replicas
from forge.training.checkpoints.room import allocate_for, fill_packed
from forge.training.process import set_up

log = logging.getLogger(__name__)
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A model with weights on its device, and the checkpoint of these weights."""

    config: Config
    model: nn.Module
    tokenizer: Tokenizer
    device: torch.device
    path: Path
    step: int


def load_run(
    run: Path,
    *,
    trust: Sequence[str] = (),
    fp32: bool = False,
    device: torch.device | None = None,
    weights: str = TRAINED,
) -> Trained:
    """Load the model of a run directory (its newest usable checkpoint) or of a step_N directory.

    Weights get the format of the run's products, or the stored fp32; on a CPU and mps always fp32.
    trust: prefixes of modules outside of forge. device: None = as in the run, or the CPU without a
    GPU. weights: trained or ema. ValueError: no checkpoint or mean, a misfit, untrusted code.
    """
    options = {"trust": trust, "fp32": fp32, "device": device, "weights": weights}
    return checkpoints.read_checkpoint(run, partial(_trained, **options))


def _trained(
    checkpoint: Saved,
    *,
    trust: Sequence[str],
    fp32: bool,
    device: torch.device | None,
    weights: str,
) -> Trained:
    """Build and fill the model of one checkpoint, see `load_run`."""
    config = read_checkpoint_config(checkpoint.path, trust=trust)
    kind = device.type if device is not None else config.run.device
    if device is None and kind != "cpu" and not torch.get_device_module(kind).is_available():
        kind = "cpu"
    if kind == "mps" or (kind, config.run.device) == ("cpu", "cuda"):
        precision = replace(config.precision, mixed_precision="fp32", residual_dtype="fp32")
        config = replace(config, precision=precision)
    config = replace(config, run=replace(config.run, device=kind))
    run_device = set_up(config)
    device = device if device is not None and device.index is not None else run_device
    adapter = adapter_of(config)
    with torch.device("meta"):
        model = make_model(config.model, trust)
        adapter.inject(model)
        adapter.pack(model, HALF.get(config.precision.mixed_precision, torch.float32))
    adapter.activate(model)
    allocate(model, device)
    model.reset_buffers()
    load_checkpoint(checkpoint.path, model=model, trust=trust)
    if weights == EMA:
        load_mean(checkpoint.path, model)
    check_buffers(model)
    if not fp32:
        round_weights(plain_parameters(model), FORMATS[config.precision.param_dtype])
    dtype = None if fp32 else HALF.get(config.precision.mixed_precision)
    if dtype is not None:
        for parameter in plain_parameters(model):
            parameter.data = parameter.to(dtype)
        if isinstance(model, Decoder):
            model.residual_dtype = FORMATS[config.precision.residual_dtype]
    return Trained(
        config=config,
        model=model.eval(),
        tokenizer=tokenizer_of(checkpoint.path),
        device=device,
        path=checkpoint.path,
        step=checkpoint.meta["step"],
    )


def read_checkpoint_config(path: Path, *, trust: Sequence[str]) -> Config:
    """Read the config inside a checkpoint. Raises CheckpointError, also for untrusted code."""
    with _readable(path / CONFIG, AttributeError):
        return saved_config.load_config(path / CONFIG, trust=trust)


def tokenizer_of(path: Path) -> Tokenizer:
    """Read the tokenizer inside a checkpoint. Raises CheckpointError."""
    with _readable(path / TOKENIZER, Exception):  # of the tokenizers library
        return Tokenizer.load(path / TOKENIZER)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The part of a checkpoint to load.

    Parameters with a prefix of `exclude` keep their values, without optimizer state; so do misfits
    of a model `changed` on purpose, with a warning. adapters: with adapters, and their base; else
    adapters keep their values.
    """

    exclude: tuple[str, ...] = ()
    changed: bool = False
    optimizer_state: bool = True
    adapters: bool = True


def load_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    part: Part | None = None,
    init_from: str | None = None,
    trust: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
    replicas: Replicas | None = None,
) -> Tensors:
    """Load weights, and the state of a given optimizer, in place; returns the callbacks' tensors.

    part: null = all; a stored value head goes to models with one. init_from: present path of the
    adapters' base. trust: for a base. group: of all ranks; parameters may differ by rank. replicas:
    as in `load_tensors`. Raises CheckpointError naming parameters of one side only or of different
    shape, and an unused prefix, and Damaged, on all ranks of the group.
    """
    part = part or Part()
    with _readable(path), share_damage(path, group):
        stored = tensor_storage.stored_metadata(path / WEIGHTS)
    stored_shapes = {name: tuple(meta.size) for name, meta in _below("model/", stored).items()}
    state, packed = _state(model, stored_shapes, adapters=part.adapters)
    if VALUE_HEAD not in state:
        stored_shapes.pop(VALUE_HEAD, None)
    base = Saved(path).meta.get(BASE) if part.adapters else None
    if base is not None:
        _load_base(base, path, init_from, model, trust, group)
        state = {k: v for k, v in state.items() if k in stored_shapes or is_added(k)}
        packed = []
    shapes = _shapes(state, packed, group)
    fitting = _kept(path, shapes, stored_shapes, part.exclude, part.changed)
    targets = prefixed("model", {name: state[name] for name in sorted(fitting & set(state))})
    if optimizer is not None:
        targets |= _further_targets(stored, state, fitting, part.optimizer_state)
    with _readable(path):
        with share_damage(path, group):
            tensor_storage.load_tensors(targets, path / WEIGHTS, group=group, replicas=replicas)
            for matrix in packed:
                if matrix.name in fitting:
                    fill_packed(matrix, path / WEIGHTS, stored[f"model/{matrix.name}"])
        if base is not None:
            leave_rest(model)
        round_masters(model)
        if optimizer is not None and part.optimizer_state:
            restore_optimizer(model, optimizer, _below("optimizer/", targets))
    by_parameter = {k: v for k, v in targets.items() if k.startswith(f"{BY_PARAMETER}/")}
    return _below("callbacks/", targets) | by_parameter


def _further_targets(
    stored: Mapping[str, Any], state: Tensors, fitting: Collection[str], optimizer_state: bool
) -> Tensors:
    """Allocate the stored tensors of callbacks and of the optimizer, laid out as parameters are."""
    targets: Tensors = {}
    for key, meta in _below("callbacks/", stored).items():
        targets[f"callbacks/{key}"] = allocate_for(None, meta)
    for key, meta in _below(f"{BY_PARAMETER}/", stored).items():
        name = key.partition("/")[2]
        if name in fitting and name in state:
            targets[f"{BY_PARAMETER}/{key}"] = allocate_for(state[name], meta)
    for key, meta in _below("optimizer/", stored).items():
        name, _, entry = key.rpartition("/")
        if optimizer_state and name in fitting and name in state:
            targets[f"optimizer/{key}"] = allocate_for(state[name], meta, in_parts="." in entry)
    return targets


def load_weights(
    path: Path,
    *,
    model: nn.Module,
    section: Model,
    exclude: tuple[str, ...] = (),
    trust: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
    replicas: Replicas | None = None,
) -> None:
    """Load weights of a checkpoint, .safetensors file or Hugging Face folder (`load_checkpoint`).

    Stored adapters are merged; the model's adapters keep their values. section: the model's config,
    whose new rows of vocabulary begin as means.
    """
    specs = list(section.tensors())
    if is_folder(path):
        assert isinstance(section, DecoderConfig), path
        try:
            state = _state(model, (), adapters=False)[0]
            load_folder(path, section, state, exclude, packed_in(model))
        except ValueError as error:
            raise CheckpointError(str(error)) from error
    elif path.is_dir() and BASE in Saved(path).meta:
        with share_damage(path, group):
            source = Merged(path, read_checkpoint_config(path, trust=trust))
            shapes = with_new_rows(specs, source.shapes())
            read = widening(source.__getitem__, specs)
            _fill(path, model, read, shapes, exclude, group)
    elif path.is_dir():
        tables = tables_with_new_rows(path, specs, exclude, group)
        apart = (*exclude, *(table.name for table in tables))
        of_ranks = {"group": group, "replicas": replicas}
        load_checkpoint(path, model=model, part=Part(exclude=apart, adapters=False), **of_ranks)
        if tables:
            fill_tables(path, read_checkpoint_config(path, trust=trust), model, tables, group)
    else:
        _load_file(path, model, specs, exclude, group)
    round_masters(model)


def _load_base(
    base: dict[str, Any],
    path: Path,
    init_from: str | None,
    model: nn.Module,
    trust: Sequence[str],
    group: dist.ProcessGroup | None,
) -> None:
    """Load the base weights of a checkpoint's adapters."""
    config = read_checkpoint_config(path, trust=trust)
    base_path = located(base, path, init_from)
    exclude = tuple(config.checkpoint.exclude_from_loading)
    if base_path is None or exclude:
        fill_weights(model, config.seed)
    if base_path is not None:
        options = {"exclude": exclude, "trust": trust, "group": group}
        load_weights(base_path, model=model, section=config.model, **options)


def _load_file(
    path: Path,
    model: nn.Module,
    specs: Sequence[TensorSpec],
    exclude: tuple[str, ...],
    group: dist.ProcessGroup | None,
) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
            read, shapes = widening(file.get_tensor, specs), with_new_rows(specs, shapes)
            _fill(path, model, read, shapes, exclude, group)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read as safetensors: {error}") from error


def _fill(
    path: Path,
    model: nn.Module,
    read: Callable[[str], Tensor],
    shapes: Shapes,
    exclude: tuple[str, ...],
    group: dist.ProcessGroup | None,
) -> None:
    """Give a model the weights of a path, one whole tensor at a time."""
    state, packed = _state(model, shapes, adapters=False)
    fitting = _kept(path, _shapes(state, packed, group), shapes, exclude, changed=False)
    for name in fitting & set(state):
        copy_local(state[name], read(name))
    for matrix in packed:
        if matrix.name in fitting:
            matrix.fill(partial(select, read(matrix.name)))


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimizer the state taken by `optimizer_tensors`."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    ordered = (names[p] for group in optimizer.param_groups for p in group["params"])
    numbers = {name: number for number, name in enumerate(ordered)}
    state: dict[int, Tensors] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        if name in numbers:
            state.setdefault(numbers[name], {})[entry] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def _state(
    model: nn.Module, stored_names: Collection[str], *, adapters: bool
) -> tuple[Tensors, list[Packed]]:
    """Split a model into tensors loaded as stored, and packed matrices stored whole.
    adapters: with the tensors added by adapters.
    """
    packed = [matrix for matrix in packed_in(model) if matrix.names[0] not in stored_names]
    parts = {name for matrix in packed for name in matrix.names}
    state = exact_state(model)
    excluded = {name for name in state if is_added(name) and not adapters} | parts
    return {name: values for name, values in state.items() if name not in excluded}, packed


def _shapes(tensors: Tensors, packed: list[Packed], group: dist.ProcessGroup | None) -> Shapes:
    """Gather names and shapes of the whole model from all stages of a pipeline."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shapes |= {matrix.name: matrix.shape for matrix in packed}
    if group is None:
        return shapes
    of_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, shapes, group=group)
    return {name: shape for rank_shapes in of_ranks for name, shape in rank_shapes.items()}


def _kept(
    path: Path, model_shapes: Shapes, stored: Shapes, exclude: tuple[str, ...], changed: bool
) -> set[str]:
    for prefix in exclude:
        if not any(name.startswith(prefix) for name in model_shapes):
            message = f"no parameter of this model begins with {prefix!r}"
            raise CheckpointError(f"checkpoint.exclude_from_loading: {message}")
    ours = {name: shape for name, shape in model_shapes.items() if not name.startswith(exclude)}
    saved = {name: shape for name, shape in stored.items() if not name.startswith(exclude)}
    if faults := misfits(ours, saved):
        shown = listed(list(faults.values()))
        if not changed:
            hint = "Choose the model it was trained with, or checkpoint.exclude_from_loading"
            raise CheckpointError(f"{path} does not fit this model: {shown}. {hint}")
        message = "the model was changed, so what does not fit begins with its initial value: %s"
        log.warning(message, shown)
    return set(ours) - set(faults)


def _below(prefix: str, items: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): item for k, item in items.items() if k.startswith(prefix)}


@contextmanager
def _readable(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """Turn the fault of a file into a CheckpointError in one line."""
    try:
        yield
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, *kinds) as error:
        reason = next(iter(str(error).splitlines()), "no details")
        message = f"{path} cannot be read ({type(error).__name__}: {reason})"
        # The message about untrusted code in a config already says what to do.
        untrusted = path.name == CONFIG and type(error) is ValueError
        raise CheckpointError(message + "; take another checkpoint" * (not untrusted)) from error
