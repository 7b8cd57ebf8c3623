"""Damaged tensors found while reading a checkpoint, agreed by all ranks."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from forge.rundir.checkpoints import Damaged


class DamagedBytes(ValueError):
    """Missing or changed bytes in a file; the message names the file."""


@contextmanager
def share_damage(path: Path, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Raise damage found on one rank of the group as Damaged on all ranks; a collective.

    Put around the reading of a checkpoint, since ranks would else wait for each other. A disk
    without bytes to give counts as damage. Any other error is raised by its rank at once.
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
        fault = next((fault_of_rank for fault_of_rank in faults if fault_of_rank is not None), None)
    if fault is not None:
        raise Damaged(*fault)
