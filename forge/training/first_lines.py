"""What a run begins with: four lines that say what is trained, on what, where and how long."""

from __future__ import annotations

import torch
from torch import nn

from forge.config.numbers import aligned, counted
from forge.config.optimizers import param_groups
from forge.config.quantization import Quantized
from forge.config.root import Config
from forge.data.batches.mixture import Mixture
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared
from forge.parallel.ranks import Ranks
from forge.planning.flops import sequences_of, tokens_in_all
from forge.planning.world import ranks_of
from forge.resolve.auto import name_of


def first_lines(
    config: Config,
    prepared: Prepared,
    device: torch.device,
    ranks: Ranks,
    built: nn.Module | None = None,
) -> list[str]:
    """Model, data, layout and steps, a line each; config: with what follows from the text.

    built: the model, once it is. Of a decoder the parameters are known before, and the lines are
    said then; of any other model only now.
    """
    if config.model.has_blocks == (built is not None):
        return []
    cells = [
        ("model", _model(config, built)),
        ("data", _data(config, prepared)),
        ("layout", _layout(config, device, ranks)),
        ("steps", _steps(config)),
    ]
    return [f"  {line}" for line in aligned(cells)]


def _model(config: Config, built: nn.Module | None) -> str:
    model, adapter = config.decoder, config.adapter
    if model is None:
        assert built is not None
        size = sum(one.numel() for one in built.parameters())
        return f"{config.model._target_}: {size:,} parameters"
    depth = counted(model.n_layers, "layer")
    said = f"decoder of {depth}, width {model.dim}: {model.num_params_estimate:,} parameters"
    if model.is_moe:
        said += f", of which a token meets {model.num_active_params:,}"
    if param_groups.some_frozen(config):
        groups = param_groups.tensors_in(config)
        trained = sum(one.size for name, here in groups.items() if name is not None for one in here)
        said += f"; {adapter.schema_name + ' trains' if adapter.active else 'trained are'} "
        said += f"{trained:,}"
    return said


def _data(config: Config, prepared: Prepared) -> str:
    stores = Mixture.of(prepared.train).stores
    held_out = len(prepared.val)
    validated = f", {held_out:,} to validate on" if held_out else ""
    if any(isinstance(one, Streamed) for one in stores.values()):
        amount = "tokens as they are read"
    else:
        amount = f"{sum(map(len, stores.values())):,} tokens to train on"  # type: ignore[arg-type]
    names = [name for name in stores if name]
    of = f" of {', '.join(names)}" if names else ""
    return f"{_name(config)}{of}: {amount}{validated}"


def _name(config: Config) -> str:
    """The kind of the data, and where it is."""
    data = config.data
    place = getattr(data, "path", "") or getattr(data, "hf_dataset_name", "")
    return " ".join(filter(None, (data.schema_name or data._target_, place)))


def _layout(config: Config, device: torch.device, ranks: Ranks) -> str:
    place = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    degrees = config.parallel.degrees()
    name = name_of(degrees) + (f"_cp{degrees['cp']}" if degrees["cp"] > 1 else "")
    said = f"{name}: {ranks_of(ranks.size)} on {place}, {config.precision.mixed_precision}"
    section = config.quantization
    return f"{said} and {section.schema_name}" if isinstance(section, Quantized) else said


def _steps(config: Config) -> str:
    train = config.train
    sequences = (train.global_batch_size or 0) * sequences_of(config)
    batch = f"{sequences:,} x {train.seq_len:,} = {sequences * train.seq_len:,} tokens"
    limit = f" or {train.max_time:g} minutes" if train.max_time else ""
    ends = f"{train.max_steps:,}{limit} of {batch}"
    return f"{ends}, {_optimizers(config)}; {tokens_in_all(config):,} tokens in all"


def _optimizers(config: Config) -> str:
    """What updates the weights, each with its peak rate; groups alike are said once."""
    tensors = param_groups.tensors_in(config)
    dim = config.model.known_dim
    said = {
        f"{group.kind} at {group.section.peak(dim):.3g}": None
        for name, group in param_groups.groups(config).items()
        if not tensors or tensors.get(name)
    }
    return ", ".join(said)
