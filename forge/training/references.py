"""Log-probabilities of a preference objective's reference, computed before training and cached."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import nn

from forge.config.objectives.preference import Referenced
from forge.config.root import Config
from forge.data.batches.examples import Examples
from forge.data.batches.loader import spread_evenly
from forge.data.batches.mixture import Mixture
from forge.data.batches.samples import Samples
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared
from forge.data.text.fingerprint import hash_file, hash_json
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.cache import cache_root, explained
from forge.data.tokens.store import TokenStore
from forge.models.reading_mode import evaluating
from forge.objectives.objective import Objective
from forge.objectives.responses import References, ResponseObjective, summand_of_responses
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.rundir.checkpoints import META
from forge.training.callbacks.evaluation import most_sequences
from forge.training.data import examples_of, train_loader
from forge.training.models import found_place, frozen_model
from forge.training.process import say

BATCHES_A_PART = 32
SECONDS_BETWEEN_LINES = 10.0
DAMAGED = (OSError, ValueError, KeyError, EOFError, BadZipFile)
Texts = Iterable[tuple[TokenStore | Streamed, Sequence[int] | np.ndarray | None]]
"""Stores, each with the numbers of the examples to read; None = all."""


def add_references(
    objective: Objective,
    config: Config,
    texts: Texts,
    device: torch.device,
    ranks: Ranks,
    *,
    tokenizer: Tokenizer | None = None,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Give an objective with a cached reference the log-probabilities of these examples.

    Values come from the cache, or all ranks compute them now; a collective. Computed parts are
    stored at once, for a killed run to resume from. Raises ValueError for an unusable reference.
    """
    section = config.objective
    if not (isinstance(objective, ResponseObjective) and isinstance(section, Referenced)):
        return
    if not section.cached_model:
        return
    model: nn.Module | None = None
    reference = (config, section.reference_model, device, ranks, tokenizer, dtype)
    for store, numbers in texts:
        if isinstance(store, Streamed) or (plan := examples_of(config, store)) is None:
            continue
        cached = objective.references.get(store.fingerprint)
        entry = _entry(config, store, plan, dtype, ranks)
        if cached is None:
            values = ranks.from_main(_read(entry, plan) if ranks.main else None)
        else:
            values = cached.values
        batches = _missing(config, plan, numbers, values)
        if batches:
            model = frozen_model(*reference) if model is None else model
            _compute(objective, model, store, plan, config, device, ranks, batches, values, entry)
        starts = plan.pieces[plan.begins[:-1], 0]
        objective.references[store.fingerprint] = References(np.asarray(starts), values)
    if model is not None and device.type == "cuda":
        del model
        torch.cuda.empty_cache()  # its streams hold gathered weights that nothing else can use


def _entry(
    config: Config, store: TokenStore, plan: Examples, dtype: torch.dtype, ranks: Ranks
) -> Path:
    """The folder of the cache for these examples, of the same name on all ranks; a collective."""
    identity = ranks.from_main(_identity(config, store, plan, dtype) if ranks.main else None)
    if isinstance(identity, Exception):
        raise identity
    return cache_root(config.data.cache_dir) / "references" / hash_json(identity)[:16]


def examples_read(
    config: Config, prepared: Prepared, objective: Objective, ranks: Ranks, device: torch.device
) -> Texts:
    """The examples for training over `train.max_steps` updates, and for evaluation."""
    train = Mixture.of(prepared.train)
    stores = [store for store in train.stores.values() if not isinstance(store, Streamed)]
    if len(stores) < len(train.stores) or not all(store.together for store in stores):
        return []
    loader = train_loader(config, train, objective, ranks, device)
    numbers = loader.numbers(config.train.batch_sizes.samples(config.train.max_steps))
    trained = zip(stores, numbers.values(), strict=True)
    most = most_sequences(config.eval, config.train)
    return [*trained, *examples_evaluated(config, prepared.evaluated, most=most)]


def examples_evaluated(config: Config, stores: Mapping[str, TokenStore], *, most: int) -> Texts:
    """The examples of these stores in an evaluation of `most` of each; 0 = all."""
    for store in stores.values():
        plan = examples_of(config, store)
        yield store, None if plan is None else spread_evenly(len(plan), most)


def _missing(
    config: Config, plan: Examples, numbers: Sequence[int] | np.ndarray | None, values: np.ndarray
) -> list[np.ndarray]:
    """Batches of examples with missing values, the shortest first.

    Batches are cut from all examples read, before completed batches are dropped. A killed run
    therefore computes the last batches as an unbroken run, to the bit.
    """
    size = config.eval.batch_size or config.train.batch_size
    read = np.arange(len(plan)) if numbers is None else np.unique(np.asarray(numbers, np.int64))
    lengths = np.diff(plan.pieces, axis=1).reshape(len(plan), plan.rows).max(1)
    read = read[np.argsort(lengths[read], kind="stable")]
    batches = [read[first : first + size] for first in range(0, len(read), size)]
    return [batch for batch in batches if np.isnan(values[batch]).any()]


@torch.no_grad()
def _compute(
    objective: ResponseObjective,
    model: nn.Module,
    store: TokenStore,
    plan: Examples,
    config: Config,
    device: torch.device,
    ranks: Ranks,
    batches: list[np.ndarray],
    values: np.ndarray,
    entry: Path,
) -> None:
    """Fill in `values`, [examples, rows], of these batches, equal on all ranks.

    Each rank reads a share of the batches, and all ranks as many. The main rank writes each part,
    and reports progress.
    """
    index, shares = ranks.batch
    size = config.eval.batch_size or config.train.batch_size
    total, done, begin = sum(map(len, batches)), 0, monotonic()
    printed_at = begin
    say(f"computing the reference of {total:,} examples, which is kept")
    with evaluating(model):
        for first in range(0, len(batches), BATCHES_A_PART * shares):
            part = batches[first : first + BATCHES_A_PART * shares]
            numbers = np.concatenate(part)
            results = torch.zeros(len(numbers), plan.rows, dtype=torch.float64, device=device)
            for turn in range(index, -(-len(part) // shares) * shares, shares):
                # Past the end the last batch is read again: all ranks must take as many turns.
                chosen = part[min(turn, len(part) - 1)]
                filled = np.pad(chosen, (0, size - len(chosen)), mode="edge")
                batch = objective.collate(
                    Samples(
                        seq_len=config.train.seq_len,
                        numbers=filled.tolist(),
                        find=lambda number: (store, plan.pieces_of(number)),
                        masked=True,
                        apart=True,
                        multiple=config.data.pad_to_multiple_of,
                    )
                )
                batch.pop("reference", None)
                local_batch = ranks.own_batch(batch, objective.along_sequence, device)
                read: Any = model.read(local_batch) if isinstance(model, Pipeline) else model
                # On ranks without the last stage of a pipeline, and in turns past the end.
                if read is None or turn >= len(part):
                    continue
                rows = summand_of_responses(read, local_batch).view(-1, plan.rows)
                results[turn * size : turn * size + len(chosen)] = rows[: len(chosen)].double()
            computed = ranks.total(results).cpu().numpy()
            # Values present already stay, for the same bits at every start.
            values[numbers] = np.where(np.isnan(values[numbers]), computed, values[numbers])
            if ranks.main:
                with explained(entry.parent.parent):
                    _write(entry, numbers, values[numbers])
            done += len(numbers)
            if (now := monotonic()) - printed_at > SECONDS_BETWEEN_LINES and done < total:
                printed_at, rate = now, done / (now - begin)
                eta = str(timedelta(seconds=round((total - done) / rate)))
                say(f"reference: {done:,} of {total:,} examples, {rate:.1f} a second, {eta} left")


def _identity(
    config: Config, store: TokenStore, plan: Examples, dtype: torch.dtype
) -> dict[str, Any] | Exception:
    """The inputs of the values: weights, text and number formats; independent of the layout."""
    source = config.objective.reference_model  # type: ignore[attr-defined]
    source_path = source or config.checkpoint.init_from
    path = found_place(source_path) if source_path else None
    if isinstance(path, Exception):
        return path
    weights: Any = {"seed": config.seed} if path is None else identified_weights(path)
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


def identified_weights(path: Path) -> dict[str, Any]:
    """Identify weights: a checkpoint by metadata, a file by bytes, other folders by their files."""
    if path.is_file():
        return {"file": hash_file(path)}
    if (path / META).is_file():
        return {"checkpoint": hash_file(path / META)}
    stats = {file.name: file.stat() for file in sorted(path.iterdir()) if file.is_file()}
    return {"files": {name: [file.st_size, file.st_mtime_ns] for name, file in stats.items()}}


def _read(entry: Path, plan: Examples) -> np.ndarray:
    """Read all parts of an entry, [examples, rows], with NaN for missing examples.

    A damaged part counts as missing.
    """
    values = np.full((len(plan), plan.rows), np.nan)
    for path in sorted(entry.glob("*.npz")):
        with suppress(*DAMAGED), np.load(path, allow_pickle=False) as part:
            values[part["numbers"]] = part["values"]
    return values


def _write(entry: Path, numbers: np.ndarray, values: np.ndarray) -> None:
    """Write a part, named by its examples; complete or not at all."""
    entry.mkdir(parents=True, exist_ok=True)
    name = hash_json(numbers.tolist())[:16]
    temporary = entry / f".{name}.{os.getpid()}"
    with temporary.open("wb") as file:
        np.savez(file, numbers=numbers, values=values)
    temporary.rename(entry / f"{name}.npz")
