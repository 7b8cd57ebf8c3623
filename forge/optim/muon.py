"""Muon: momentum, orthogonalised as whole matrices whatever the layout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from forge.config.optimizers.muon import Muon as MuonSection
from forge.optim.elementwise import KeepsFormats, write_rounded, zeros_of
from forge.optim.matrix import Matrix
from forge.optim.rounding import Rounding
from forge.optim.whole_matrices import WholeMatrices
from forge.tensors.local import local
from forge.tensors.masters import master
from forge.tensors.wide import in_16_bits, wide_dtype

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
    return _quintic(values / (norm(values) + eps), [QUINTIC] * steps)


def polar_express(values: Tensor, steps: int) -> Tensor:
    """Approximate U V^T with coefficients optimal for each step (arXiv:2505.16932, algorithm 1)."""
    # Divided by slightly more than the norm, so that rounding leaves no singular value above 1.
    chosen = [POLAR_EXPRESS[min(step, len(POLAR_EXPRESS) - 1)] for step in range(steps)]
    return _quintic(values / (norm(values) * 1.01 + 1e-6), chosen)


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


def norm(values: Tensor, dim: tuple[int, ...] = (-2, -1)) -> Tensor:
    return torch.linalg.vector_norm(values, dim=dim, keepdim=True)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
ITERATIONS = {"newton_schulz": newton_schulz, "polar_express": polar_express}
LEAST_NORM = 1e-6


class Muon(KeepsFormats):
    """Muon (Jordan et al., 2024; arXiv:2502.16982 for decay and scale) of a matrix W [rows,
    columns]:

    m <- momentum * m + (1 - momentum) * g
    u = orthogonal(momentum * m + (1 - momentum) * g if nesterov else m)
    W <- W - lr * (scale * u + weight_decay * W)

    scale: max(1, rows / columns)^0.5, or consistent_rms * max(rows, columns)^0.5. A stack of
    matrices [..., rows, columns] is updated matrix by matrix. With `cautious` only weights moved
    towards 0 by the update, u * W >= 0, decay. Parameters may be DTensors: then all ranks take a
    step together.

    As in torch's fused optimizers, every value stays unchanged where the attribute `found_inf` is a
    tensor of 1. `factor` and `rounding` are as in `forge.optim.elementwise`.
    """

    _step_supports_amp_scaling = True
    takes_factor = True
    rounding: Rounding | None = None

    def __init__(self, params: list[dict[str, Any]], section: MuonSection) -> None:
        defaults = {"lr": section.lr, "momentum": section.momentum, "weight_decay": 0.0}
        super().__init__(params, defaults)
        self.section = section
        self._whole: WholeMatrices | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; a missing gradient counts as 0."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = {p: group for group in self.param_groups for p in group["params"]}
        if self._whole is None:
            self._whole = WholeMatrices(list(groups))
        found_inf = getattr(self, "found_inf", None)
        bad = None if found_inf is None else found_inf.bool()
        values = {
            matrix: self._direction(matrix, groups[matrix.parameter], bad)
            for matrix in self._whole.matrices
        }

        def compute(matrix: Matrix, momentum: Tensor) -> tuple[Tensor, list[Tensor]]:
            return self.orthogonal(matrix, momentum, bad)

        def done(matrix: Matrix, update: Tensor, kept: list[Tensor]) -> None:
            self.keep(matrix, kept)
            self._apply(matrix, groups[matrix.parameter], update, found_inf)

        self._whole(values, compute, self.kept_shapes, done, self.result_dtype)
        return loss

    def orthogonal(
        self, matrix: Matrix, momentum: Tensor, bad: Tensor | None
    ) -> tuple[Tensor, list[Tensor]]:
        """Orthogonalise whole matrices; returns the update, and state not cut as the parameter."""
        return self.orthogonalized(matrix, momentum), []

    def result_dtype(self, matrix: Matrix) -> torch.dtype:
        """The format of updates sent between ranks."""
        wide = wide_dtype(matrix.parameter)
        return wide if self.section.renormalize else self._dtype(matrix.parameter)

    def orthogonalized(self, matrix: Matrix, momentum: Tensor) -> Tensor:
        """Orthogonalise by the chosen iteration, with rows of equal length before it and the norm
        of an orthogonal matrix after it where the section says so.
        """
        section, (rows, columns) = self.section, momentum.shape[-2:]
        if section.equilibrate_rows:  # MuonEq
            lengths = norm(momentum, dim=(-1,)).clamp_min(LEAST_NORM)
            momentum = momentum * (norm(momentum) / rows**0.5 / lengths)
        x = ITERATIONS[section.coefficients](momentum, section.ns_steps)
        if section.renormalize:
            x = x.to(wide_dtype(matrix.parameter))
            x = x * (min(rows, columns) ** 0.5 / norm(x).clamp_min(LEAST_NORM))
        return x

    def kept_shapes(self, matrix: Matrix) -> list[tuple[int, ...]]:
        """Shapes of the state returned by `orthogonal`."""
        return []

    def keep(self, matrix: Matrix, kept: list[Tensor]) -> None:
        """Store the state returned by `orthogonal`."""

    def _direction(self, matrix: Matrix, group: dict[str, Any], bad: Tensor | None) -> Tensor:
        """Update the momentum; returns the momentum, or Nesterov's, in the format of products."""
        parameter, beta = matrix.parameter, group["momentum"]
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = zeros_of(parameter)
        buffer = local(state["momentum_buffer"])
        grad = parameter.grad
        gradient = torch.zeros_like(buffer) if grad is None else local(grad).to(buffer.dtype)
        if (factor := getattr(self, "factor", None)) is not None:
            gradient = gradient * factor
        if bad is not None:  # a momentum moved towards itself stays
            gradient = torch.where(bad, buffer, gradient)
        buffer.lerp_(gradient, 1 - beta)
        chosen = gradient.lerp(buffer, beta) if self.section.nesterov else buffer
        return chosen.to(self._dtype(parameter))

    def _dtype(self, parameter: Tensor) -> torch.dtype:
        """The format of products: ns_dtype, or with auto bf16 on a GPU, for the matrix units."""
        if self.section.ns_dtype == "auto":
            on_gpu = local(parameter).is_cuda
            return torch.bfloat16 if on_gpu else wide_dtype(parameter)
        return DTYPES[self.section.ns_dtype]

    def _apply(
        self, matrix: Matrix, group: dict[str, Any], update: Tensor, found_inf: Tensor | None
    ) -> None:
        parameter, rate, decay = matrix.parameter, group["lr"], group["weight_decay"]
        weights = local(master(parameter)).to(wide_dtype(parameter))
        if found_inf is not None:  # a rate of 0, with a finite update made of the momentum alone
            rate = rate * (1 - found_inf)
        rows, columns = matrix.shape[-2:]
        update = update.to(weights.dtype) * self._scale(rows, columns)
        if self.section.scale_decay:
            decay = decay * max(1.0, rows / columns) ** 0.5
        if decay and self.section.cautious:
            decayed = weights * (update * weights >= 0)
            weights.sub_(rate * decay * decayed)
        elif decay:
            weights.mul_(1 - rate * decay)
        weights.sub_(rate * update)
        if in_16_bits(parameter):
            write_rounded(self.rounding, parameter, weights, group.get("number", 0))

    def _scale(self, rows: int, columns: int) -> float:
        if self.section.consistent_rms is not None:
            return self.section.consistent_rms * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns))
