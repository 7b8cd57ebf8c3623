"""The table of MaxText's names of models."""

from __future__ import annotations

import models
import pytest

NAMES = models.names()


def test_each_of_the_68_names_has_its_preset_or_its_reason() -> None:
    found = [one.name for one in NAMES]
    assert len(found) == len(set(found)) == 68
    for one in NAMES:
        assert one.ours or one.note.startswith(("later", "not taken")), one.name
        assert not one.ours or one.ours.startswith("model="), one.name


@pytest.mark.parametrize("one", [one for one in NAMES if " " in one.ours], ids=lambda one: one.name)
def test_what_is_said_by_overrides_is_accepted(one: models.Name) -> None:
    """It composes and resolves."""
    chosen = models.forge.compose([*one.ours.split(), "tokenizer=bytes", "parallel.dp_shard=1"])
    chosen.validate(world_size=1)
