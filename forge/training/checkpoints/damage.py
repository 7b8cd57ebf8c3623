"""Tensors that turn out damaged as they are read: which checkpoint it is, agreed by all ranks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from forge.rundir.checkpoints import Damaged


class DamagedBytes(ValueError):
    """Bytes that are missing, or not those that were saved, in a file that the message names."""


@contextmanager
def checked(path: Path, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Around the reading of a checkpoint: damage that one rank of the group finds is raised as
    Damaged by all of them, so that none waits for another; a collective.

    A disk that gives no bytes counts as damage. Whatever else a rank raises, it raises at once.
    """
    fault = None
    try:
        yield
    except Damaged as error:
        fault = error.path, error.fault
    except DamagedBytes as error:
        fault = path, str(error).replace(f"{path}/", "")
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        name = str(error.filename).replace(f"{path}/", "")
        fault = path, f"{name} cannot be read: {error.strerror}"
    if group is not None:
        faults = [fault] * dist.get_world_size(group)
        dist.all_gather_object(faults, fault, group=group)
        fault = next((one for one in faults if one is not None), None)
    if fault is not None:
        raise Damaged(*fault)
