"""What the reference of a preference objective gives all examples, computed once and kept."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from forge.config.preference import Referenced
from forge.config.root import Config
from forge.data.cache import cache_root, explained, kept
from forge.data.examples import Examples
from forge.data.fingerprint import hash_file, hash_json
from forge.data.manifest import read_manifest, write_manifest
from forge.data.samples import Samples
from forge.data.shards import BrokenStore
from forge.data.store import TokenStore
from forge.data.streams import Streamed
from forge.data.tokenizer import Tokenizer
from forge.models.modes import evaluating
from forge.objectives.objective import Objective
from forge.objectives.responses import References, Responded, each_response
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.rundir.checkpoints import META
from forge.training.data import examples_of
from forge.training.models import found_place, frozen_model
from forge.training.process import say

VALUES = "values.npy"


def add_references(
    objective: Objective,
    config: Config,
    stores: Iterable[TokenStore | Streamed],
    device: torch.device,
    ranks: Ranks,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Give an objective whose reference is read before training alone what it says of the examples
    of these stores: from the cache, or computed now by all ranks, which call this.

    Raises ValueError where the reference cannot be used.
    """
    section = config.objective
    if not (isinstance(objective, Responded) and isinstance(section, Referenced)):
        return
    if not section.cached_model:
        return
    model: nn.Module | None = None
    for store in stores:
        plan = None if isinstance(store, Streamed) else examples_of(config, store)
        if plan is None or isinstance(store, Streamed) or store.fingerprint in objective.references:
            continue
        identity = ranks.from_main(_identity(config, store, plan, dtype) if ranks.main else None)
        if isinstance(identity, Exception):
            raise identity
        entry = cache_root(config.data.cache_dir) / "references" / hash_json(identity)[:16]
        values = ranks.from_main(_found(entry) if ranks.main else None)
        if values is None:
            if model is None:
                source = section.reference_model
                model = frozen_model(config, source, device, ranks, tokenizer, dtype)
                say("computing the log-probabilities of the reference, which are kept")
            values = _computed(objective, model, store, plan, config, device, ranks)
            if ranks.main:
                with explained(entry.parent.parent):
                    values = kept(entry, partial(_read, entry), partial(_write, values, identity))
            values = ranks.from_main(values)  # of whoever wrote them first
        starts = plan.pieces[plan.begins[:-1], 0]
        objective.references[store.fingerprint] = References(np.asarray(starts), values)


@torch.no_grad()
def _computed(
    objective: Responded,
    model: nn.Module,
    store: TokenStore,
    plan: Examples,
    config: Config,
    device: torch.device,
    ranks: Ranks,
) -> np.ndarray:
    """[examples, rows], the same on all ranks: each reads its share, and as many batches."""
    (index, shares), size = ranks.batch, config.eval.batch_size or config.train.batch_size
    values = torch.zeros(len(plan), plan.rows, dtype=torch.float64, device=device)
    with evaluating(model):
        for first in range(index * size, len(plan) + index * size, shares * size):
            numbers = range(first, first + size)  # behind the last one it is read again
            batch = objective.collate(
                Samples(
                    seq_len=config.train.seq_len,
                    numbers=numbers,
                    find=lambda number: (store, plan.pieces_of(min(number, len(plan) - 1))),
                    masked=True,
                    apart=True,
                )
            )
            batch.pop("reference", None)
            own = ranks.own_batch(batch, objective.along_sequence, device)
            read: Any = model.read(own) if isinstance(model, Pipeline) else model
            if read is None or first >= len(plan):
                continue
            found = each_response(read, own).view(-1, plan.rows)
            values[first : first + size] = found[: len(plan) - first].double()
    return ranks.total(values).cpu().numpy()


def _identity(
    config: Config, store: TokenStore, plan: Examples, dtype: torch.dtype
) -> dict[str, Any] | Exception:
    """What the values depend on: weights, text and how numbers are computed; on no layout."""
    source = config.objective.reference_model  # type: ignore[attr-defined]
    place = source or config.checkpoint.init_from
    path = found_place(place) if place else None
    if isinstance(path, Exception):
        return path
    weights: Any = {"seed": config.seed} if path is None else _weights(path)
    if not source:
        weights |= {"excluded": [*config.checkpoint.exclude_from_loading], "seed": config.seed}
    pieces = np.ascontiguousarray(plan.pieces, dtype="<i8")
    return {
        "text": store.stamp,
        "pieces": hash_json([pieces.tobytes().hex()]),
        "seq_len": config.train.seq_len,
        "weights": weights,
        "model": asdict(config.model),
        "precision": asdict(config.precision),
        "dtype": str(dtype),
    }


def _weights(path: Path) -> dict[str, Any]:
    """Of a checkpoint what says which it is; of a file its bytes; of other folders their files."""
    if path.is_file():
        return {"file": hash_file(path)}
    if (path / META).is_file():
        return {"checkpoint": hash_file(path / META)}
    found = {one.name: one.stat() for one in sorted(path.iterdir()) if one.is_file()}
    return {"files": {name: [one.st_size, one.st_mtime_ns] for name, one in found.items()}}


def _found(entry: Path) -> np.ndarray | None:
    with suppress(BrokenStore):
        return _read(entry)


def _read(entry: Path) -> np.ndarray:
    """BrokenStore: it is missing or damaged."""
    read_manifest(entry)
    return np.load(entry / VALUES)


def _write(values: np.ndarray, identity: dict[str, Any], directory: Path) -> None:
    np.save(directory / VALUES, values)
    files = {VALUES: hash_file(directory / VALUES)}
    write_manifest(directory, {"identity": identity, "sha256": files})
