"""Small token stores, and a corpus to stream."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from stream_helpers import TEXTS

from forge.data.tokens.shards import IndexedStore, ShardWriter


@pytest.fixture
def store(tmp_path: Path) -> Callable[..., IndexedStore]:
    def make(
        tokens: Any, *, vocab_size: int = 1 << 16, shard_tokens: int = 1 << 28
    ) -> IndexedStore:
        directory = tmp_path / f"store{len(list(tmp_path.glob('store*')))}"
        writer = ShardWriter(directory, vocab_size=vocab_size, shard_tokens=shard_tokens)
        writer.append(np.asarray(tokens))
        writer.close(n_bytes=3 * len(tokens), n_documents=1)
        return IndexedStore(directory)

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet in row groups of 10."""
    made = tmp_path_factory.mktemp("corpus")
    for number, texts in enumerate(TEXTS):
        frame = pandas.DataFrame({"id": range(len(texts)), "text": texts})
        frame.to_parquet(made / f"{number}.parquet", row_group_size=10)
    return made
