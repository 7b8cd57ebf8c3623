"""The source of a run's steps: a loader of text, or rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from forge.config.rollouts.openai import OpenAIRollout
from forge.config.rollouts.rollout import LocalRollout
from forge.config.root import Config
from forge.data.batches.loader import TrainLoader
from forge.data.batches.mixture import Mixture
from forge.data.batches.streams import Streamed
from forge.data.sources.prompts import PromptRow, PromptStore
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.data.tokens.store import TokenStore
from forge.environments.environments import Environments
from forge.objectives.grpo import GRPO
from forge.objectives.objective import Objective
from forge.parallel.ranks import Ranks
from forge.rewards.scorer import Scorer
from forge.rollouts.served import HandOver, ServedSampler
from forge.rollouts.source import Rollouts, short_enough
from forge.rollouts.writing import Sampler
from forge.rundir import versions
from forge.training.data import train_loader
from forge.training.process import say
from forge.training.session import Session


def source_of(session: Session, hand_over: HandOver | None = None) -> TrainLoader | Rollouts:
    """Build the source of steps of a run."""
    return step_source(
        session.config,
        session.prepared.train,
        session.model,
        session.objective,
        session.ranks,
        session.device,
        tokenizer=session.tokenizer,
        run_dir=session.run_dir,
        version=versions.number_in_force(session.run_dir),
        hand_over=hand_over,
    )


def step_source(
    config: Config,
    text: TokenStore | Streamed | Mixture,
    model: nn.Module,
    objective: Objective,
    ranks: Ranks,
    device: torch.device,
    *,
    tokenizer: Tokenizer | None,
    run_dir: Path | None,
    version: int = 1,
    hand_over: HandOver | None = None,
) -> TrainLoader | Rollouts:
    """Build the source of this rank's part of every step. Raises ValueError for mistakes.

    run_dir, version: of the run and its config; None = rollouts are not stored. hand_over: gives
    the weights to the server of rollout=openai.
    """
    if not config.rollout.active:
        return train_loader(config, text, objective, ranks, device)
    store = next(iter(Mixture.of(text).stores.values()))
    if not isinstance(store, PromptStore) or not isinstance(objective, GRPO) or tokenizer is None:
        raise ValueError("rollout: it needs data=prompts, and objective=grpo or its kin")
    rows, left_out = short_enough(config, store.rows)
    if left_out:
        say(f"data: {left_out:,} of {len(store.rows):,} prompts are too long, and left out")
    scorer = scorer_of(config, rows) if ranks.main else None
    return Rollouts(
        config,
        rows,
        run_dir=run_dir,
        version=version,
        model=model,
        objective=objective,
        sampler=sampler_of(config, model, tokenizer, device, ranks, hand_over),
        scorer=scorer,
        device=device,
        ranks=ranks,
    )


def scorer_of(config: Config, rows: Sequence[PromptRow]) -> Scorer:
    """The rewards of a run. Raises ValueError where one asks for a column that rows lack."""
    scorer = Scorer(config.rewards, config.run.trust)
    scorer.check_columns({name for row in rows[:1] for name in row.columns})
    return scorer


def sampler_of(
    config: Config,
    model: nn.Module,
    tokenizer: Tokenizer,
    device: torch.device,
    ranks: Ranks,
    hand_over: HandOver | None = None,
) -> Sampler:
    """The sampler of a run, on its ranks or at a server."""
    section, environments = config.rollout, environments_of(config)
    if isinstance(section, OpenAIRollout):
        return ServedSampler(tokenizer, section, config.seed, ranks, environments, hand_over)
    assert isinstance(section, LocalRollout)
    return Sampler(model, tokenizer, section, config.seed, device, ranks, environments)


def environments_of(config: Config) -> Environments | None:
    """The environments of the run; None = a completion is one turn."""
    return Environments(config.environment, config.run.trust) if config.environment else None
