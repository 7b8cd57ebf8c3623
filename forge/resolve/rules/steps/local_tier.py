"""Rules of checkpoints on the disks of nodes, see `forge.training.checkpoints.local_tier`."""

from __future__ import annotations

from forge.config.checkpoint import Checkpoint
from forge.config.rule import Findings, rule
from forge.planning.world import World, ranks_per_node

DIR, PARTNER = "checkpoint.local_dir", "checkpoint.local_partner"
INTERVAL, RANKS = "checkpoint.local_interval", "checkpoint.local_ranks"


@rule(DIR, DIR, INTERVAL, "checkpoint.enabled")
def place_on_nodes(checkpoint: Checkpoint) -> Findings:
    """checkpoint.local_interval needs a folder on each node's disk, and checkpoints that are on."""
    if not checkpoint.local_interval:
        return
    if not checkpoint.enabled:
        yield INTERVAL, f"{INTERVAL}=0, or checkpoint.enabled=true"
    if not checkpoint.local_dir:
        yield INTERVAL, f"{DIR}=/dev/shm/forge, or a folder on a disk of the node"


@rule(PARTNER, PARTNER, INTERVAL, RANKS)
def partner_is_another_node(checkpoint: Checkpoint, world: World) -> Findings:
    """checkpoint.local_partner takes a second node: a node is no partner of its own."""
    size = checkpoint.local_ranks or ranks_per_node(world)
    if checkpoint.local_interval and checkpoint.local_partner and size >= world.size:
        yield PARTNER, f"{PARTNER}=false"


@rule(RANKS, RANKS, INTERVAL)
def nodes_of_equal_size(checkpoint: Checkpoint, world: World) -> Findings:
    """checkpoint.local_ranks divides the number of ranks: nodes have as many each."""
    size = checkpoint.local_ranks
    if checkpoint.local_interval and size and size < world.size and world.size % size:
        yield RANKS, f"{RANKS}=1"


@rule("checkpoint.continuous", "checkpoint.continuous", "checkpoint.async_mode")
def continuous_saves(checkpoint: Checkpoint) -> Findings:
    """checkpoint.continuous writes while training continues: checkpoint.async_mode=async."""
    if checkpoint.continuous and checkpoint.async_mode == "disabled":
        yield "checkpoint.continuous", "checkpoint.async_mode=async"
