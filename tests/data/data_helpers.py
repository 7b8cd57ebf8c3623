"""Sections built by their targets, and small texts; also for processes that tests start."""

from __future__ import annotations

import hashlib
import importlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from forge.config.data.text import Text
from forge.data.preparing.shard_folder import prepare_shards

TEXT = "the a of sea ship whale white captain said and to in was his it man"
WORDS = TEXT.split()


def build_section(section: Any, *, path: str, **runtime: Any) -> Any:
    """The calling convention of components, whatever the place."""
    module, name = section._target_.rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(section, **runtime)


def make_prose(n_lines: int, seed: int = 0) -> str:
    """Lines of words, all different."""
    draw = random.Random(seed)
    return "".join(
        f"{i} " + " ".join(draw.choices(WORDS, k=8)) + f" {draw.random()}\n" for i in range(n_lines)
    )


def written(path: Path, documents: list[str]) -> Text:
    """A text of JSON lines, with a cache beside it."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return Text(path=str(path), cache_dir=str(path.parent / "cache"), val_fraction=0.2)


def shards_of(out: Path, data: Any, section: Any, **options: Any) -> dict[str, Any]:
    """The manifest of what forge.prepare makes, in this process alone unless told otherwise."""
    return prepare_shards(out, data, section, build=build_section, **({"processes": 1} | options))


def files(out: Path) -> dict[str, str]:
    """The hash of each file below a directory."""
    found = (path for path in out.rglob("*") if path.is_file())
    return {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found
    }


def tokens(out: Path, split: str) -> list[int]:
    """By numpy and the index alone."""
    index = json.loads((out / split / "index.json").read_text())
    parts = [np.fromfile(out / split / s["file"], index["dtype"]) for s in index["shards"]]
    assert [len(part) for part in parts] == [shard["n_tokens"] for shard in index["shards"]]
    return np.concatenate(parts).tolist()
