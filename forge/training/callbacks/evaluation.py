"""Evaluation: metrics of an objective over fixed sets of sequences, from time to time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from forge.config.eval import Eval
from forge.config.root import Config
from forge.config.train import Train
from forge.data.batches.loader import Batch, eval_batches
from forge.data.sources.prompts import PromptRow, PromptStore
from forge.data.tokens.store import TokenStore
from forge.models.reading_mode import evaluating
from forge.objectives.objective import Objective
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.rollouts.source import Rollouts, short_enough
from forge.tensors.wide import widest
from forge.training.callback import Callback
from forge.training.data import end_of_text, evaluated_plan
from forge.training.step import look_ahead

if TYPE_CHECKING:
    from forge.training.loop import Loop
    from forge.training.session import Session
    from forge.training.step_output import StepOutput

BATCHES_PER_VOTE = 8  # between votes of all ranks on breaking off an evaluation


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """The metrics of an objective over all batches of all ranks.

    Raises ValueError for metrics other than those declared in its section.
    """
    ranks, names = ranks or Ranks(), (*objective.sums, *objective.maxima)
    totals = torch.zeros(len(names), dtype=widest(device), device=device)
    sums, maxima = totals.split([len(objective.sums), len(objective.maxima)])
    maxima.fill_(-math.inf)
    with evaluating(model):
        along = objective.along_sequence
        parts: Iterable[Batch] = (ranks.own_batch(batch, along, device) for batch in batches)
        if objective.looks_ahead:
            parts = look_ahead(model, objective, list(parts), ranks).batches
        for local_batch in parts:
            read: Any = model.read(local_batch) if isinstance(model, Pipeline) else model
            # On ranks without the last stage of a pipeline.
            if read is None:
                continue
            reported = objective.evaluate(read, local_batch)
            values = torch.stack([reported[name].to(totals.dtype) for name in names])
            sums += values[: len(sums)]
            torch.maximum(maxima, values[len(sums) :], out=maxima)
    ranks.total(sums)
    if objective.maxima:
        ranks.total(maxima, maximum=True)
    metrics = objective.metrics(dict(zip(names, totals.tolist(), strict=True)))
    if metrics.keys() != set(objective.section.metrics):
        reported, declared = ", ".join(metrics), ", ".join(objective.section.metrics)
        message = f"metrics() gives {reported}, and its section names {declared}"
        raise ValueError(f"objective._target_={objective.section._target_}: {message}")
    return metrics


def evaluate_sets(
    config: Config,
    stores: Mapping[str, TokenStore],
    model: nn.Module,
    objective: Objective,
    *,
    sequences: int,
    device: torch.device,
    ranks: Ranks | None = None,
    watched: Callable[[Iterator[Batch]], Iterator[Batch]] = lambda batches: batches,
) -> dict[str, float]:
    """The metrics of each text, as NAME/METRIC, or METRIC alone for an empty name.

    sequences: upper limit for each text, 0 = all; the same sequences on every layout. watched:
    wraps the batches.
    """
    ranks, results = ranks or Ranks(), {}
    for name, store in stores.items():
        batches = eval_batches(
            store,
            objective,
            seq_len=config.train.seq_len,
            batch_size=config.eval.batch_size or config.train.batch_size,
            sequences=sequences,
            part=ranks.batch,
            end_of_text=end_of_text(config, objective),
            plan=evaluated_plan(config, store, objective),
            multiple=config.data.pad_to_multiple_of,
        )
        metrics = evaluate(model, objective, watched(batches), device=device, ranks=ranks)
        results |= {f"{name}/{metric}".lstrip("/"): value for metric, value in metrics.items()}
    return results


def most_sequences(section: Eval, train: Train) -> int:
    """Upper limit of evaluated sequences; 0 = no limit."""
    of_steps = section.steps * (train.global_batch_size or 0)
    of_tokens = max(section.max_tokens // train.seq_len, 1) if section.max_tokens else 0
    return min((most for most in (of_steps, of_tokens) if most), default=0)


class Interrupted(Exception):
    """An evaluation broken off."""


class Evaluation(Callback):
    """Evaluates the validation split and all sets every `interval` steps and after the last step.

    A run about to stop breaks an evaluation off, and repeats it when resumed; no evaluation follows
    an interrupted run. metrics: of the last evaluation, after update number `at`; for a set as
    `set/metric`.
    """

    def __init__(self, session: Session) -> None:
        self.session, self.interval = session, session.config.eval.interval
        self.metrics: dict[str, float] = {}
        self.at: int | None = None
        self.due = False

    @classmethod
    def wanted(cls, session: Session) -> bool:
        return session.config.eval.enabled

    def on_start(self, loop: Loop) -> None:
        if self.due or (loop.state.step == 0 and loop.config.eval.at_start):
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
            with loop.evaluating():
                metrics = self._metrics(loop, lambda: self.session.signals.interrupted(loop))
        except Interrupted:
            return
        self.due = False
        self.at, self.metrics = loop.state.step, metrics
        loop.call("on_evaluation", metrics)

    def _metrics(self, loop: Loop, interrupted: Callable[[], bool]) -> dict[str, float]:
        """Of rollouts the rewards of held-out prompts; else of the held-out text."""
        loader = loop.loader
        if not isinstance(loader, Rollouts):
            return self.run(interrupted)

        def watch() -> None:
            if interrupted():
                raise Interrupted

        return loader.evaluate(held_out(self.session), f"evaluation {loop.state.step}", watch)

    def run(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        """interrupted: asked between batches; raises Interrupted if true."""
        session = self.session
        config, every = session.config, 1 if session.ranks.size == 1 else BATCHES_PER_VOTE
        return evaluate_sets(
            config,
            session.prepared.evaluated,
            session.model,
            session.objective,
            sequences=most_sequences(config.eval, config.train),
            device=session.device,
            ranks=session.ranks,
            watched=lambda batches: unless(interrupted, batches, every=every),
        )

    def results(self) -> dict[str, float]:
        if self.at is None:
            return {}
        prefixed = {f"eval/{name}": value for name, value in self.metrics.items()}
        return {**prefixed, "eval/step": self.at}

    def state_dict(self) -> dict[str, Any]:
        return {"due": self.due, "at": self.at, "metrics": self.metrics}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.due, self.at, self.metrics = state["due"], state["at"], state["metrics"]


def held_out(session: Session) -> list[PromptRow]:
    """The held-out prompts, in order: as many as the sequences of an evaluation ask for."""
    config, store = session.config, session.prepared.val
    assert isinstance(store, PromptStore)
    rows, _ = short_enough(config, store.rows)
    group = getattr(config.rollout, "num_generations", 1)
    most = most_sequences(config.eval, config.train)
    return rows[: max(most // group, 1)] if most else rows


def unless(
    interrupted: Callable[[], bool], batches: Iterable[Batch], *, every: int
) -> Iterator[Batch]:
    """Pass batches on; raise Interrupted if the run is to stop.

    interrupted: asked before every `every`-th batch.
    """
    for number, batch in enumerate(batches):
        if number % every == 0 and interrupted():
            raise Interrupted
        yield batch
