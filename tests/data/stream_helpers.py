"""A corpus that is streamed, and what loaders read of it."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_helpers import build_section, make_prose

from forge.config.data.text import HuggingFace
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.batches.loader import TrainLoader
from forge.data.batches.streams import joined
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.objectives.next_token import NextToken

SEQ, EOS = 16, 256


N_FILES, N_ROWS = 3, 40


class Text(NextToken):
    def __init__(self) -> None:
        pass


def prose(number: int) -> str:
    """A document of 5 to 70 characters; some are empty, some are the same."""
    number = number if number % 11 else 0
    draw = random.Random(number)
    return "" if number % 17 == 5 else make_prose(2, number)[: draw.randint(5, 70)]


TEXTS = [[prose(N_ROWS * file + row) for row in range(N_ROWS)] for file in range(N_FILES)]


def streamed(path: Path, **options: Any) -> Prepared:
    common: dict[str, Any] = {"path": str(path), "cache_dir": f"{path.parent}/cache"}
    common |= {"hf_streaming": True, "shuffle_buffer": 7}
    section = HuggingFace(**(common | options))
    return prepare_tokens(section, Bytes(), build=build_section)


def loaders(text: Any, ranks: int, *, batch: int = 12, workers: int = 0) -> list[TrainLoader]:
    """Of all ranks; a step has 12 samples, whatever the ranks."""
    return [
        TrainLoader(
            text,
            Text(),  # type: ignore[abstract]
            seq_len=SEQ,
            seed=5,
            batch_size=batch // ranks,
            grad_accum_steps=12 // batch,
            num_ranks=ranks,
            rank=rank,
            num_workers=workers,
        )
        for rank in range(ranks)
    ]


def rows(found: list[TrainLoader], steps: int) -> list[list[int]]:
    """The tokens of each sample, in order."""
    made = []
    for _ in range(steps):
        parts = [next(loader) for loader in found]
        for batches in zip(*(part.batches for part in parts), strict=True):
            made += [row for batch in batches for row in batch["tokens"].tolist()]
    return made


def closed(found: list[TrainLoader]) -> dict[str, Any]:
    """The state that a checkpoint has, of loaders that have ended."""
    for loader in found:
        loader.close()
    return joined([loader.state_dict() for loader in found])


def ids(text: str) -> list[int]:
    return [*text.encode(), EOS]


def kept(prepared: Prepared, texts: list[str]) -> list[str]:
    """Those that are trained on, by what the validation split has."""
    held = prepared.val.read(0, len(prepared.val)).tolist()
    ends = [-1, *(at for at, token in enumerate(held) if token == EOS)]
    of_val = {tuple(held[a + 1 : b + 1]) for a, b in pairwise(ends)}
    return [text for text in texts if text and tuple(ids(text)) not in of_val]


def documents(tokens: list[int]) -> list[str]:
    assert tokens[-1] == EOS
    found: list[bytearray] = [bytearray()]
    for token in tokens:
        if token == EOS:
            found.append(bytearray())
        else:
            found[-1].append(token)
    return [one.decode() for one in found[:-1]]
