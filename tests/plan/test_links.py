"""Which links a group's collectives go over: by counting ranks in an array of the mesh."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from forge.config.devices import DEVICES
from forge.config.parallel import Parallel
from forge.planning.links import NETWORK, NVLINK, ORDER, Group, group, on_links, seconds
from forge.planning.traffic import Sent

LAYOUTS = [
    {"dp_shard": 4, "tp": 8, "pp": 2},
    {"dp_replicate": 2, "dp_shard": 8, "tp": 4},
    {"dp_shard": 2, "cp": 4, "tp": 2, "ep": 4},
    {"dp_replicate": 16, "dp_shard": 2, "tp": 2},
]


def members(parallel: Parallel, axes: tuple[str, ...]) -> np.ndarray:
    """The ranks of the first group over these axes."""
    sizes = [getattr(parallel, axis) for axis in ORDER]
    mesh = np.arange(np.prod(sizes)).reshape(sizes)
    return mesh[tuple(slice(None) if axis in axes else 0 for axis in ORDER)].ravel()


@pytest.mark.parametrize("degrees", LAYOUTS, ids=str)
@pytest.mark.parametrize("node", [4, 8])
def test_ranks_of_a_group_that_share_a_node(degrees: dict[str, int], node: int) -> None:
    parallel = Parallel(**degrees)  # type: ignore[arg-type]
    for axes in [(axis,) for axis in ORDER] + [("dp_shard", "cp", "ep"), ORDER]:
        ranks = members(parallel, axes)
        found = group(parallel, axes, node)
        assert found.size == len(ranks)
        assert found.in_node == np.count_nonzero(ranks // node == ranks[0] // node)
        assert found.nodes == len(np.unique(ranks // node))


@pytest.mark.parametrize("degrees", LAYOUTS, ids=str)
def test_a_ring_crosses_between_nodes_where_neighbours_do(degrees: dict[str, int]) -> None:
    """Each rank of a ring sends to its next; counted over the whole ring, a rank's mean."""
    parallel = Parallel(**degrees)  # type: ignore[arg-type]
    axes, node = ("dp_shard", "cp", "ep", "dp_replicate"), 8
    ranks = [*members(parallel, axes), members(parallel, axes)[0]]
    crossing = sum(a // node != b // node for a, b in pairwise(ranks))
    links = on_links(Sent("fsdp: all-gather of weights", axes, 8000), group(parallel, axes, node))
    assert links.get(NETWORK, 0) == pytest.approx(8000 * crossing / (len(ranks) - 1))
    assert sum(links.values()) == 8000


def test_large_collectives_take_bandwidth_and_small_ones_latency() -> None:
    """Of 8 GPUs over NVLink, 2 nodes with all cards, 2 nodes with one card each."""
    device = DEVICES["h100"]
    large = Sent("fsdp: all-gather of weights", ("dp_shard",), 10**10, 1)
    assert seconds(large, Group(8, 8), device) == pytest.approx(1e10 / (0.8 * 450e9), rel=0.01)
    assert seconds(large, Group(16, 8), device) == pytest.approx(1e10 / (0.85 * 400e9), rel=0.01)
    assert seconds(large, Group(2, 1), device) == pytest.approx(1e10 / (0.53 * 50e9), rel=0.01)
    pair, board = seconds(large, Group(2, 2, 4), device), seconds(large, Group(4, 4, 4), device)
    assert pair == pytest.approx(3 * board, rel=0.01)  # four GPUs are joined in pairs
    assert board == pytest.approx(1e10 / (0.8 * 450e9), rel=0.01)
    small = Sent("fsdp: all-gather of weights", ("dp_shard",), 1, 1)
    assert seconds(small, Group(8, 8), device) == pytest.approx((6.6 + 7 * 0.6) * 1e-6, rel=0.01)
    summed = Sent("hsdp: all-reduce of gradients", ("dp_replicate",), 64, 1)
    ring, tree = (2 * 1023 * 2.7 + 6.6) * 1e-6, (2 * 10 * 5.0 + 6.8) * 1e-6
    assert seconds(summed, Group(1024, 1), device) == pytest.approx(min(ring, tree), rel=0.01)
    assert on_links(small, Group(8, 8)) == {NVLINK: 1.0}
