"""Links and time of a collective: NVLink inside a node, the network between nodes.

Ranks are in the order of the mesh, pp slowest and tp fastest, and fill one node after another, so
`gpus_per_node` determines the ranks of a group in one node.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from forge.config.devices import Device
from forge.config.parallel import Parallel
from forge.planning.calibration import (
    BASE,
    LONE,
    MESSAGE,
    NETWORK,
    NVLINK,
    PCIE,
    PROTOCOL_SHARE,
    REACHED,
    STEP,
)
from forge.planning.traffic import Sent

ORDER = ("pp", "dp_replicate", "dp_shard", "cp", "ep", "tp")
"""Axes of the mesh, slowest first: `forge.parallel.mesh`."""
PCIE_BELOW = 64e9
"""Bytes a second between GPUs: PCIe below, NVLink from here on."""
PAIRWISE = 4
"""GPUs of a machine whose NVLinks join pairs, as HGX boards of four do; eight have a switch."""


@dataclass(frozen=True)
class Group:
    """A group of communicating ranks: number of ranks, and of ranks in one node.

    gpus_per_node: of the machine; 0 = not known.
    """

    size: int
    in_node: int
    gpus_per_node: int = 0

    @property
    def nodes(self) -> int:
        return -(-self.size // self.in_node)


def group(parallel: Parallel, axes: tuple[str, ...], gpus_per_node: int) -> Group:
    """The group of a rank over the axes."""
    size = in_node = stride = 1
    for axis in reversed(ORDER):
        degree = getattr(parallel, axis)
        if axis in axes:
            size *= degree
            in_node *= min(degree, max(gpus_per_node // stride, 1))
        stride *= degree
    return Group(size, in_node, gpus_per_node)


def on_links(sent: Sent, ranks: Group) -> dict[str, float]:
    """Bytes sent by a rank over each kind of link.

    A ring leaves a node once for all ranks of the group inside, an equal part by the network card
    of each rank. In an all-to-all each part goes directly to its receiver.
    """
    if ranks.nodes == 1:
        return {NVLINK: float(sent.bytes)}
    other_ranks = ranks.size - 1 if sent.kind == "all-to-all" else ranks.in_node
    inside = (ranks.in_node - 1) / other_ranks
    return {NVLINK: sent.bytes * inside, NETWORK: sent.bytes * (1 - inside)}


def link_bytes(all_sent: list[Sent], parallel: Parallel, gpus_per_node: int) -> dict[str, float]:
    """Bytes sent by a rank over each kind of link in a step."""
    total: Counter[str] = Counter()
    for sent in all_sent:
        total.update(on_links(sent, group(parallel, sent.axes, gpus_per_node)))
    return dict(total)


def seconds(sent: Sent, ranks: Group, device: Device) -> float:
    """Seconds of a step's collectives of one kind over one group, one after another.

    Latency and bandwidth (alpha and beta): each call takes NCCL's fastest algorithm and protocol
    for its bytes.
    """
    if ranks.size == 1 or not sent.calls:
        return 0.0
    call_bytes = sent.bytes / sent.calls
    local, between = _bandwidths(ranks, device)
    if sent.kind in ("all-to-all", "send"):
        links = on_links(sent, ranks)
        of_bytes = max(links.get(NVLINK, 0) / local, links.get(NETWORK, 0) / between)
        hops = 1 if sent.kind == "send" else math.log2(ranks.size) + ranks.nodes - 1
        return of_bytes + sent.calls * 1e-6 * (MESSAGE + hops * _step("ring", ranks, device)[0])
    bandwidth = local if ranks.nodes == 1 else min(local, between * ranks.in_node)
    rounds = 2 if sent.kind == "all-reduce" else 1
    local_steps, network_steps = rounds * (ranks.size - ranks.nodes), rounds * (ranks.nodes - 1)
    options = [_option("ring", call_bytes, bandwidth, local_steps, network_steps, device)]
    if sent.kind == "all-reduce" and ranks.nodes > 1:
        depth = 2 * math.ceil(math.log2(ranks.nodes))
        options.append(
            _option("tree", call_bytes, bandwidth, 2 * (ranks.in_node - 1), depth, device)
        )
    return sent.calls * min(options)


def _bandwidths(ranks: Group, device: Device) -> tuple[float, float]:
    """Bytes a second reached by a rank inside its node, and by its network card.

    A board of four GPUs has no NVLink switch: each pair shares a third of a GPU's links.
    """
    local = REACHED[NVLINK] * device.nvlink
    if ranks.gpus_per_node == PAIRWISE and device.nvlink >= PCIE_BELOW and ranks.in_node > 1:
        local *= (ranks.in_node - 1) / (PAIRWISE - 1)
    return local, REACHED[NETWORK if ranks.in_node > 1 else LONE] * device.network


def _option(
    algorithm: str, size: float, bandwidth: float, there: int, away: int, device: Device
) -> float:
    """Seconds of an algorithm with its fastest protocol.

    there: steps inside nodes. away: steps between nodes.
    """
    local = PCIE if device.nvlink < PCIE_BELOW else NVLINK
    inside, outside = STEP[algorithm, local], STEP[algorithm, NETWORK]
    return min(
        1e-6 * (base + there * inside[protocol] + away * outside[protocol])
        + size / (bandwidth * PROTOCOL_SHARE[protocol])
        for protocol, base in enumerate(BASE[algorithm])
    )


def _step(algorithm: str, ranks: Group, device: Device) -> tuple[float, ...]:
    local = PCIE if device.nvlink < PCIE_BELOW else NVLINK
    return STEP[algorithm, local if ranks.nodes == 1 else NETWORK]
