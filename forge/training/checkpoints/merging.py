"""The weights of a checkpoint as whole tensors, with adapters merged."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import singledispatchmethod
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forge.adapters.formats import pack_weight, unpack
from forge.adapters.ia3 import scaled_weight
from forge.adapters.lora import merged_weight
from forge.adapters.pissa import rest
from forge.config.adapters.adapter import (
    MAGNITUDE,
    PISSA,
    SCALES,
    TAKEN_A,
    TAKEN_B,
    A,
    Adapter,
    B,
    LoRA,
    adapter_name,
    is_added,
)
from forge.config.adapters.ia3 import IA3
from forge.config.eval import EMA, TRAINED
from forge.config.model.decoder import Decoder
from forge.config.root import Config
from forge.families import folder as folders
from forge.hf.new_rows import Widened
from forge.hf.read import read_tensor
from forge.models.init import init_weights
from forge.models.plain import make_model
from forge.rundir import saved_config
from forge.rundir.checkpoints import WEIGHTS, CheckpointError, Saved
from forge.rundir.saved_config import CONFIG
from forge.tensors.masters import exact_state
from forge.training.checkpoints import tensor_storage
from forge.training.checkpoints.adapter_base import BASE, located
from forge.training.checkpoints.damage import share_damage

PREFIX = "model/"
MEAN = "parameters/WeightAverage/"
"""Prefix of the moving mean of the weights, of forge.training.callbacks.weight_average."""


def mean_prefix(path: Path, stored: Collection[str]) -> str:
    """The prefix of the moving mean among stored names. Raises CheckpointError without one."""
    if any(name.startswith(MEAN) for name in stored):
        return MEAN
    hint = "train.ema_decay=0.999 keeps one beside training"
    raise CheckpointError(f"{path} has no moving mean of the weights; {hint}")


def load_mean(path: Path, model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Replace weights by their moving mean. Raises CheckpointError for a checkpoint without it."""
    with share_damage(path, group):
        stored = tensor_storage.stored_metadata(path / WEIGHTS)
    prefix = mean_prefix(path, stored)
    state = exact_state(model)
    names = {key: key.removeprefix(prefix) for key in stored if key.startswith(prefix)}
    targets = {key: state[name] for key, name in names.items() if name in state}
    with share_damage(path, group):
        tensor_storage.load_tensors(targets, path / WEIGHTS, alone=True)


class Merged(Mapping[str, Tensor]):
    """Whole tensors by model name, read on access, adapters merged into their base weights.

    Names absent from the checkpoint come from its base, of whatever kind.
    """

    def __init__(self, path: Path, config: Config, weights: str = TRAINED) -> None:
        """config: of the checkpoint. weights: trained, or ema, their moving mean. Raises
        CheckpointError for an unusable base, and without a mean.
        """
        self.path, self.adapter, self.below = path, config.adapter, Saved(path).meta.get(BASE)
        with share_damage(path):
            stored = tensor_storage.stored_metadata(path / WEIGHTS)
        self.stored = {
            name.removeprefix(PREFIX): meta
            for name, meta in stored.items()
            if name.startswith(PREFIX)
        }
        self.stored_names = {name: PREFIX + name for name in self.stored}
        if weights == EMA:
            prefix = mean_prefix(path, stored)
            means = [name for name in self.stored if prefix + name in stored]
            self.stored_names |= {name: prefix + name for name in means}
            self.stored |= {name: stored[prefix + name] for name in means}
        self.base: Mapping[str, Tensor] = {}
        self.beside = {}
        if self.below is not None:
            self.beside = {spec.name: spec for spec in config.model.tensors()}
            self.base = Widened(
                _all_weights(located(self.below, path), config), self.beside.values()
            )

    def __getitem__(self, name: str) -> Tensor:
        if name in self.stored:
            return self.own(name)
        values, spec = self.base[name], self.beside.get(name)
        adapter = self.adapter
        if spec is not None and adapter.packs(spec):
            # Adapters were trained beside the quantized values, here in fp32 as in products.
            format = adapter.packed_format
            values = unpack(pack_weight(values, format), format, torch.float32)
        return self._with(adapter, name, values)

    @singledispatchmethod
    def _with(self, adapter: Adapter, name: str, values: Tensor) -> Tensor:
        """Merge the adapter's tensors into a weight or a bias."""
        return values

    @_with.register
    def _(self, adapter: LoRA, name: str, values: Tensor) -> Tensor:
        spec = self.beside.get(name)
        if spec is None or not (rank := adapter.rank_of(spec)):
            return values
        if adapter.init == PISSA:
            values = rest(
                values, self.own(adapter_name(spec, TAKEN_A)), self.own(adapter_name(spec, TAKEN_B))
            )
        magnitude = self.own(adapter_name(spec, MAGNITUDE)) if adapter.dora else None
        pair = self.own(adapter_name(spec, A)), self.own(adapter_name(spec, B))
        return merged_weight(values, *pair, magnitude, role=spec.role, scale=adapter.scale(rank))

    @_with.register
    def _(self, adapter: IA3, name: str, values: Tensor) -> Tensor:
        module, _, last = name.rpartition(".")
        spec = self.beside.get(f"{module}.weight")
        if spec is None or not adapter.has(spec):
            return values
        scales_input = adapter.scales_input(spec)
        if scales_input and last == "bias":
            return values
        return scaled_weight(
            values, self.own(adapter_name(spec, SCALES)), scales_input=scales_input
        )

    def beneath(self, name: str) -> Tensor:
        """The base weights below an adapter, or the checkpoint's tensor."""
        return self.own(name) if name in self.stored else self.base[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors by name."""
        stored_shapes = {
            name: tuple(self.stored[name].size) for name in self if name in self.stored
        }
        beside = {name: tuple(spec.shape) for name, spec in self.beside.items()}
        return beside | stored_shapes

    def __iter__(self) -> Iterator[str]:
        yield from (name for name in self.stored if not is_added(name))
        yield from (name for name in self.base if name not in self.stored)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def own(self, name: str) -> Tensor:
        """Read a tensor of the checkpoint without merging."""
        meta, key = self.stored[name], self.stored_names[name]
        values = {key: torch.empty(tuple(meta.size), dtype=meta.properties.dtype)}
        with share_damage(self.path):  # other ranks may read other names
            tensor_storage.load_tensors(values, self.path / WEIGHTS, alone=True)
        return values[key]


class _OfFolder(Mapping[str, Tensor]):
    """The tensors of a Hugging Face folder by forge names."""

    def __init__(self, path: Path, section: Decoder) -> None:
        rows, self.files = folders.stored_rows(folders.read_folder(path), section)
        self.rows = {row.ours.name: row for row in rows}

    def __getitem__(self, name: str) -> Tensor:
        return read_tensor(self.rows[name], self.files)

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def _all_weights(
    path: Path | None, config: Config, trust: Sequence[str] = ()
) -> Mapping[str, Tensor]:
    """Map names to the weights of a path, or to initial weights from the config's seed for null."""
    if path is None:
        with torch.device("cpu"):
            model = make_model(config.model, trust)
        init_weights(model, config.seed)
        return {name: values.detach() for name, values in model.state_dict().items()}
    if path.is_file():
        from safetensors.torch import load_file

        return load_file(path)
    if folders.is_folder(path):
        assert config.decoder is not None
        return _OfFolder(path, config.decoder)
    return Merged(path, saved_config.load_config(path / CONFIG, trust=(*trust, *config.run.trust)))
