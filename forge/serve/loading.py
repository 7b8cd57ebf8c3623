"""The engine and the server of a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.compose.trust import for_run
from forge.config.data.chats import Chats, own_template
from forge.config.tokenizers.tokenizer_stated import TEMPLATE
from forge.models.batching.drafted import Draft, why_no_drafts
from forge.serve.app import Server
from forge.serve.asking import Limits
from forge.serve.engine import Engine
from forge.serve.names import run_name
from forge.serve.new_weights import WeightReader
from forge.training.checkpoints.restore import Trained, load_run
from forge.training.loaded import chosen_device

PROCESSED = "processed_logprobs"


def load_server(
    path: Path, trust: Sequence[str], weights: str, options: argparse.Namespace
) -> Server:
    """Load a checkpoint, and make its server by the options of forge.serve."""
    trained = load_run(path, trust=trust, weights=weights, device=chosen_device(options.device))
    draft = None if options.draft is None else draft_of(trained, options)
    return server_of(trained, engine_of(trained, options, draft=draft), run_name(path), options)


def draft_of(trained: Trained, options: argparse.Namespace) -> Draft:
    """Load the model that drafts tokens for another. Raises ValueError where it cannot."""
    path = options.draft
    other = load_run(path, trust=for_run(path, options.trust), device=trained.device)
    if other.tokenizer.to_json() != trained.tokenizer.to_json():
        hint = "both models must be trained with one (tokenizer=file, or another run's)"
        raise ValueError(
            f"--draft {path}: its tokenizer is another than the served model's; {hint}"
        )
    for model, name in ((trained.model, "the served model"), (other.model, "the model")):
        if reason := why_no_drafts(model):
            raise ValueError(f"--draft {path}: no drafts: of {name}, {reason}")
    return Draft(model=other.model, most=options.drafts)


def engine_of(trained: Trained, options: argparse.Namespace, **others: Any) -> Engine:
    """The engine of a model, by the options of forge.serve. others: of `Engine`."""
    return Engine(
        trained.model,
        trained.tokenizer,
        trained.device,
        slots=options.slots,
        waiting=options.queue,
        length=options.length,
        processed_logprobs=options.logprobs_mode == PROCESSED,
        **others,
    )


def server_of(trained: Trained, engine: Engine, name: str, options: argparse.Namespace) -> Server:
    """The server of an engine, by the options of forge.serve. name: of the model."""
    limits = Limits(
        body=options.max_body, messages=options.max_messages, characters=options.max_characters
    )
    others = None
    if options.weights_from is not None:
        others = WeightReader(trained.model, Path(options.weights_from))
    return Server(engine, name, limits, talks=talks(trained), weights=others)


def talks(trained: Trained | Any) -> bool:
    """Whether a model was trained on conversations, or its tokenizer has a chat template."""
    stated = own_template(trained.tokenizer.stated.get(TEMPLATE))
    return stated is not None or isinstance(trained.config.data, Chats)
