"""Adapters as PEFT keeps them: adapter_config.json, and its names for our tensors, both ways."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge.config.adapters.adapter import MAGNITUDE, A, B, LoRA, name_of
from forge.config.model.tensors import BIAS, EMBEDDING, HEAD
from forge.families.table import Row

PREFIX = "base_model.model."
NO_EXPERTS = (
    "adapters of experts have no names in PEFT that all its versions read; "
    "merge them: --format hf --merge"
)
Read = Callable[[str], Tensor]
"""The whole tensor of a name of ours, on the CPU."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """One module of theirs, with the matrices of ours that are in it, and their ranks here."""

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
        """Rows of their matrix."""
        return sum(one.ours.shape[0] for one in self.rows)


def places(rows: Sequence[Row], section: LoRA) -> list[Place]:
    """Every module of theirs beside which something stands. Raises ValueError for what PEFT has no
    names for.
    """
    modules: dict[str, list[Row]] = {}
    for one in rows:
        if one.ours.name.endswith(".weight") or one.ours.of_experts:
            modules.setdefault(module_of(one), []).append(one)
    found = []
    for name, parts in modules.items():
        ranks = tuple(section.rank_of(one.ours) for one in parts)
        if not any(ranks):
            continue
        if any(one.ours.of_experts for one in parts):
            raise ValueError(f"{parts[0].ours.name}: {NO_EXPERTS}")
        if any(one.theirs.dim for one in parts) or (section.dora and not all(ranks)):
            what = f"{name} of theirs holds several of ours, of which not all have an adapter"
            raise ValueError(f"{what}; merge them: --format hf --merge")
        found.append(Place(name=name, rows=tuple(parts), ranks=ranks))
    return found


def tensors(
    rows: Sequence[Row], section: LoRA, read: Read, base: Read, whole: Sequence[str]
) -> Iterator[tuple[str, Tensor]]:
    """Their tensors with their names. base: reads what adapters stand beside. whole: names of ours
    that are trained and kept whole.

    Tables with rows for tokens that were added are carried where they are not trained, as PEFT does
    with embeddings that were resized: it reads them into the base.
    """
    adapted = {one.name for one in places(rows, section)}
    for one in places(rows, section):
        yield from _write(one, section, read)
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
    """Parameters that are trained and saved whole, with the names of theirs. whole: names of ours.
    Raises ValueError for what PEFT does not keep as forge does.

    A table that is the head too has the name by which PEFT reads it into the base, so that both
    have it: of modules_to_save it would make a copy for the embedding alone.
    """
    adapted = {one.name for one in places(rows, section)}
    for row in rows:
        if row.ours.name not in whole:
            continue
        if row.index is not None or row.theirs.stacked:
            what = f"{row.ours.name} is a part of {row.theirs.name} of theirs"
            raise ValueError(f"{what}, which PEFT keeps whole; merge it: --format hf --merge")
        name = row.theirs.name
        if row.ours.role == BIAS and name.removesuffix(".bias") in adapted:
            name = f"{name.removesuffix('bias')}base_layer.bias"
        yield row, f"{PREFIX}{name}"


def read_whole(
    rows: Sequence[Row], section: LoRA, stored: Mapping[str, Tensor], copied: Sequence[str]
) -> dict[str, Tensor]:
    """Our parameters that are trained whole, by our names, of a folder. copied: modules_to_save of
    the folder. Raises KeyError for one that is missing, ValueError for what PEFT does not keep as
    forge does.
    """
    trained = {row.ours.name for row in rows if section.trains(row.ours)}
    tables = () if _has_head(rows) else [row for row in rows if row.ours.role == EMBEDDING]
    for row in tables:
        is_copied = any(f".{module_of(row)}".endswith(f".{name}") for name in copied)
        if row.ours.name in trained and is_copied:
            what = f"{row.ours.name} is the head too, which PEFT leaves as it was"
            raise ValueError(f"{what}; merge the adapters into their base with PEFT")
    return {
        row.ours.name: _turned(row, stored[name])
        for row, name in saved_whole(rows, section, trained)
    }


def unread(
    rows: Sequence[Row], section: LoRA, stored: Mapping[str, Tensor]
) -> dict[str, Row | None]:
    """Tensors of a folder that neither an adapter nor a parameter that is trained whole takes, each
    with the weight of ours that it is another value of, if it is one.
    """
    trained = {row.ours.name for row in rows if section.trains(row.ours)}
    taken = {name for one in places(rows, section) for name in _names(one)}
    taken |= {f"{one.key}.{MAGNITUDE}_vector" for one in places(rows, section) if section.dora}
    taken |= {name for _, name in saved_whole(rows, section, trained)}
    known = {f"{PREFIX}{row.theirs.name}": row for row in rows}
    left = [name for name in stored if name not in taken]
    return {name: known.get(name.replace(".base_layer.", ".")) for name in left}


def _turned(row: Row, values: Tensor) -> Tensor:
    return values.transpose(-1, -2) if row.theirs.transposed and values.dim() > 1 else values


def content(
    rows: Sequence[Row], section: LoRA, whole: Sequence[str], base: str | None
) -> dict[str, Any]:
    """adapter_config.json."""
    found = places(rows, section)
    rank = Counter(one.rank for one in found).most_common(1)[0][0]
    named = {one.ours.name: module_of(one) for one in rows}
    tied = {one.ours.name for one in rows if one.ours.role == EMBEDDING and not _has_head(rows)}
    saved = [named[name] for name in whole if not name.endswith("bias") and name not in tied]
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
        "fan_in_fan_out": any(one.theirs.transposed for place in found for one in place.rows),
        "target_modules": _targets(rows, found),
        "rank_pattern": _by_name({one.name: one.rank for one in found}, but=rank),
        "alpha_pattern": {},
        "modules_to_save": saved or None,
    }


def read_place(one: Place, section: LoRA, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors of a module of theirs, by our names. Raises KeyError for one that is missing."""
    a, b = (stored[name] for name in _names(one))
    found = {}
    for row in one.rows:
        # each of ours has all of A, and its own rows of B
        found[name_of(row.ours, A)] = a
        found[name_of(row.ours, B)] = b if row.index is None else b[torch.tensor(row.index)]
        if section.dora:
            lengths = stored[f"{one.key}.{MAGNITUDE}_vector"].flatten()
            own = lengths if row.index is None else lengths[torch.tensor(row.index)]
            found[name_of(row.ours, MAGNITUDE)] = own
    return found


def _write(one: Place, section: LoRA, read: Read) -> Iterator[tuple[str, Tensor]]:
    """A and B of a module that has several of ours: below each other, and in blocks."""
    first = one.rows[0]
    if len(one.rows) == 1 and first.index is None:
        a, b = read(name_of(first.ours, A)), read(name_of(first.ours, B))
        lengths = read(name_of(first.ours, MAGNITUDE)) if section.dora else None
    else:
        a, b, lengths = _joined(one, section, read)
    yield from zip(_names(one), (a, b), strict=True)
    if lengths is not None:
        yield f"{one.key}.{MAGNITUDE}_vector", lengths


def _joined(one: Place, section: LoRA, read: Read) -> tuple[Tensor, Tensor, Tensor | None]:
    above, lengths = [], None
    b = torch.zeros(one.height, one.rank)
    start = 0
    for row, rank in zip(one.rows, one.ranks, strict=True):
        if not rank:
            continue
        index = torch.arange(row.ours.shape[0]) if row.index is None else torch.tensor(row.index)
        above.append(read(name_of(row.ours, A)).float())
        # PEFT multiplies all of it by what it makes of the rank of the whole
        share = section.scale(rank) / section.scale(one.rank)
        b[index, start : start + rank] = read(name_of(row.ours, B)).float() * share
        if section.dora:
            lengths = torch.zeros(one.height) if lengths is None else lengths
            lengths[index] = read(name_of(row.ours, MAGNITUDE)).float()
        start += rank
    return torch.cat(above), b, lengths


def _names(one: Place) -> tuple[str, str]:
    if one.embedding:
        return f"{one.key}.lora_embedding_A", f"{one.key}.lora_embedding_B"
    return f"{one.key}.lora_A.weight", f"{one.key}.lora_B.weight"


def _has_head(rows: Sequence[Row]) -> bool:
    return any(row.ours.role == HEAD for row in rows)


def module_of(one: Row) -> str:
    """The module of theirs that a tensor is in."""
    return one.theirs.name.rpartition(".")[0]


def _targets(rows: Sequence[Row], found: Sequence[Place]) -> list[str]:
    return sorted(set(target_names(rows, [one.name for one in found]).values()))


def _by_name(ranks: Mapping[str, int], but: int) -> dict[str, int]:
    """Ranks other than `but` by the last names of modules where all of them have the same; else by
    whole ones.
    """
    last = {name: name.rpartition(".")[2] for name in ranks}
    alike = {word: {n for name, n in ranks.items() if last[name] == word} for word in last.values()}
    named = {last[n] if len(alike[last[n]]) == 1 else n: rank for n, rank in ranks.items()}
    return {name: rank for name, rank in named.items() if rank != but}


def target_names(rows: Sequence[Row], adapted: Collection[str]) -> dict[str, str]:
    """Last names of modules by the whole ones, where all that have them are adapted; else these."""
    others = {module_of(one).rpartition(".")[2] for one in rows if module_of(one) not in adapted}
    named = {name: name.rpartition(".")[2] for name in adapted}
    return {name: name if last in others else last for name, last in named.items()}
