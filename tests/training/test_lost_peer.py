"""Which errors are a rank's own, and which only say that another is gone."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from forge.rundir.outcome import is_lost_peer

GLOO = (
    "[/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [127.0.0.1]:35758"
)


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (RuntimeError(GLOO), True),
        (RuntimeError("NCCL communicator was aborted on rank 3."), True),
        (dist.DistNetworkError("Failed to recv, got 0 bytes"), True),
        (dist.DistStoreError("wait timeout after 2000ms"), True),
        (KeyError("wk"), False),
        (ConnectionRefusedError(111, "Connection refused"), False),
        (ConnectionError("no sign of life from rank 1 of 2"), False),
    ],
)
def test_what_a_lost_peer_looks_like(error: Exception, lost: bool) -> None:
    assert is_lost_peer(error) is lost
    around = ValueError("what a callback makes of it")
    around.__cause__ = error
    assert is_lost_peer(around) is lost
