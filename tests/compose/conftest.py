"""What the tests of the config side share: no launcher around them, and no login to W&B."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """To W&B: what whoever runs the tests has is out of sight."""
    for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_BASE_URL", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", "/nowhere/netrc")
    monkeypatch.setenv("WANDB_CONFIG_DIR", "/nowhere")
