"""Text from a model: a prompt in, its continuation out."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import torch
from torch import nn

from forge.data.tokenizer import Tokenizer
from forge.models.sampling import generate

log = logging.getLogger(__name__)


def say(text: str) -> None:
    """Print for whoever watches, on the main rank, and log; that nobody watches any more is no
    reason to fail.
    """
    log.info("%s", text.strip())
    if int(os.environ.get("RANK", 0)):
        return
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def encode_prompt(tokenizer: Tokenizer, prompt: str) -> list[int]:
    """Token ids of a prompt; an empty one begins a new document."""
    return tokenizer.encode(prompt) or [tokenizer.eos_id]


def continue_text(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    device: torch.device,
    *,
    tokens: int,
    **sampling: Any,
) -> str:
    """What the model writes after a prompt, at most `tokens` tokens; `sampling` are the options of
    forge.models.sampling.generate.
    """
    ids = encode_prompt(tokenizer, prompt)
    start, of = (
        torch.tensor([ids], device=device),
        {"eos_id": tokenizer.eos_id, "n_ids": tokenizer.vocab_size},
    )
    out = generate(model, start, tokens, **of, **sampling)  # type: ignore[arg-type]
    return tokenizer.decode(
        [token for token in out[0, len(ids) :].tolist() if token != tokenizer.eos_id]
    )
