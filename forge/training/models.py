"""The models of a run: the trained model, and the frozen models of its objective."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from forge.adapters.adapter import adapter_of, adapters_off
from forge.adapters.packed import plain_parameters
from forge.build import build
from forge.config.adapters.adapter import NoAdapter
from forge.config.eval import EMA
from forge.config.model.layer import Model
from forge.config.parallel import Parallel
from forge.config.rollouts.rollout import SampledRollout
from forge.config.root import Config
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.families.folder import is_folder, read_folder
from forge.families.shards import FolderError
from forge.models.plain import make_model
from forge.objectives.grpo import GRPO
from forge.objectives.objective import Objective
from forge.objectives.value_head import add_value_head
from forge.optim.groups import freeze
from forge.parallel.apply import apply
from forge.parallel.fsdp_private import store_gradients
from forge.parallel.mesh import make_mesh
from forge.parallel.modules import FORMATS, HALF
from forge.parallel.ranks import Ranks
from forge.resolve.rules.degrees import tp_divides
from forge.rundir import checkpoints
from forge.rundir.checkpoints import CheckpointError, Saved
from forge.tensors.masters import round_weights
from forge.training.checkpoints import merging, restore
from forge.training.checkpoints.restore import Trained
from forge.training.shared_model import SharedModel


def build_model(
    config: Config,
    device: torch.device,
    ranks: Ranks,
    dtype: torch.dtype = torch.float32,
    *,
    filled: bool = True,
    trained: bool = False,
    stored: torch.dtype | None = None,
) -> nn.Module:
    """Build the model, laid out over the ranks.

    filled: with its initial weights. trained: in the formats of `precision`. stored: the format of
    parameters otherwise; None = dtype.
    """
    stored_dtype = FORMATS[config.precision.param_dtype] if trained else stored or dtype
    adapter = adapter_of(config)

    def make() -> nn.Module:
        model = make_model(config.model, config.run.trust)
        adapter.inject(model)
        add_value_head(model, config.objective.added(config.model))
        freeze(model, config)
        model = model.to(dtype)
        # Buffers stay in `dtype`; only parameters take the stored format.
        for parameter in model.parameters() if stored_dtype != dtype else ():
            parameter.data = parameter.data.to(stored_dtype)
        adapter.pack(model, HALF.get(config.precision.mixed_precision, dtype))
        return model

    masters = trained and bool(config.precision.master_weights)
    model = apply(make, config, ranks.mesh, device, adapter=adapter, filled=filled, masters=masters)
    if trained and config.precision.gradients_in_bf16:
        store_gradients(model, torch.bfloat16)
    if filled:
        adapter.begin(model)
    return model


def load_on_ranks(path: Path, config: Config, ranks: Ranks, device: torch.device) -> Trained:
    """Load the model of a checkpoint, laid out over the ranks, in the format of its products.

    config: of its run, with the layout to read it on. Raises CheckpointError.
    """
    dtype = HALF.get(config.precision.mixed_precision, torch.float32)
    model = build_model(config, device, ranks, dtype, filled=False)
    restore.load_checkpoint(path, model=model, trust=config.run.trust, group=ranks.saver)
    if config.eval.weights == EMA:
        merging.load_mean(path, model, ranks.saver)
    round_weights(plain_parameters(model), FORMATS[config.precision.param_dtype])
    return Trained(
        config=config,
        model=model.eval(),
        tokenizer=restore.tokenizer_of(path),
        device=device,
        path=path,
        step=Saved(path).meta["step"],
    )


def build_objective(
    config: Config,
    device: torch.device,
    ranks: Ranks,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> Objective:
    """Build the objective, with its frozen models. Raises ValueError for an unusable model."""
    models = {}
    for name, source in config.objective.frozen_models().items():
        try:
            layout = config.objective.layout_of_frozen(config.parallel)
            args = config, source, device, ranks, tokenizer, dtype
            apart = ranks.mesh is not None and layout is not config.parallel
            models[name] = shared_model(layout, *args) if apart else frozen_model(*args)
        except CheckpointError as error:
            raise CheckpointError(f"objective, its model '{name}': {error}") from error
    trust = config.run.trust
    objective = build(
        config.objective, path="objective", trust=trust, tokenizer=tokenizer, models=models
    )
    if isinstance(objective, Objective):
        objective.without_adapter = adapters_off
    if isinstance(objective, GRPO) and isinstance(config.rollout, SampledRollout):
        objective.temperature = config.rollout.temperature
    if config.train.compile_model and isinstance(objective, Objective):
        objective.compile_backend = config.train.compile_backend
    return objective


def shared_model(
    layout: Parallel,
    config: Config,
    source: str | None,
    device: torch.device,
    ranks: Ranks,
    *rest: Any,
) -> nn.Module:
    """A frozen model in a layout of its own, cut over tp, over the same ranks. A collective."""
    mesh = make_mesh(layout, device.type)
    of_layout = replace(config, parallel=layout), source, device, replace(ranks, mesh=mesh)
    return SharedModel(frozen_model(*of_layout, *rest), mesh).eval()


def frozen_model(
    config: Config,
    source: str | None,
    device: torch.device,
    ranks: Ranks,
    tokenizer: Tokenizer | None,
    dtype: torch.dtype,
) -> nn.Module:
    """Build a model in eval mode, laid out as the trained model, without its adapter.

    source: as in `frozen_models`; a checkpoint also decides the shape.
    """
    config = replace(config, adapter=NoAdapter())
    source_path = source or config.checkpoint.init_from
    exclude = () if source else tuple(config.checkpoint.exclude_from_loading)
    path = ranks.from_main(found_place(source_path) if ranks.main and source_path else None)
    if isinstance(path, CheckpointError):
        raise path
    if source and is_folder(path):
        config = replace(config, model=_section_of(path, tokenizer))
    elif source and path.is_dir():
        config = replace(config, model=_config_of(path, config, tokenizer).model)
    if config.parallel.tp > 1 and (decoder := config.decoder):
        for _, message, *_ in tp_divides.body(decoder, config.parallel):
            raise CheckpointError(f"{path}: {message}")
    if (longest := getattr(config.model, "max_seq_len", 0)) < config.train.seq_len:
        message = f"it reads {longest} tokens, fewer than train.seq_len={config.train.seq_len}"
        raise CheckpointError(f"{path}: {message}; train.seq_len={longest}")
    config = replace(config, adapter=NoAdapter())
    moves = getattr(config.objective, "reference_moves", False)  # small moves, lost in 16 bits
    alone = ranks.mesh is None and not moves
    of_products = HALF.get(config.precision.mixed_precision) if alone else None
    model = build_model(config, device, ranks, dtype, stored=of_products)  # FSDP would cast
    if path is not None:
        options = {"exclude": exclude, "trust": config.run.trust, "group": ranks.saver}
        restore.load_weights(path, model=model, section=config.model, **options)
    return model.requires_grad_(False).eval()


def _config_of(path: Path, config: Config, tokenizer: Tokenizer | None) -> Config:
    """Read the config inside a checkpoint. Raises CheckpointError for another tokenizer."""
    if tokenizer and Saved(path).meta["data"]["tokenizer"] != tokenizer.fingerprint:
        message = checkpoints.OTHER_TOKENIZER
        raise CheckpointError(f"{path}: {message}; train with its own: tokenizer=file")
    return restore.read_checkpoint_config(path, trust=config.run.trust)


def _section_of(path: Path, tokenizer: Tokenizer | None) -> Model:
    """The model's section of a folder. Raises CheckpointError for another tokenizer, or none."""
    try:
        of_folder = Tokenizer.load(path)
    except Exception as error:  # of the Rust library too
        hint = "give a run, as python -m forge.import makes it of the folder"
        message = f"{path} does not say which tokenizer it was trained with"
        raise CheckpointError(f"{message}; {hint}") from error
    if tokenizer and tokenizer.ids != of_folder.ids:
        message = checkpoints.OTHER_TOKENIZER
        raise CheckpointError(f"{path}: {message}; train with its own: tokenizer=file")
    try:
        return read_folder(path).section
    except FolderError as error:
        raise CheckpointError(f"{path}: {error}") from error


def found_place(source: str) -> Path | CheckpointError:
    """The file or checkpoint meant by a path, or the error."""
    try:
        path = Path(source)
        return (
            path if path.is_file() or is_folder(path) else checkpoints.find_checkpoint(path)[0].path
        )
    except CheckpointError as error:
        return error
