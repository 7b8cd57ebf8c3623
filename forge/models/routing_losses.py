"""Auxiliary losses of a router, as sums over tokens, without their coefficients."""

from __future__ import annotations

from torch import Tensor


def balance_loss(shares: Tensor, counts: Tensor) -> Tensor:
    """The sum over scopes of tokens * E * sum_i f_i * P_i.

    f_i is the part of the scope's assignments to expert i, without gradient; P_i the mean share of
    expert i over the scope's tokens (Switch, arXiv:2101.03961, equations 4 to 6; with top_k > 1 as
    DeepSeek-V3, arXiv:2412.19437, equations 17 to 20). 1 a token for an even load, E with the
    entire load on a single expert. Hugging Face's load_balancing_loss_func is top_k times larger.

    shares: [tokens, E], scope after scope. counts: [scopes, E], assignments of the whole scope, not
    of this rank's tokens alone.
    """
    load = counts.to(shares.dtype) / counts.sum(1, keepdim=True)
    summed = shares.unflatten(0, (len(counts), -1)).sum(1)
    return shares.shape[1] * (load * summed).sum()


def router_z_loss(logits: Tensor) -> Tensor:
    """Sum over tokens of (log-partition of logits: [tokens, E])^2 (arXiv:2202.08906, eq. 5)."""
    return logits.logsumexp(-1).square().sum()


def entropy(shares: Tensor) -> Tensor:
    """Sum over tokens of the entropy, in nats, of shares: [tokens, E]; without gradient."""
    shares = shares.detach()
    # Clamped, so that a share of 0 adds 0 and not NaN.
    return -(shares * shares.clamp(min=1e-30).log()).sum()
