"""Small token stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.data.shards import IndexedStore, ShardWriter


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
