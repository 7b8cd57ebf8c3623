"""Sampling text from a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from forge.models.contract import Cached, LanguageModel
from forge.models.head import head_of
from forge.models.modes import evaluating

NOT_FINITE = "the model's logits are not finite; its weights were trained to NaN or infinity"
NONE = -1  # in place of a token that cannot be drawn


@torch.no_grad()
def generate(
    model: LanguageModel,
    tokens: Tensor,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    eos_id: int | None = None,
    n_ids: int | None = None,
    use_cache: bool = True,
    agree: Callable[[Tensor], Tensor] = lambda drawn: drawn,
) -> Tensor:
    """Continue tokens: [batch, prompt] -> [batch, prompt + new], with new <= max_new_tokens.

    Stops at the model's max_seq_len, and once every row has produced eos_id, which rows that ended
    sooner are filled up with. n_ids: number of ids of the tokenizer; later rows of the table, which
    no text has trained, are never drawn. Temperature 0 is greedy. The same seed gives the same
    text. Without a cache every token reads the whole text again.

    agree: gives the tokens [batch, 1] that all processes take where this one drew some; processes
    that share a model must sample the same. Raises FloatingPointError for logits that are not
    finite.
    """
    _check(temperature, top_k, top_p)
    prompt = tokens.shape[1]
    if not 1 <= prompt <= model.max_seq_len:
        limit = f"model.max_seq_len={model.max_seq_len}"
        raise ValueError(f"{limit}: a prompt has 1 to that many tokens, not {prompt}")
    total = min(prompt + max_new_tokens, model.max_seq_len)
    generator = torch.Generator(tokens.device).manual_seed(seed)
    cached = cast(Cached, model) if use_cache and isinstance(model, Cached) else None
    cache = cached.new_cache(total) if cached is not None else None
    ended = torch.zeros(tokens.shape[0], 1, dtype=torch.bool, device=tokens.device)
    unread = tokens
    with evaluating(model):  # type: ignore[arg-type]
        while tokens.shape[1] < total:
            hidden = cached.hidden(unread, cache=cache) if cached else model.hidden(tokens)
            logits = head_of(model).logits(hidden[:, -1])[:, :n_ids]
            unread = agree(_draw(logits, temperature, top_k, top_p, generator))
            if bool((unread == NONE).any()):
                raise FloatingPointError(NOT_FINITE)
            if eos_id is not None:
                unread = unread.masked_fill(ended, eos_id)
                ended |= unread == eos_id
            tokens = torch.cat((tokens, unread), dim=1)
            if eos_id is not None and bool(ended.all()):
                break
    return tokens


def next_token_probabilities(
    logits: Tensor, temperature: float, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """logits: [batch, vocab] -> fp32 probabilities: temperature first, then top-k, then top-p.

    top_k keeps the k likeliest tokens (0 = all). top_p keeps the fewest likeliest tokens that
    together have at least that probability (nucleus sampling, arXiv:1904.09751). Temperature 0
    gives all to the likeliest. Raises FloatingPointError for logits that are not finite.
    """
    logits = logits.float()
    if not bool(torch.isfinite(logits).all()):
        raise FloatingPointError(NOT_FINITE)
    if temperature == 0:
        return torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
    probabilities = torch.softmax(logits / temperature, dim=-1)
    if top_k == 0 and top_p == 1:
        return probabilities
    likeliest, index = probabilities.sort(dim=-1, descending=True, stable=True)
    if top_k > 0:
        likeliest[:, top_k:] = 0.0
        likeliest /= likeliest.sum(-1, keepdim=True)
    if top_p < 1:
        before = likeliest.cumsum(-1) - likeliest
        likeliest = likeliest.masked_fill(before >= top_p, 0.0)
        likeliest /= likeliest.sum(-1, keepdim=True)
    return torch.zeros_like(probabilities).scatter_(-1, index, likeliest)


def _draw(
    logits: Tensor, temperature: float, top_k: int, top_p: float, generator: torch.Generator
) -> Tensor:
    """logits: [batch, vocab] -> tokens [batch, 1]; NONE where the logits are not finite."""
    try:
        probabilities = next_token_probabilities(logits, temperature, top_k, top_p)
    except FloatingPointError:
        return torch.full((len(logits), 1), NONE, device=logits.device)
    return torch.multinomial(probabilities, 1, generator=generator)


def _check(temperature: float, top_k: int, top_p: float) -> None:
    if temperature < 0:
        raise ValueError(f"temperature={temperature}: must be at least 0")
    if top_k < 0:
        raise ValueError(f"top_k={top_k}: must be at least 0 (0 = all tokens)")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p}: must be above 0 and at most 1")
