"""The average of several checkpoints' weights, as a run of weights alone."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forge.config.eval import TRAINED
from forge.config.model.decoder import Decoder
from forge.config.model.layer import Model
from forge.config.problems import listed
from forge.config.root import Config
from forge.rundir import provenance, saved_config, versions
from forge.rundir.checkpoints import TOKENIZER, CheckpointError, Saved
from forge.rundir.directory import MADE_WITH
from forge.rundir.files import write_json
from forge.rundir.saved_config import CONFIG
from forge.training.checkpoints.adapter_base import BASE
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.merging import PREFIX, Merged
from forge.training.checkpoints.restore import read_checkpoint_config, tokenizer_of

Weighted = Sequence[tuple[Saved, float]]
MERGED, BLOCKS = "merged", "blocks."


class Average(Mapping[str, Tensor]):
    """sum(share * weights) of checkpoints by stored name, computed on access in fp64.

    Shares sum up to 1. Integers are those of the last checkpoint. Raises CheckpointError where
    names or shapes differ.
    """

    def __init__(self, sources: Sequence[tuple[Merged, float]]) -> None:
        self.sources = sources
        (first, _), *others = sources
        shapes = {name: tuple(meta.size) for name, meta in first.stored.items()}
        for other, _ in others:
            found = {name: tuple(meta.size) for name, meta in other.stored.items()}
            if differing := sorted(dict(shapes.items() ^ found.items())):
                message = f"{first.path} and {other.path} differ in names or shapes of weights"
                raise CheckpointError(f"{message}: {listed(differing)}; name steps of one model")

    def like(self) -> dict[str, Tensor]:
        """The weights by name on the meta device, in the format of the last checkpoint."""
        last = self.sources[-1][0]
        return {
            name: torch.empty(tuple(meta.size), dtype=meta.properties.dtype, device="meta")
            for name, meta in last.stored.items()
        }

    def __getitem__(self, key: str) -> Tensor:
        name = key.removeprefix(PREFIX)
        last = self.sources[-1][0].own(name)
        if len(self.sources) == 1 or not last.is_floating_point():
            return last
        total = torch.zeros(last.shape, dtype=torch.float64)
        for source, share in self.sources:
            total.add_(source.own(name).double(), alpha=share)
        return total.to(last.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter(self.like())

    def __len__(self) -> int:
        return len(self.like())


class ChosenLayers(Mapping[str, Tensor]):
    """Weights of a decoder whose block j has the values of block layers[j] of the given weights."""

    def __init__(self, weights: Average, layers: Sequence[int]) -> None:
        self.weights = weights
        self.sources = {name: name for name in weights if not name.startswith(BLOCKS)}
        for block, layer in enumerate(layers):
            begin = f"{BLOCKS}{layer}."
            for name in weights:
                if name.startswith(begin):
                    self.sources[f"{BLOCKS}{block}.{name.removeprefix(begin)}"] = name

    def check(self, whole: Model, chosen: Model) -> None:
        """Refuse a model with tensors by layer outside of its blocks, as value embeddings."""
        ours, theirs = ({t.name for t in section.tensors()} for section in (chosen, whole))
        kept = {name for name, source in self.sources.items() if source in theirs}
        if differing := sorted(ours ^ kept):
            message = f"layers: other tensors belong to layers too: {listed(differing)}"
            raise CheckpointError(f"{message}; a model without them can be cut")

    def like(self) -> dict[str, Tensor]:
        """The weights by name on the meta device."""
        like = self.weights.like()
        return {name: like[source].clone() for name, source in self.sources.items()}

    def __getitem__(self, key: str) -> Tensor:
        return self.weights[self.sources[key.removeprefix(PREFIX)]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __len__(self) -> int:
        return len(self.sources)


def with_layers(model: Model, layers: Sequence[int]) -> Decoder:
    """A decoder of these layers of a model, in this order. Raises CheckpointError where one is not
    there, or would be of another kind at its new place (a window, experts, no rotation).
    """
    if not isinstance(model, Decoder):
        raise CheckpointError(f"layers={[*layers]}: the model is no decoder of forge")
    if absent := [layer for layer in layers if not 0 <= layer < model.n_layers]:
        message = f"the model has no layer {absent[0]}"
        raise CheckpointError(f"layers={[*layers]}: {message}; 0 to {model.n_layers - 1}")
    chosen = replace(model, n_layers=len(layers))
    for place, layer in enumerate(layers):
        if chosen.kind_of(place) != model.kind_of(layer):
            message = f"layer {layer} would be of another kind at place {place}"
            hint = "take layers whose kinds are in the order of the new model"
            raise CheckpointError(f"layers={[*layers]}: {message}; {hint}")
    return chosen


def merge_checkpoints(
    chosen: Weighted,
    out: Path,
    *,
    weights: str = TRAINED,
    layers: Sequence[int] | None = None,
    trust: Sequence[str] = (),
) -> Path:
    """Write the average of a run's checkpoints as the run directory `out`; returns its checkpoint.

    chosen: checkpoints with shares that sum up to 1, the last one giving config, tokenizer and
    step. weights: trained, or ema, the moving mean in each. layers: numbers of the layers to take,
    in order, again and again if repeated; None = all. Only one weight at a time is in memory.
    Raises CheckpointError for checkpoints that cannot be averaged, and OSError if writing fails.
    """
    last = chosen[-1][0]
    config = read_checkpoint_config(last.path, trust=trust)
    for saved, _ in chosen:
        if BASE in saved.meta:
            hint = "python -m forge.export RUN OUT --format hf --merge adds them to the base first"
            raise CheckpointError(f"{saved.path} has adapters beside a base; {hint}")
    average: Average | ChosenLayers
    average = Average([(Merged(saved.path, config, weights), share) for saved, share in chosen])
    if layers is not None:
        whole, config = config.model, replace(config, model=with_layers(config.model, layers))
        average = ChosenLayers(average, layers)
        average.check(whole, config.model)
    config = replace(config, run=replace(config.run, dir=str(out.absolute())))
    config.freeze()
    sources = [{"path": str(saved.path), "step": saved.step, "share": s} for saved, s in chosen]
    merged = {"weights": weights, "of": sources, "layers": layers and [*layers]}
    _write_run(out, config, last, average, merged)
    return out / config.checkpoint.dir / f"step_{last.step}"


def _write_run(
    out: Path,
    config: Config,
    last: Saved,
    average: Average | ChosenLayers,
    merged: dict[str, Any],
) -> None:
    """Write a run directory with one checkpoint. last: its tokenizer and step. merged: its origin,
    for provenance.json and meta.json.
    """
    out.mkdir(parents=True, exist_ok=True)
    run_id = secrets.token_hex(8)
    write_json(out / MADE_WITH, {"run_id": run_id, **provenance.facts(), MERGED: merged})
    tokenizer = tokenizer_of(last.path)
    tokenizer.save(out / TOKENIZER)
    checkpointer = Checkpointer(out / config.checkpoint.dir, config, tokenizer, run_id)
    taken = ("best_by", "higher_is_better", "train", "data")
    meta = {key: last.meta[key] for key in taken if key in last.meta}
    meta |= {"reason": MERGED, "metrics": {}, MERGED: merged}
    try:
        checkpointer.save_weights(last.step, average.like(), average, meta)
    finally:
        checkpointer.close()
    versions.write_parts(out, 1, overrides=[], derived=[], warnings=[])
    saved_config.save_config(config, out / CONFIG)
