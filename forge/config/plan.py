"""The `plan` group: absent machines for which a run is checked and laid out."""

from __future__ import annotations

from forge.config.devices import DEVICES
from forge.config.field import Section, opt, section


@section
class Plan(Section):
    """What forge.check takes for the machines; a run that starts has those that it finds, but for
    the memory of the GPUs of launch=slurm.
    """

    all_free = True

    device: str | None = opt(
        None, "GPU to plan for; null = the devices of this machine", choices=tuple(DEVICES)
    )
    world_size: int | None = opt(None, "ranks to plan for; null = by layout and launch", gt=0)
    gpus_per_node: int = opt(8, "GPUs per machine to plan for", gt=0)
    network_gbits: float | None = opt(
        None, "Gbit/s of network that a GPU has; null = as plan.device is usually sold", gt=0
    )
    sharding_tolerance: float = opt(
        0.02,
        "largest imbalance of unsharded memory between ranks, as a share: forge.plan --dry-run",
        ge=0,
        le=1,
    )
