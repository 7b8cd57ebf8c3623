"""LoRA adapters in PEFT's format: adapter_config.json, and PEFT's tensor names, both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge.config.adapters.adapter import MAGNITUDE, A, B, LoRA, adapter_name
from forge.config.model.tensors import BIAS, EMBEDDING, HEAD
from forge.families.table import Row

PREFIX = "base_model.model."
NO_EXPERTS = (
    "adapters of experts have no names in PEFT that all its versions read; "
    "merge them: --format hf --merge"
)
Read = Callable[[str], Tensor]
"""Returns the whole tensor under a name of forge, on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A module of PEFT's model, with forge's matrices inside of the module and their ranks."""

    name: str
    rows: tuple[Row, ...]
    ranks: tuple[int, ...]

    @property
    def rank(self) -> int:
        return sum(self.ranks)

    @property
    def key(self) -> str:
        return f"{PREFIX}{self.name}"

    @property
    def embedding(self) -> bool:
        return self.rows[0].ours.role == EMBEDDING

    @property
    def height(self) -> int:
        """Rows of the module's matrix."""
        return sum(row.ours.shape[0] for row in self.rows)


def adapted_modules(rows: Sequence[Row], section: LoRA) -> list[Place]:
    """Return every module with an adapter. Raises ValueError for adapters without names in PEFT."""
    modules: dict[str, list[Row]] = {}
    for row in rows:
        if row.ours.name.endswith(".weight") or row.ours.of_experts:
            modules.setdefault(module_of(row), []).append(row)
    adapted = []
    for name, parts in modules.items():
        ranks = tuple(section.rank_of(row.ours) for row in parts)
        if not any(ranks):
            continue
        if any(row.ours.of_experts for row in parts):
            raise ValueError(f"{parts[0].ours.name}: {NO_EXPERTS}")
        if any(row.theirs.dim for row in parts) or (section.dora and not all(ranks)):
            message = f"{name} of theirs holds several of ours, of which not all have an adapter"
            raise ValueError(f"{message}; merge them: --format hf --merge")
        adapted.append(Place(name=name, rows=tuple(parts), ranks=ranks))
    return adapted


def tensors(
    rows: Sequence[Row], section: LoRA, read: Read, base: Read, whole: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Yield PEFT's tensors with their names.

    base: reads the weights beside the adapters. whole: forge's names of parameters trained and
    saved whole.

    Token tables with added rows are written even where untrained, as PEFT does with resized
    embeddings: PEFT reads the table into the base.
    """
    adapted = {target.name for target in adapted_modules(rows, section)}
    for target in adapted_modules(rows, section):
        yield from _write(target, section, read)
    for row in rows:
        if row.ours.new[1] and row.ours.name not in whole:
            module = module_of(row)
            inner = f"{module}.base_layer.weight" if module in adapted else row.theirs.name
            yield f"{PREFIX}{inner}", _turned(row, base(row.ours.name))
    for row, name in saved_whole(rows, section, whole):
        values = read(row.ours.name)
        yield name, _turned(row, values)


def saved_whole(
    rows: Sequence[Row], section: LoRA, whole: Collection[str]
) -> Iterator[tuple[Row, str]]:
    """Yield parameters trained and saved whole, with PEFT's names.

    whole: forge's names. Raises ValueError for parameters kept by PEFT in another way than by
    forge.

    A table shared with the head gets the name by which PEFT reads it into the base, for embedding
    and head. As one of modules_to_save PEFT would copy the table for the embedding alone.
    """
    adapted = {target.name for target in adapted_modules(rows, section)}
    for row in rows:
        if row.ours.name not in whole:
            continue
        if row.index is not None or row.theirs.stacked:
            message = f"{row.ours.name} is a part of {row.theirs.name} of theirs"
            raise ValueError(f"{message}, which PEFT keeps whole; merge it: --format hf --merge")
        name = row.theirs.name
        if row.ours.role == BIAS and name.removesuffix(".bias") in adapted:
            name = f"{name.removesuffix('bias')}base_layer.bias"
        yield row, f"{PREFIX}{name}"


def read_whole_parameters(
    rows: Sequence[Row], section: LoRA, stored: Mapping[str, Tensor], copied: Sequence[str]
) -> dict[str, Tensor]:
    """Read the parameters trained whole from a folder, by forge's names.

    copied: modules_to_save of the folder. Raises KeyError for a missing parameter, ValueError for
    parameters kept by PEFT in another way than by forge.
    """
    trained = {row.ours.name for row in rows if section.trains(row.ours)}
    tables = () if _has_head(rows) else [row for row in rows if row.ours.role == EMBEDDING]
    for row in tables:
        is_copied = any(f".{module_of(row)}".endswith(f".{name}") for name in copied)
        if row.ours.name in trained and is_copied:
            message = f"{row.ours.name} is the head too, which PEFT leaves as it was"
            raise ValueError(f"{message}; merge the adapters into their base with PEFT")
    return {
        row.ours.name: _turned(row, stored[name])
        for row, name in saved_whole(rows, section, trained)
    }


def unread(
    rows: Sequence[Row], section: LoRA, stored: Mapping[str, Tensor]
) -> dict[str, Row | None]:
    """Return the tensors of a folder outside of adapters and of parameters trained whole.

    Each tensor comes with forge's weight of the same stored name, or with None.
    """
    trained = {row.ours.name for row in rows if section.trains(row.ours)}
    taken = {name for target in adapted_modules(rows, section) for name in _names(target)}
    taken |= {f"{t.key}.{MAGNITUDE}_vector" for t in adapted_modules(rows, section) if section.dora}
    taken |= {name for _, name in saved_whole(rows, section, trained)}
    by_name = {f"{PREFIX}{row.theirs.name}": row for row in rows}
    untaken = [name for name in stored if name not in taken]
    return {name: by_name.get(name.replace(".base_layer.", ".")) for name in untaken}


def _turned(row: Row, values: Tensor) -> Tensor:
    return values.transpose(-1, -2) if row.theirs.transposed and values.dim() > 1 else values


def adapter_config(
    rows: Sequence[Row], section: LoRA, whole: Sequence[str], base: str | None
) -> dict[str, Any]:
    """Return the content of adapter_config.json."""
    adapted = adapted_modules(rows, section)
    rank = Counter(target.rank for target in adapted).most_common(1)[0][0]
    modules = {row.ours.name: module_of(row) for row in rows}
    tied = {row.ours.name for row in rows if row.ours.role == EMBEDDING and not _has_head(rows)}
    saved = [modules[name] for name in whole if not name.endswith("bias") and name not in tied]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": section.alpha,
        "lora_dropout": section.dropout,
        "use_rslora": section.rank_stabilized,
        "use_dora": section.dora,
        "bias": {"lora": "lora_only"}.get(section.bias, section.bias),
        "fan_in_fan_out": any(row.theirs.transposed for target in adapted for row in target.rows),
        "target_modules": _targets(rows, adapted),
        "rank_pattern": _by_name({target.name: target.rank for target in adapted}, but=rank),
        "alpha_pattern": {},
        "modules_to_save": saved or None,
    }


def read_place(module: Place, section: LoRA, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a module's tensors by forge's names. Raises KeyError for a missing tensor."""
    a, b = (stored[name] for name in _names(module))
    tensors = {}
    for row in module.rows:
        # every matrix of forge has all of A, and a part of the rows of B
        tensors[adapter_name(row.ours, A)] = a
        tensors[adapter_name(row.ours, B)] = b if row.index is None else b[torch.tensor(row.index)]
        if section.dora:
            lengths = stored[f"{module.key}.{MAGNITUDE}_vector"].flatten()
            part = lengths if row.index is None else lengths[torch.tensor(row.index)]
            tensors[adapter_name(row.ours, MAGNITUDE)] = part
    return tensors


def _write(module: Place, section: LoRA, read: Read) -> Iterator[tuple[str, Tensor]]:
    """Yield A and B of a module.

    With several matrices of forge inside, A is stacked by rows and B is written in blocks.
    """
    first = module.rows[0]
    if len(module.rows) == 1 and first.index is None:
        a, b = read(adapter_name(first.ours, A)), read(adapter_name(first.ours, B))
        lengths = read(adapter_name(first.ours, MAGNITUDE)) if section.dora else None
    else:
        a, b, lengths = _joined(module, section, read)
    yield from zip(_names(module), (a, b), strict=True)
    if lengths is not None:
        yield f"{module.key}.{MAGNITUDE}_vector", lengths


def _joined(module: Place, section: LoRA, read: Read) -> tuple[Tensor, Tensor, Tensor | None]:
    above, lengths = [], None
    b = torch.zeros(module.height, module.rank)
    start = 0
    for row, rank in zip(module.rows, module.ranks, strict=True):
        if not rank:
            continue
        index = torch.arange(row.ours.shape[0]) if row.index is None else torch.tensor(row.index)
        above.append(read(adapter_name(row.ours, A)).float())
        # PEFT scales the whole product by the rank of the module
        share = section.scale(rank) / section.scale(module.rank)
        b[index, start : start + rank] = read(adapter_name(row.ours, B)).float() * share
        if section.dora:
            lengths = torch.zeros(module.height) if lengths is None else lengths
            lengths[index] = read(adapter_name(row.ours, MAGNITUDE)).float()
        start += rank
    return torch.cat(above), b, lengths


def _names(module: Place) -> tuple[str, str]:
    if module.embedding:
        return f"{module.key}.lora_embedding_A", f"{module.key}.lora_embedding_B"
    return f"{module.key}.lora_A.weight", f"{module.key}.lora_B.weight"


def _has_head(rows: Sequence[Row]) -> bool:
    return any(row.ours.role == HEAD for row in rows)


def module_of(row: Row) -> str:
    """Return the module of a stored tensor."""
    return row.theirs.name.rpartition(".")[0]


def _targets(rows: Sequence[Row], found: Sequence[Place]) -> list[str]:
    return sorted(set(target_names(rows, [target.name for target in found]).values()))


def _by_name(ranks: Mapping[str, int], but: int) -> dict[str, int]:
    """Return the ranks other than `but`, by the last names of modules.

    Modules with one last name and different ranks are listed by their whole names.
    """
    last = {name: name.rpartition(".")[2] for name in ranks}
    alike = {word: {n for name, n in ranks.items() if last[name] == word} for word in last.values()}
    short = {last[n] if len(alike[last[n]]) == 1 else n: rank for n, rank in ranks.items()}
    return {name: rank for name, rank in short.items() if rank != but}


def target_names(rows: Sequence[Row], adapted: Collection[str]) -> dict[str, str]:
    """Return short names of the adapted modules by their whole names.

    The short name is the last part, where all modules with this part are adapted; else the whole
    name.
    """
    unadapted = {module_of(row).rpartition(".")[2] for row in rows if module_of(row) not in adapted}
    last_names = {name: name.rpartition(".")[2] for name in adapted}
    return {name: name if last in unadapted else last for name, last in last_names.items()}
