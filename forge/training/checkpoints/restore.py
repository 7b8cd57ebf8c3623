"""Loading: a checkpoint into a model and its optimizer, weights alone, or the model of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import yaml
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from forge.adapters.adapter import adapter_of
from forge.adapters.packed import Packed, packed_in, plain_parameters
from forge.adapters.pissa import leave_rest
from forge.config.adapters.adapter import is_added
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
from forge.parallel.materialize import allocate, check_buffers, fill
from forge.parallel.modules import FORMATS, HALF
from forge.rundir import checkpoints, saved_config
from forge.rundir.checkpoints import TOKENIZER, WEIGHTS, CheckpointError, Damaged, Saved
from forge.rundir.saved_config import CONFIG
from forge.tensors.local import copy_local, cut_dim, local, select
from forge.tensors.masters import exact_state, round_masters, round_weights
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.adapter_base import BASE, located
from forge.training.checkpoints.checkpoint import Tensors, prefixed
from forge.training.checkpoints.damage import checked
from forge.training.checkpoints.merging import Merged
from forge.training.checkpoints.new_rows import fill_tables, tables_with_new_rows
from forge.training.process import set_up

log = logging.getLogger(__name__)
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A model with its weights on its device, and the checkpoint they are from."""

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
) -> Trained:
    """Load the model of a run directory (its newest usable checkpoint) or of a step_N directory.

    Its weights are in the format that they were multiplied in, or in the fp32 that is stored; on a
    CPU and on mps in fp32. trust: prefixes of modules outside of forge that it may be built from.
    device: None = as in the run, or the CPU where there is no GPU. Raises ValueError when there is
    no checkpoint, it does not fit, or needs untrusted code.
    """
    return checkpoints.read_whole(run, partial(_trained, trust=trust, fp32=fp32, device=device))


def _trained(
    found: Saved, *, trust: Sequence[str], fp32: bool, device: torch.device | None
) -> Trained:
    """The model of one checkpoint, see `load_run`."""
    config = config_of(found.path, trust=trust)
    kind = device.type if device is not None else config.run.device
    if device is None and kind != "cpu" and not torch.get_device_module(kind).is_available():
        kind = "cpu"
    if kind == "mps" or (kind, config.run.device) == ("cpu", "cuda"):
        precision = replace(config.precision, mixed_precision="fp32", residual_dtype="fp32")
        config = replace(config, precision=precision)
    config = replace(config, run=replace(config.run, device=kind))
    own = set_up(config)
    device = device if device is not None and device.index is not None else own
    adapter = adapter_of(config)
    with torch.device("meta"):
        model = make_model(config.model, trust)
        adapter.inject(model)
        adapter.pack(model, HALF.get(config.precision.mixed_precision, torch.float32))
    adapter.activate(model)
    allocate(model, device)
    model.reset_buffers()
    load(found.path, model=model, trust=trust)
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
        tokenizer=tokenizer_of(found.path),
        device=device,
        path=found.path,
        step=found.meta["step"],
    )


def config_of(path: Path, *, trust: Sequence[str]) -> Config:
    """The config inside a checkpoint. Raises CheckpointError, also for code that is not trusted."""
    with _readable(path / CONFIG, AttributeError):
        return saved_config.load(path / CONFIG, trust=trust)


def tokenizer_of(path: Path) -> Tokenizer:
    """The tokenizer inside a checkpoint. Raises CheckpointError."""
    with _readable(path / TOKENIZER, Exception):  # of the tokenizers library
        return Tokenizer.load(path / TOKENIZER)


def load(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    exclude: tuple[str, ...] = (),
    changed: bool = False,
    with_optimizer_state: bool = True,
    adapters: bool = True,
    init_from: str | None = None,
    trust: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
) -> Tensors:
    """Load weights, and the state of an optimizer where one is given, in place; returns the tensors
    of callbacks. adapters: load these too, and their base, which may be in `init_from` by now; else
    they keep what they have.

    Parameters whose names begin with a prefix of `exclude` keep what they have, without optimizer
    state; so do, when the model was `changed` on purpose, those that do not fit, with a warning.
    Raises CheckpointError naming the parameters that only one side has or that differ in shape, and
    a prefix that fits no parameter, and Damaged, on all ranks of the group. trust: as of
    `config_of`, for a base. group: of all ranks; each may have other parameters.
    """
    with _readable(path), checked(path, group):
        stored = tensor_storage.stored(path / WEIGHTS)
    theirs = {name: tuple(what.size) for name, what in _below("model/", stored).items()}
    own, packed = _state(model, theirs, adapters=adapters)
    base = Saved(path).meta.get(BASE) if adapters else None
    if base is not None:
        _load_base(base, path, init_from, model, trust, group)
        own = {name: values for name, values in own.items() if name in theirs or is_added(name)}
        packed = []
    shapes = _shapes(own, packed, group)
    kept = _kept(path, shapes, theirs, exclude, changed)
    wanted = prefixed("model", {name: own[name] for name in sorted(kept & set(own))})
    if optimizer is not None:
        for key, what in _below("callbacks/", stored).items():
            wanted[f"callbacks/{key}"] = _like(None, what)
        for key, what in _below("optimizer/", stored).items():
            name, _, entry = key.rpartition("/")
            if with_optimizer_state and name in kept and name in own:
                wanted[f"optimizer/{key}"] = _like(own[name], what, in_parts="." in entry)
    with _readable(path):
        with checked(path, group):
            tensor_storage.load(wanted, path / WEIGHTS, group=group)
            for one in packed:
                if one.name in kept:
                    _pack(one, path / WEIGHTS, stored[f"model/{one.name}"])
        if base is not None:
            leave_rest(model)
        round_masters(model)
        if optimizer is not None and with_optimizer_state:
            restore_optimizer(model, optimizer, _below("optimizer/", wanted))
    return _below("callbacks/", wanted)


def load_weights(
    path: Path,
    *,
    model: nn.Module,
    section: Model,
    exclude: tuple[str, ...] = (),
    trust: Sequence[str] = (),
    group: dist.ProcessGroup | None = None,
) -> None:
    """Load the weights of a checkpoint, a .safetensors file or a Hugging Face folder, see `load`;
    adapters that it has are merged, and those of the model keep what they have.

    section: that the model was built with, whose new rows of vocabulary begin as means.
    """
    specs = list(section.tensors())
    if is_folder(path):
        assert isinstance(section, DecoderConfig), path
        try:
            own = _state(model, (), adapters=False)[0]
            load_folder(path, section, own, exclude, packed_in(model))
        except ValueError as error:
            raise CheckpointError(str(error)) from error
    elif path.is_dir() and BASE in Saved(path).meta:
        with checked(path, group):
            found = Merged(path, config_of(path, trust=trust))
            read, shapes = widening(found.__getitem__, specs), with_new_rows(specs, found.shapes())
            _fill(path, model, read, shapes, exclude, group)
    elif path.is_dir():
        tables = tables_with_new_rows(path, specs, exclude, group)
        apart = (*exclude, *(one.name for one in tables))
        load(path, model=model, exclude=apart, adapters=False, group=group)
        if tables:
            fill_tables(path, config_of(path, trust=trust), model, tables, group)
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
    """Load what the adapters of a checkpoint stand beside."""
    config = config_of(path, trust=trust)
    place = located(base, path, init_from)
    exclude = tuple(config.checkpoint.exclude_from_loading)
    if place is None or exclude:
        fill(model, config.seed)
    if place is not None:
        more = {"exclude": exclude, "trust": trust, "group": group}
        load_weights(place, model=model, section=config.model, **more)


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
    whole: Callable[[str], Tensor],
    shapes: Shapes,
    exclude: tuple[str, ...],
    group: dist.ProcessGroup | None,
) -> None:
    """Give a model the weights that a path has, one whole tensor at a time."""
    own, packed = _state(model, shapes, adapters=False)
    kept = _kept(path, _shapes(own, packed, group), shapes, exclude, changed=False)
    for name in kept & set(own):
        copy_local(own[name], whole(name))
    for one in packed:
        if one.name in kept:
            one.fill(partial(select, whole(one.name)))


def _like(parameter: Tensor | None, what: Any, *, in_parts: bool = False) -> Tensor:
    """Room for a stored tensor, laid out as its parameter is where the shapes are equal.

    in_parts: it is a part of such a tensor, as 'exp_avg.codes' is of exp_avg: with rows of another
    length, which are whole here.
    """
    dtype, shape = what.properties.dtype, tuple(what.size)
    if not isinstance(parameter, DTensor):
        return torch.empty(shape, dtype=dtype)
    if shape == tuple(parameter.shape):
        return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
    if not in_parts:
        return torch.empty(shape, dtype=dtype)
    return _whole_rows(parameter, shape, dtype)


def _whole_rows(parameter: DTensor, shape: tuple[int, ...], dtype: torch.dtype) -> DTensor:
    """Room on the CPU for rows of another length, of which a rank has those that it has of a
    parameter.
    """
    last = parameter.ndim - 1
    places = [Replicate() if cut_dim(one) == last else one for one in parameter.placements]
    part = torch.empty(*parameter.to_local().shape[:-1], shape[-1], dtype=dtype)
    stride, mesh = torch.empty(shape, device="meta").stride(), parameter.device_mesh
    size = torch.Size(shape)
    return DTensor.from_local(part, mesh, places, run_check=False, shape=size, stride=stride)


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimizer the state that `optimizer_tensors` took."""
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
    model: nn.Module, theirs: Collection[str], *, adapters: bool
) -> tuple[Tensors, list[Packed]]:
    """What is loaded as it is, with what adapters add or without, and what is made of weights that
    are whole there.
    """
    packed = [one for one in packed_in(model) if one.names[0] not in theirs]
    parts = {name for one in packed for name in one.names}
    state = exact_state(model)
    left = {name for name in state if is_added(name) and not adapters} | parts
    return {name: values for name, values in state.items() if name not in left}, packed


def _pack(one: Packed, folder: Path, what: Any) -> None:
    """Fill what is packed from a checkpoint, of which this rank reads its own rows."""
    codes = one.parameters()["codes"]
    shape, dtype = tuple(what.size), what.properties.dtype
    room = _whole_rows(codes, shape, dtype) if isinstance(codes, DTensor) else None
    room = torch.empty(shape, dtype=dtype) if room is None else room
    tensor_storage.load({f"model/{one.name}": room}, folder, alone=True)
    one.fill(one.rows_of(local(room)))


def _shapes(own: Tensors, packed: list[Packed], group: dist.ProcessGroup | None) -> Shapes:
    """Names and shapes of the whole model, of which each stage of a pipeline has a part."""
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    shapes |= {one.name: one.shape for one in packed}
    if group is None:
        return shapes
    of_ranks: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(of_ranks, shapes, group=group)
    return {name: shape for each in of_ranks for name, shape in each.items()}


def _kept(
    path: Path, own: Shapes, stored: Shapes, exclude: tuple[str, ...], changed: bool
) -> set[str]:
    for prefix in exclude:
        if not any(name.startswith(prefix) for name in own):
            what = f"no parameter of this model begins with {prefix!r}"
            raise CheckpointError(f"checkpoint.exclude_from_loading: {what}")
    ours = {name: shape for name, shape in own.items() if not name.startswith(exclude)}
    theirs = {name: shape for name, shape in stored.items() if not name.startswith(exclude)}
    faults = misfits(ours, theirs)
    if faults:
        shown = listed(list(faults.values()))
        if not changed:
            fix = "Choose the model it was trained with, or checkpoint.exclude_from_loading"
            raise CheckpointError(f"{path} does not fit this model: {shown}. {fix}")
        what = "the model was changed, so what does not fit begins with its initial value: %s"
        log.warning(what, shown)
    return set(ours) - set(faults)


def _below(prefix: str, items: dict[str, Any]) -> dict[str, Any]:
    return {k.removeprefix(prefix): item for k, item in items.items() if k.startswith(prefix)}


@contextmanager
def _readable(path: Path, *kinds: type[Exception]) -> Iterator[None]:
    """What is wrong with a file becomes a CheckpointError in one line."""
    try:
        yield
    except Damaged:
        raise
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, *kinds) as error:
        reason = next(iter(str(error).splitlines()), "no details")
        what = f"{path} cannot be read ({type(error).__name__}: {reason})"
        # A config that names code which is not trusted says itself what to do.
        fix = (
            "" if path.name == CONFIG and type(error) is ValueError else "; take another checkpoint"
        )
        raise CheckpointError(f"{what}{fix}") from error
