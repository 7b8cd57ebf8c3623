"""The `parallel` group: how the model and the batch are laid over devices."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from forge.config.field import Section, opt

AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


@dataclass(kw_only=True)
class Parallel(Section):
    """Degrees of parallelism; their product is the number of ranks."""

    all_free = True

    dp_shard: int = opt(-1, "FSDP shards; -1 = all devices that the other degrees leave", ge=-1)
    dp_replicate: int = opt(1, "replicas of the FSDP groups", ge=1)
    tp: int = opt(1, "tensor parallel degree", ge=1)
    pp: int = opt(1, "pipeline parallel degree", ge=1)
    pp_schedule: str = opt("1f1b", "pipeline schedule", choices=("1f1b", "gpipe", "interleaved_1f1b"))
    cp: int = opt(1, "context parallel degree", ge=1)
    ep: int = opt(1, "expert parallel degree", ge=1)
    nccl_timeout_sec: int = opt(1800, "seconds a collective may take", gt=0)
    backend: str = opt("cpu:gloo,cuda:nccl", "torch.distributed backend of each device type")

    def degrees(self) -> dict[str, int]:
        """The six degrees by name."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def product_without_dp_shard(self) -> int:
        """How many ranks one FSDP shard index spans."""
        return prod(size for axis, size in self.degrees().items() if axis != "dp_shard")
