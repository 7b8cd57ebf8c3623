"""Rewards for mathematics: equality of expressions, by math-verify."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

from forge.rewards.completion import Completion, Reward, completion_text
from forge.rewards.structured import INSTALL


class MathVerify(Reward):
    """1 where the completion's answer equals the row's `solution` as mathematics, by math-verify;
    None where the solution cannot be read.

    Both may be LaTeX or plain expressions; of a completion the last one in a box counts first.
    seconds: of each expression.
    """

    isolated = True  # sympy may take forever, and the limits of math-verify need a main thread

    def __init__(self, seconds: int = 5) -> None:
        self.seconds = seconds

    def faults(self) -> Iterator[tuple[str, str]]:
        if importlib.util.find_spec("math_verify") is None:
            yield "it needs the package math-verify, which is not installed.", INSTALL

    def __call__(
        self, completions: Sequence[Completion], solution: Sequence[Any]
    ) -> list[float | None]:
        from math_verify import parse, verify  # type: ignore[import-not-found]

        rewards: list[float | None] = []
        for completion, right in zip(completions, solution, strict=True):
            gold = parse(str(right), parsing_timeout=self.seconds)
            if not gold:
                rewards.append(None)
                continue
            answer = parse(completion_text(completion), parsing_timeout=self.seconds)
            rewards.append(float(verify(gold, answer, timeout_seconds=self.seconds)))
        return rewards
