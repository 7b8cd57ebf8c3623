"""The likeliest tokens of a teacher at each token of a text: written once, read by runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from forge.config.objectives.distill import Distill as Section
from forge.config.root import Config
from forge.data.batches.mixture import Mixture
from forge.data.batches.samples import Samples
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared
from forge.data.text.fingerprint import hash_json
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore
from forge.models.head import Head, head_of
from forge.objectives.distill import Distill, without_noise
from forge.objectives.distillation_terms import log_softmax
from forge.objectives.objective import Objective, hidden_of
from forge.objectives.stored_teacher import IDS, LOGPS, Stored
from forge.parallel.ranks import Ranks
from forge.rundir.files import read_json, write_json
from forge.training.data import end_of_text, prepare_data
from forge.training.models import build_objective, found_place
from forge.training.process import say, set_up
from forge.training.references import identified_weights

MANIFEST, FORMAT = "teacher.json", "forge-teacher-1"
BATCHES_A_PART = 64
NO_TEXT = "its text is read while training; prepare it first: python -m forge.prepare"


def teach(config: Config, out: Path, *, k: int, number_format: str) -> dict[str, Any]:
    """Write the folder of a run's text, or continue with the folder; returns the manifest.

    Raises ValueError for an unusable teacher or text, and for a folder of another teacher.
    """
    device, ranks = set_up(config), Ranks()
    prepared = prepare_data(config, ranks)
    tokenizer, text = prepared.tokenizer, Mixture.of(prepared.train)
    objective = build_objective(config, device, ranks, tokenizer=tokenizer)
    assert isinstance(objective, Distill)
    teacher = objective.models["teacher"]
    manifest = _manifest(config, tokenizer, k, number_format)
    manifest["vocabulary"] = tokenizer.vocab_size
    known = _begun(out, manifest)
    for name, store in text.stores.items():
        if isinstance(store, Streamed):
            raise ValueError(f"objective.offline: {NO_TEXT}")
        identity = _identity(config, text, name, objective)
        entry = known.setdefault(identity, {"tokens": len(store), "done": 0})
        samples = _samples(config, text, name, objective)
        folder = out / identity[:16]
        _fill(teacher, store, samples, folder, entry, manifest, objective, config, device, out)
    return read_json(out / MANIFEST)


def add_stored(objective: Objective, config: Config, prepared: Prepared) -> None:
    """Give an objective the stored probabilities of the run's text.

    Raises ValueError for a folder of another text, tokenizer, length or temperature.
    """
    section = config.objective
    if not (isinstance(objective, Distill) and isinstance(section, Section) and section.offline):
        return
    folder = Path(section.offline)
    try:
        manifest = read_json(folder / MANIFEST)
        texts, theirs = manifest["texts"], manifest["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError):
        hint = "make it: python -m forge.teach"
        raise ValueError(
            f"objective.offline={folder}: there is no whole {MANIFEST}; {hint}"
        ) from None
    if theirs != prepared.tokenizer.fingerprint:
        message = "its teacher read with another tokenizer, so its token ids mean something else"
        raise ValueError(f"objective.offline={folder}: {message}; train with its own")
    if manifest["temperature"] != section.temperature.value:
        message = f"it is of temperature {manifest['temperature']}"
        hint = f"objective.temperature.value={manifest['temperature']}"
        raise ValueError(f"objective.offline={folder}: {message}; {hint}")
    text = Mixture.of(prepared.train)
    for name, store in text.stores.items():
        if isinstance(store, Streamed):
            raise ValueError(f"objective.offline: {NO_TEXT}")
        identity = _identity(config, text, name, objective)
        entry = texts.get(identity)
        if entry is None or entry["done"] < entry["samples"]:
            message = "it is of another text, or of other sequences of it"
            if entry is not None:
                message = f"it has {entry['done']:,} of {entry['samples']:,} sequences"
            hint = "type the same options of data and train.seq_len: python -m forge.teach"
            raise ValueError(f"objective.offline={folder}: {message}; {hint} {folder}")
        objective.stored[store.fingerprint] = Stored(folder / identity[:16])


def _manifest(config: Config, tokenizer: Tokenizer, k: int, number_format: str) -> dict[str, Any]:
    section: Any = config.objective
    path = found_place(section.teacher)
    if isinstance(path, Exception):
        raise path
    return {
        "format": FORMAT,
        "k": min(k, tokenizer.vocab_size),
        "number_format": number_format,
        "temperature": section.temperature.value,
        "tokenizer": tokenizer.fingerprint,
        "teacher": identified_weights(path),
    }


def _begun(out: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """The texts of a folder begun earlier by the same teacher. Raises ValueError."""
    manifest["texts"] = {}
    if not (out / MANIFEST).exists():
        if out.is_dir() and any(out.iterdir()):
            raise ValueError(f"{out} has other files in it; name a new folder")
        out.mkdir(parents=True, exist_ok=True)
        return manifest["texts"]
    begun = read_json(out / MANIFEST)
    if {**begun, "texts": {}} != manifest:
        differing = [name for name in manifest if begun.get(name) != manifest[name]]
        differing = ", ".join(name for name in differing if name != "texts")
        raise ValueError(f"{out} is of another {differing}; name a new folder, or remove it")
    manifest["texts"] = begun["texts"]
    return manifest["texts"]


def _identity(config: Config, text: Mixture, name: str, objective: Objective) -> str:
    """Hash of a text and of the context in which a run reads each token of it."""
    store: Any = text.stores[name]
    sequences: dict[str, Any] = {"seq_len": config.train.seq_len}
    if name in text.plans:
        plan = text.plans[name]
        arrays = (np.ascontiguousarray(array, dtype="<i8") for array in (plan.pieces, plan.begins))
        sequences["plan"] = [hash_json([array.tobytes().hex()]) for array in arrays]
    ends = end_of_text(config, objective)
    return hash_json({"text": store.fingerprint, "sequences": sequences, "apart": ends})


def _samples(config: Config, text: Mixture, name: str, objective: Objective) -> Samples:
    """All sequences of a text, as a run reads them."""
    store: Any = text.stores[name]
    seq_len, plan, last = config.train.seq_len, text.plans.get(name), len(store) - 1

    def find(number: int) -> tuple[TokenStore, Any]:
        if plan is not None:
            return store, plan.pieces_of(number)
        start = number * seq_len
        return store, [(start, min(start + seq_len + 1, last + 1))]

    return Samples(
        seq_len=seq_len,
        numbers=range(len(plan) if plan is not None else max(-(-last // seq_len), 0)),
        find=find,
        masked=store.counted is not None,
        end_of_text=end_of_text(config, objective),
    )


def _fill(
    teacher: nn.Module,
    store: TokenStore,
    samples: Samples,
    folder: Path,
    entry: dict[str, Any],
    manifest: dict[str, Any],
    objective: Objective,
    config: Config,
    device: torch.device,
    out: Path,
) -> None:
    """Write the rows of all sequences from the first missing one on, a part at a time."""
    k, size = manifest["k"], config.eval.batch_size or config.train.batch_size
    entry["samples"] = len(samples)
    arrays = _arrays(folder, len(store), k, manifest)
    first, head = entry["done"], head_of(teacher)
    if first < len(samples):
        say(f"{len(samples) - first:,} sequences to read")
    for start in range(first, len(samples), size):
        stop = min(start + size, len(samples))
        numbers = range(start, stop)
        part = _part(samples, numbers)
        batch = {n: v.to(device) for n, v in objective.collate(part).items()}
        for sample, rows in zip(part, _likeliest(teacher, head, batch, manifest), strict=True):
            for array, values in zip(arrays, rows, strict=True):
                _place(array, sample.pieces, values)
        is_part_done = (stop - first) // size % BATCHES_A_PART == 0
        if is_part_done or stop == len(samples):
            for array in arrays:
                array.flush()
            entry["done"] = stop
            write_json(out / MANIFEST, manifest)


def _arrays(folder: Path, tokens: int, k: int, manifest: dict[str, Any]) -> list[Any]:
    """The files of a text, mapped for writing."""
    wide = np.uint16 if manifest["vocabulary"] <= 1 << 16 else np.uint32
    kinds = (
        (IDS, wide, (tokens, k)),
        (LOGPS, np.dtype(manifest["number_format"]), (tokens, k + 1)),
    )
    if not all((folder / name).is_file() for name, *_ in kinds):
        folder.mkdir(parents=True, exist_ok=True)
        for name, dtype, shape in kinds:
            np.lib.format.open_memmap(folder / name, mode="w+", dtype=dtype, shape=shape)
    return [np.lib.format.open_memmap(folder / name, mode="r+") for name, *_ in kinds]


def _part(samples: Samples, numbers: range) -> Samples:
    return Samples(
        seq_len=samples.seq_len,
        numbers=numbers,
        find=samples.find,
        masked=samples.masked,
        end_of_text=samples.end_of_text,
    )


def _place(array: Any, pieces: Any, values: np.ndarray) -> None:
    """Write the rows of a sample's tokens but the last one."""
    row, left = 0, sum(stop - start for start, stop in pieces) - 1
    for start, stop in pieces:
        count = min(stop - start, left - row)
        array[start : start + count] = values[row : row + count]
        row += count


@torch.no_grad()
def _likeliest(
    teacher: Any, head: Head, batch: dict[str, Tensor], manifest: dict[str, Any]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The k likeliest tokens of each row of a batch, [seq, k], and the log-probabilities of these
    and of all others together, [seq, k + 1].
    """
    k, vocabulary = manifest["k"], manifest["vocabulary"]
    for states in hidden_of(teacher, without_noise(batch)):
        logits = head.logits(states)[:, :vocabulary].float() / manifest["temperature"]
        log_p = log_softmax(logits, Head(head.weight))
        logps, ids = log_p.topk(k, -1)
        rest = log_p.scatter(1, ids, -torch.inf).logsumexp(-1, keepdim=True).clamp(min=-1e4)
        yield ids.cpu().numpy(), torch.cat([logps, rest], 1).cpu().numpy()
