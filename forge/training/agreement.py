"""What all ranks do after the same step because any one of them wishes it: a signal, a limit of
time, a stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from forge.parallel.ranks import Ranks
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput


class Wish(Protocol):
    """Something that a rank may wish for at any time."""

    def wanted(self, loop: Loop) -> int:
        """What this rank wishes, as a number above 0; 0 = nothing."""
        ...

    def granted(self, loop: Loop, number: int) -> None:
        """The largest that any rank wishes; called on all ranks after the same step."""
        ...


class Agreement(Callback):
    """After each step: whether any rank wishes something, and only then, what.

    The first question costs no message: it rides on the sum of the gradient's norm, in which all
    ranks take part anyway. On a GPU the answer is read a step later, when it is there. A wish that
    comes while a step is computed is granted after it or after the next ones.
    """

    def __init__(self, wishes: Sequence[Wish], ranks: Ranks) -> None:
        self.wishes, self.ranks = wishes, ranks
        self._on_its_way: tuple[Tensor, torch.cuda.Event] | None = None

    def on_start(self, loop: Loop) -> None:
        loop.update.wish = lambda: any(wish.wanted(loop) for wish in self.wishes)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if self.ranks.size > 1 and not self._anyone(output.wishes):
            return
        numbers = self.ranks.largest(*(wish.wanted(loop) for wish in self.wishes))
        for wish, number in zip(self.wishes, numbers, strict=True):
            if number:
                wish.granted(loop, number)

    def _anyone(self, wishes: Tensor) -> bool:
        if not wishes.is_cuda:
            return bool(wishes.item())
        host, arrived = torch.empty_like(wishes, device="cpu", pin_memory=True), torch.cuda.Event()
        host.copy_(wishes, non_blocking=True)
        arrived.record()
        before, self._on_its_way = self._on_its_way, (host, arrived)
        if before is None:
            return False
        before[1].synchronize()
        return bool(before[0].item())


class StopVote(Callback):
    """Behind the callbacks of the user, where there are several ranks: one that has called
    `loop.stop` ends the run on all of them.

    At the step boundary at which it would end it alone, so that a layout changes no number of
    steps; that takes a message each step.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    def on_start(self, loop: Loop) -> None:
        self._vote(loop)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        self._vote(loop)

    def _vote(self, loop: Loop) -> None:
        if self.ranks.any(loop.wished is not None):
            loop.end(
                next(reason for reason in self.ranks.of_all(loop.wished) if reason is not None)
            )
