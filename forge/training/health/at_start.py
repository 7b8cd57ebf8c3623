"""The health check at the start of a run: devices compute, ranks agree, a checkpoint has room.

A fault is said before the first step, with its rank and host.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from forge.config.numbers import byte_size
from forge.config.root import Config
from forge.parallel.ranks import Ranks
from forge.rundir import provenance, saved_config

SIZE = 64  # of the product's matrices: whole numbers far below 2**24, exact in fp32
FAULT, CONFIG = "device", "config"
FIXES = {
    FAULT: "look at the device (forge.doctor), or leave that host out",
    CONFIG: "all hosts need one file system with the run directory",
}
SOFTWARE = "every host needs the same software"


def check_start(run_dir: Path, device: torch.device, ranks: Ranks) -> None:
    """Compare all ranks with the main rank. Raises ValueError on every rank, with the first rank
    that differs, or whose device computes wrongly.
    """
    facts: dict[str, str] = {FAULT: device_fault(device)}
    if ranks.size > 1:
        facts |= facts_of_rank(run_dir)
    hosts_and_facts = ranks.of_all((platform.node(), facts))
    if fault := disagreement(hosts_and_facts):
        raise ValueError(fault)


def device_fault(device: torch.device) -> str:
    """The fault of a device that multiplies small whole numbers wrongly, or not at all."""
    try:
        numbers = torch.arange(SIZE * SIZE).view(SIZE, SIZE) % 7
        product = (numbers.to(device, torch.float32) @ numbers.T.to(device, torch.float32)).cpu()
        if torch.equal(product.long(), numbers @ numbers.T):
            return ""
        return f"{device} computes a product of small whole numbers wrongly"
    except RuntimeError as error:
        return f"{device} cannot compute: {str(error).splitlines()[0]}"


def facts_of_rank(run_dir: Path) -> dict[str, str]:
    """Versions, commit and config of this rank, by name."""
    versions = {name: version or "none" for name, version in provenance.versions().items()}
    content = saved_config.newest(run_dir).read_bytes()
    return {
        "Python": platform.python_version(),
        **versions,
        "forge's commit": provenance.revision(provenance.OURS) or "none",
        CONFIG: hashlib.sha256(content).hexdigest()[:12],
    }


def disagreement(facts: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """A message for the first rank with a device at fault, or another fact than the main rank;
    facts: host and facts of each rank.
    """
    first_host, expected = facts[0]
    for rank, (host, values) in enumerate(facts):
        where = f"rank {rank} on {host}"
        if values[FAULT]:
            return f"{where}: {values[FAULT]}; {FIXES[FAULT]}"
        for name, value in values.items():
            if value != expected.get(name):
                reason = f"{where} has {name} {value}, and rank 0 on {first_host} {expected[name]}"
                return f"{reason}; {FIXES.get(name, SOFTWARE)}"
    return ""


def check_room(config: Config, run_dir: Path, model: nn.Module, ranks: Ranks) -> None:
    """Raise ValueError on every rank where the trained weights alone do not fit on the disk of the
    checkpoints.
    """
    if not config.checkpoint.enabled:
        return
    trained = (weight for weight in model.parameters() if weight.requires_grad)
    needed = sum(weight.numel() * weight.element_size() for weight in trained)
    if fault := ranks.from_main(no_room(run_dir / config.checkpoint.dir, needed)):
        raise ValueError(fault)


def no_room(folder: Path, needed: int) -> str:
    """Why a checkpoint of at least so many bytes cannot be saved in a folder; else empty."""
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    try:
        free = shutil.disk_usage(place).free
    except OSError:
        return ""  # the save itself says more
    if free >= needed:
        return ""
    message = f"a checkpoint needs {byte_size(needed)} or more, and {byte_size(free)} are free"
    return f"{message} in {place}; make room, or checkpoint.dir=DIR on another disk"
