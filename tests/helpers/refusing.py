"""What is wrong with overrides: the problems and warnings of one resolution, on a machine with no
GPU unless told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from forge import cli
from forge.compose.many import Composer
from forge.config.problems import ConfigError, Problem
from forge.planning.world import Devices
from forge.resolve import resolve as resolving
from forge.resolve.resolve import Resolution
from forge.resolve.rules import devices as device_rules

SMALL = [
    "model.dim=64",
    "model.n_layers=2",
    "model.n_heads=4",
    "model.n_kv_heads=null",
    "model.ffn_hidden_dim=null",
    "model.vocab_size=300",
    "model.max_seq_len=128",
    "tokenizer.vocab_size=300",
    "train.seq_len=32",
    "train.batch_size=2",
    "train.grad_accum_steps=1",
    "train.max_steps=100",
    "scheduler.warmup_steps=10",
    "run.device=cpu",
    "parallel=single",
]
COMPOSER = Composer()


def resolved(
    overrides: Sequence[str] = (),
    *,
    gpus: int = 0,
    memory: int | None = None,
    world_size: int | None = None,
    torch: tuple[int, int] | None = (2, 13),
    apple: bool = False,
    config_dirs: Sequence[str] = (),
    as_point: bool = False,
) -> Resolution:
    """Compose and resolve as the verbs do, on a machine with so many GPUs, of so many bytes each,
    and that torch.

    as_point: as a sweep does for its points, which is as good (test_compose_many.py) and takes a
    tenth of the time.
    """
    devices = Devices(gpus=gpus, source="the test", memory=memory, torch=torch, apple=apple)
    with (
        patch.object(resolving, "find_devices", lambda: devices),
        patch.object(device_rules, "device_memory", lambda _: 16 << 30),
    ):
        if as_point:
            return _as_point(overrides, world_size)
        return cli.resolved(list(overrides), config_dirs, world_size=world_size)[1]


def _as_point(overrides: Sequence[str], world_size: int | None) -> Resolution:
    composition, config = COMPOSER(overrides)
    known = tuple(composition.problems)
    return resolving.resolve(config, known=known, origin=composition.origin, world_size=world_size)


def problems(overrides: Sequence[str] = (), **where: Any) -> list[Problem]:
    """All problems, or the warnings when there are none; `where` as for `resolved`."""
    try:
        return list(resolved(overrides, **where).warnings)
    except ConfigError as error:
        return list(error.problems)


def only(overrides: Sequence[str], **where) -> Problem:
    """The one problem of these overrides."""
    found = problems(overrides, **where)
    assert len(found) == 1, found
    return found[0]
