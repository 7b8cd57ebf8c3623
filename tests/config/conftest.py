"""What the tests of the config side share: no launcher around them."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
