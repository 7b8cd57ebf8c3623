"""A tiny Llama as a folder, once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_folder import write_llama


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("hf") / "llama")
