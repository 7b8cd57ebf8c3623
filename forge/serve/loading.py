"""The engine and the server of a checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forge.config.data.chats import Chats, own_template
from forge.config.tokenizers.tokenizer_stated import TEMPLATE
from forge.rundir.checkpoints import BEST
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
    engine = Engine(
        trained.model,
        trained.tokenizer,
        trained.device,
        slots=options.slots,
        waiting=options.queue,
        length=options.length,
        processed_logprobs=options.logprobs_mode == PROCESSED,
    )
    limits = Limits(
        body=options.max_body, messages=options.max_messages, characters=options.max_characters
    )
    others = None
    if options.weights_from is not None:
        others = WeightReader(trained.model, Path(options.weights_from))
    return Server(engine, run_name(path), limits, talks=talks(trained), weights=others)


def run_name(path: Path) -> str:
    """The name of a run: of its directory, without the folders of its checkpoints."""
    parts = [part for part in path.resolve().parts if part not in ("checkpoints", BEST)]
    return parts[-1] if not parts[-1].startswith("step_") else "/".join(parts[-2:])


def talks(trained: Trained | Any) -> bool:
    """Whether a model was trained on conversations, or its tokenizer has a chat template."""
    stated = own_template(trained.tokenizer.stated.get(TEMPLATE))
    return stated is not None or isinstance(trained.config.data, Chats)
