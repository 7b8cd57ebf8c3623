"""Rewards of the tests of rollouts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any


def signs(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[float]:
    """The share of capital letters and digits."""
    signs = [sum(sign.isupper() or sign.isdigit() for sign in text) for text in completions]
    return [count / max(len(text), 1) for count, text in zip(signs, completions, strict=True)]


class Capitals:
    """An environment that answers each turn with the letter after the row's first, in capitals; a
    turn with a capital letter is the last. `how` breaks it.
    """

    stop = tuple("abcdefghijklmnopqrstuvwx0123456789")

    def __init__(self, how: str = "", random: bool = False) -> None:
        self.how, self.random, self.turns = how, random, 0

    def reset(self, row: dict[str, Any], seed: int) -> Any:
        self.row, self.seed = row, seed
        if self.how == "reset":
            return row
        return None

    def step(self, text: str) -> Any:
        self.turns += 1
        answer = f"[{self.turns}{self.row['prompt'][:1]}{self.seed % 10}]"
        if self.random:
            answer += str(time.time_ns() % 1000)
        match self.how:
            case "raises":
                raise KeyError("board")
            case "hangs":
                time.sleep(60)
            case "never":
                return answer, False, 0.5
            case "pair":
                return answer, True
            case "number":
                return 3, True, 0.0
            case "done":
                return answer, "no", 0.0
            case "nan":
                return answer, True, float("nan")
        return answer, any(sign.isupper() for sign in text), 0.25 if text[-1:] < "m" else None


class NoEnvironment:
    """An object that answers nothing."""


def dice(completions: Sequence[str], **columns: Any) -> list[float]:
    """Random numbers, others at each call."""
    return [float.fromhex(f"0x0.{os.urandom(6).hex()}") for _ in completions]


def capital(completions: Sequence[str], **columns: Any) -> list[float]:
    """1 for a text with a capital letter: groups of equal rewards are common."""
    return [float(any(sign.isupper() for sign in text)) for text in completions]
