"""First lines of a run: the model, the data, the layout and the steps, a line each."""

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
from forge.resolve.auto import layout_name


def first_lines(
    config: Config,
    prepared: Prepared,
    device: torch.device,
    ranks: Ranks,
    built: nn.Module | None = None,
) -> list[str]:
    """Model, data, layout and steps, a line each.

    config: completed from the text. built: the model, once built. A decoder's parameters are known
    before, and the lines are printed then; for any other model only now.
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
        return f"{config.model._target_}: {sum(p.numel() for p in built.parameters()):,} parameters"
    depth = counted(model.n_layers, "layer")
    line = f"decoder of {depth}, width {model.dim}: {model.num_params_estimate:,} parameters"
    if model.is_moe:
        line += f", of which a token meets {model.num_active_params:,}"
    if param_groups.some_frozen(config):
        groups = param_groups.tensors_in(config)
        trained = sum(
            spec.size for name, specs in groups.items() if name is not None for spec in specs
        )
        line += f"; {adapter.schema_name + ' trains' if adapter.active else 'trained are'} "
        line += f"{trained:,}"
    return line


def _data(config: Config, prepared: Prepared) -> str:
    stores = Mixture.of(prepared.train).stores
    held_out = len(prepared.val)
    validated = f", {held_out:,} to validate on" if held_out else ""
    if any(isinstance(store, Streamed) for store in stores.values()):
        amount = "tokens as they are read"
    else:
        amount = f"{sum(map(len, stores.values())):,} tokens to train on"  # type: ignore[arg-type]
    names = [name for name in stores if name]
    sources = f" of {', '.join(names)}" if names else ""
    return f"{_name(config)}{sources}: {amount}{validated}"


def _name(config: Config) -> str:
    """The kind and location of the data."""
    data = config.data
    location = getattr(data, "path", "") or getattr(data, "hf_dataset_name", "")
    return " ".join(filter(None, (data.schema_name or data._target_, location)))


def _layout(config: Config, device: torch.device, ranks: Ranks) -> str:
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    degrees = config.parallel.degrees()
    name = layout_name(degrees) + (f"_cp{degrees['cp']}" if degrees["cp"] > 1 else "")
    line = f"{name}: {ranks_of(ranks.size)} on {device_name}, {config.precision.mixed_precision}"
    section = config.quantization
    return f"{line} and {section.schema_name}" if isinstance(section, Quantized) else line


def _steps(config: Config) -> str:
    train = config.train
    sequences = (train.global_batch_size or 0) * sequences_of(config)
    batch = f"{sequences:,} x {train.seq_len:,} = {sequences * train.seq_len:,} tokens"
    limit = f" or {train.max_time:g} minutes" if train.max_time else ""
    ends = f"{train.max_steps:,}{limit} of {batch}"
    return f"{ends}, {_optimizers(config)}; {tokens_in_all(config):,} tokens in all"


def _optimizers(config: Config) -> str:
    """The optimizers with their peak rates; equal groups are listed once."""
    tensors = param_groups.tensors_in(config)
    dim = config.model.known_dim
    kinds = {
        f"{group.kind} at {group.section.peak(dim):.3g}": None
        for name, group in param_groups.groups(config).items()
        if not tensors or tensors.get(name)
    }
    return ", ".join(kinds)
