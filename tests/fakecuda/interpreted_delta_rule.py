"""flash-linear-attention's kernels by Triton's interpreter on the CPU, through forge's operator,
against the rule token by token in fp64.

Started with the environment of `make cuda`, which has them and Triton; prints JSON: for each
comparison the relative distances of the outputs, the last state and the gradients.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from triton.runtime import interpreter  # pyright: ignore[reportMissingImports]
from triton.runtime.autotuner import Autotuner  # pyright: ignore[reportMissingImports]

SEQ, KEY_HEADS, HEADS, WIDTH = 80, 1, 2, 16


class Number(int):
    """A loop's number, which Triton makes a tensor and its interpreter leaves a number."""

    def to(self, dtype: Any) -> "Number":
        return self


def numbers(*bounds: int) -> Iterator[Number]:
    """`range` of kernels."""
    return map(Number, range(*bounds))


def mend_interpreter() -> None:
    """Take the first configuration of each kernel; read numbers of arrays as numpy 2.4 wants."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched
    Autotuner._bench = lambda self, *arguments, config, **options: [0.0] * 3


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """Queries, keys, values, decays, beta and the state before; a key head of two value heads."""
    from forge.models.delta_rule import l2_norm

    torch.manual_seed(0)
    q, k = (l2_norm(torch.randn(1, SEQ, KEY_HEADS, WIDTH)) for _ in range(2))
    v, state = torch.randn(1, SEQ, HEADS, WIDTH), torch.randn(1, HEADS, WIDTH, WIDTH)
    decay, beta = -torch.randn(1, SEQ, HEADS).square(), torch.rand(1, SEQ, HEADS)
    of_tokens = [x.to(dtype) for x in (q, k, v)]
    return [x.requires_grad_() for x in (*of_tokens, decay, beta, state)]


def distances(dtype: torch.dtype, begins: Tensor | None) -> list[float]:
    """Of outputs, last state and the gradients of all inputs."""
    from forge.models.delta_rule import DeltaInputs, recurrent
    from forge.models.gated_delta_net import by_fla

    ours = inputs(dtype)
    exact = [x.detach().double().requires_grad_() for x in ours]
    found = by_fla(DeltaInputs(*ours[:5], begins), ours[5], dtype)
    expected = recurrent(DeltaInputs(*exact[:5], begins), exact[5])
    weights = [torch.randn_like(x) for x in expected]
    for outputs in (found, expected):
        sum((x * w).sum() for x, w in zip(outputs, weights, strict=True)).backward()
    pairs = [*zip(found, expected, strict=True)]
    gradients: list[Any] = [(a.grad, b.grad) for a, b in zip(ours, exact, strict=True)]
    pairs += [(a, b) for a, b in gradients if b.any()]  # a document at the start empties the state
    return [((a.double() - b).norm() / b.norm()).item() for a, b in pairs]


def main() -> None:
    """Compare in fp32 and fp16, and where documents begin within a row.

    The interpreter has no bf16 products.
    """
    mend_interpreter()
    import fla  # pyright: ignore[reportMissingImports]
    import fla.ops.common.chunk_delta_h as states  # pyright: ignore[reportMissingImports]

    states.range = numbers
    begins = torch.zeros(1, SEQ, dtype=torch.bool)
    begins[:, [0, 17, 70]] = True
    compared = {
        "fp32": distances(torch.float32, None),
        "fp16": distances(torch.float16, None),
        "fp32, documents": distances(torch.float32, begins),
    }
    print(json.dumps({"version": fla.__version__, "compared": compared}))


if __name__ == "__main__":
    main()
