"""The `diloco` group: replicas with weights of their own, joined every H steps."""

from __future__ import annotations

from forge.config.field import Condition, Section, opt, section

DILOCO = Condition(lambda config, ranks: config.diloco.enabled, "with diloco.enabled=false")


@section
class DiLoCo(Section):
    """DiLoCo (arXiv:2311.08105): the replicas of parallel.dp_replicate train apart; an outer SGD
    moves the common weights by the mean of their changes. Fragments: arXiv:2501.18512.
    """

    enabled: bool = opt(False, "replicas of parallel.dp_replicate train apart, and are joined")
    sync_period: int = opt(36, "join the replicas after this many steps", gt=0, acts_when=DILOCO)
    outer_lr: float = opt(
        0.3, "learning rate of the outer SGD; 1 with momentum 0 = the mean", gt=0, acts_when=DILOCO
    )
    outer_momentum: float = opt(
        0.9, "Nesterov momentum of the outer SGD; 0 = none", ge=0, lt=1, acts_when=DILOCO
    )
    replicas: int | None = opt(
        None, "number of replicas; null = parallel.dp_replicate", gt=0, acts_when=DILOCO
    )
    fragments: int = opt(
        1,
        "join the blocks in this many parts, one after another within a period; every N-th block "
        "is of the same part",
        gt=0,
        acts_when=DILOCO,
    )
    overlap_steps: int = opt(
        0, "steps between sending weights and using the result, to hide it", ge=0, acts_when=DILOCO
    )
    mixing: float = opt(
        0.0,
        "share of a replica's own weights that stays in them where they are joined",
        ge=0,
        lt=1,
        acts_when=DILOCO,
    )

    def part_at(self, step: int) -> int | None:
        """The fragment that is joined after a step, counted from 1; null = none."""
        if not self.enabled:
            return None
        for part in range(self.fragments):
            offset = (part + 1) * self.sync_period // self.fragments
            if step % self.sync_period == offset % self.sync_period:
                return part
        return None

    def part_of(self, name: str) -> int:
        """The fragment of a parameter by name; those outside of blocks are of the last."""
        words = name.split(".")
        if "blocks" in words[:-1] and (number := words[words.index("blocks") + 1]).isdecimal():
            return int(number) % self.fragments
        return self.fragments - 1
