"""The nearest orthogonal matrix, approximately, by products alone: Muon's update of a momentum."""

from __future__ import annotations

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of Newton-Schulz steps, for singular values of about 0.7 to 1.2 (Jordan et al.,
Muon, 2024).
"""
POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)
"""Coefficients of the Polar Express (arXiv:2505.16932) for each of five steps; the last step is
repeated.
"""


def newton_schulz(values: Tensor, steps: int, *, eps: float = 1e-7) -> Tensor:
    """Approximate U V^T of the singular value decomposition U S V^T: [..., m, n] -> [..., m, n]."""
    return _quintic(values / (_norm(values) + eps), [QUINTIC] * steps)


def polar_express(values: Tensor, steps: int) -> Tensor:
    """Approximate U V^T with coefficients optimal for each step (arXiv:2505.16932, algorithm 1)."""
    # Divided by slightly more than the norm, so that rounding leaves no singular value above 1.
    chosen = [POLAR_EXPRESS[min(step, len(POLAR_EXPRESS) - 1)] for step in range(steps)]
    return _quintic(values / (_norm(values) * 1.01 + 1e-6), chosen)


def _quintic(x: Tensor, steps: list[tuple[float, float, float]]) -> Tensor:
    """Iterate X <- a X + b (X X^T) X + c (X X^T)^2 X, with X X^T of the smaller side."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for a, b, c in steps:
        square = x @ x.mT
        x = _plus_product(a, x, 1.0, _plus_product(b, square, c, square, square), x)
    return x.mT if tall else x


def _plus_product(beta: float, x: Tensor, alpha: float, left: Tensor, right: Tensor) -> Tensor:
    """beta * x + alpha * left @ right, of matrices or stacks of matrices, in a single pass."""
    product = torch.addmm if x.dim() == 2 else torch.baddbmm
    return product(x, left, right, beta=beta, alpha=alpha)


def _norm(values: Tensor) -> Tensor:
    return torch.linalg.vector_norm(values, dim=(-2, -1), keepdim=True)
