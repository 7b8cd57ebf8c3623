"""The engine and the server of a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.config.data.chats import Chats, own_template
from forge.config.tokenizers.tokenizer_stated import TEMPLATE
from forge.serve.names import run_name
from forge.serve.app import Server
from forge.serve.asking import Limits
from forge.serve.engine import Engine
from forge.serve.new_weights import WeightReader
from forge.training.checkpoints.restore import Trained, load_run
from forge.training.loaded import chosen_device

PROCESSED = "processed_logprobs"


def load_server(
    path: Path, trust: Sequence[str], weights: str, options: argparse.Namespace
) -> Server:
    """Load a checkpoint, and make its server by the options of forge.serve."""
    trained = load_run(path, trust=trust, weights=weights, device=chosen_device(options.device))
    return server_of(trained, engine_of(trained, options), run_name(path), options)


def engine_of(trained: Trained, options: argparse.Namespace, **ranks: Any) -> Engine:
    """The engine of a model, by the options of forge.serve. ranks: as of `Engine`, on several."""
    return Engine(
        trained.model,
        trained.tokenizer,
        trained.device,
        slots=options.slots,
        waiting=options.queue,
        length=options.length,
        processed_logprobs=options.logprobs_mode == PROCESSED,
        **ranks,
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
