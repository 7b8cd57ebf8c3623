"""Evaluation of a language model on a fixed set of sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forge.config.eval import Eval
from forge.config.train import Train
from forge.data import IGNORE_INDEX
from forge.data.loader import EvalBatch
from forge.models.head import Head, head_of
from forge.models.modes import evaluating
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.training.callback import Callback
from forge.training.loop import Loop
from forge.training.step import StepOutput

LOGITS_AT_ONCE = 1 << 24
BATCHES_PER_VOTE = 8  # after which all ranks ask each other whether to break off an evaluation


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[EvalBatch],
    *,
    token_bytes: Tensor,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Metrics over every target of the batches, each counted once.

    loss: mean cross-entropy in nats. perplexity: its exponential. token_accuracy: share of targets
    that were the likeliest token. bits_per_byte: nats of the tokens that have bytes / (ln 2 * their
    bytes), which compares across tokenizers. token_bytes: [vocab], bytes of each token, 0 for
    special ones; on the model's device.
    """
    device, ranks = token_bytes.device, ranks or Ranks()
    totals = torch.zeros(5, dtype=torch.float64, device=device)
    with evaluating(model):
        for batch in batches:
            tokens, targets = (
                ranks.own_part(tensor).to(device) for tensor in (batch.tokens, batch.targets)
            )
            hidden = model.hidden(tokens)  # type: ignore[operator]
            head = model.own_head() if isinstance(model, Pipeline) else head_of(model)
            if head is not None:
                totals += _sums(head, hidden.flatten(0, 1), targets.flatten(), token_bytes)
    ranks.total(totals)
    nats, count, correct, byte_nats, n_bytes = totals.tolist()
    loss = nats / max(count, 1)
    return {
        "loss": loss,
        "perplexity": math.exp(min(loss, 700.0)),
        "token_accuracy": correct / max(count, 1),
        "bits_per_byte": byte_nats / (math.log(2) * max(n_bytes, 1)),
    }


def _sums(head: Head, hidden: Tensor, targets: Tensor, token_bytes: Tensor) -> Tensor:
    """[nats, targets, correct, nats of tokens with bytes, bytes], some rows of logits at a time."""
    rows = max(LOGITS_AT_ONCE // token_bytes.shape[0], 1)
    sums = torch.zeros(5, dtype=torch.float64, device=hidden.device)
    for states, wanted in zip(hidden.split(rows), targets.split(rows), strict=True):
        logits = head.logits(states).float()
        kept = wanted != IGNORE_INDEX
        nats = F.cross_entropy(logits, wanted, ignore_index=IGNORE_INDEX, reduction="none").double()
        sizes = torch.where(kept, token_bytes[wanted.clamp(min=0)], 0).double()
        correct = logits.argmax(-1) == wanted
        values = (nats, kept, correct, nats * (sizes > 0), sizes)
        sums += torch.stack([value.double().sum() for value in values])
    return sums


def most_sequences(section: Eval, train: Train) -> int:
    """How many sequences are evaluated at most; 0 = any number."""
    of_steps = section.steps * (train.global_batch_size or 0)
    of_tokens = max(section.max_tokens // train.seq_len, 1) if section.max_tokens else 0
    return min((most for most in (of_steps, of_tokens) if most), default=0)


class Interrupted(Exception):
    """An evaluation was broken off."""


class Evaluation(Callback):
    """Evaluates every `interval` steps and after the last one, unless the run was interrupted.

    A run that is to stop breaks an evaluation off, and does it when it goes on. metrics: of the
    last evaluation, which was after update number `at`.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], bool]], dict[str, float]],
        *,
        interval: int,
        interrupted: Callable[[Loop], bool],
    ) -> None:
        """run: evaluates; calls its argument between batches, and raises Interrupted where that is
        true. interrupted: whether the run is to stop.
        """
        self.run, self.interval, self.interrupted = run, interval, interrupted
        self.metrics: dict[str, float] = {}
        self.at: int | None = None
        self.due = False

    def on_start(self, loop: Loop) -> None:
        if self.due:
            self.evaluate(loop)

    def on_step_end(self, loop: Loop, output: StepOutput) -> None:
        if loop.state.step % self.interval == 0:
            self.evaluate(loop)

    def on_end(self, loop: Loop) -> None:
        if self.at != loop.state.step and not loop.interrupted:
            self.evaluate(loop)

    def evaluate(self, loop: Loop) -> None:
        self.due = True
        try:
            with loop.paused():
                metrics = self.run(lambda: self.interrupted(loop))
        except Interrupted:
            return
        self.due = False
        self.at, self.metrics = loop.state.step, metrics
        loop.call("on_evaluation", metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"due": self.due, "at": self.at, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.due, self.at, self.metrics = state["due"], state["at"], state["metrics"]


def unless(
    interrupted: Callable[[], bool], batches: Iterable[EvalBatch], *, every: int
) -> Iterator[EvalBatch]:
    """The batches; raises Interrupted when the run is to stop, asked before every `every`-th."""
    for number, batch in enumerate(batches):
        if number % every == 0 and interrupted():
            raise Interrupted
        yield batch
