"""Greedy writing with drafts of the model's own modules for further tokens (arXiv:2412.19437).

The modules draft a token each, the model reads all drafts at once, and those that it would have
chosen itself stand. The text is that of writing token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from forge.models.cache import LayerCache
from forge.models.head import head_of

Ended = Callable[[list[int]], bool]


@dataclass(kw_only=True)
class Speculated:
    """The new tokens of a text, and how many drafts were made for them and accepted."""

    tokens: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0


def why_not_speculate(model: Any) -> str:
    """Return the reason against drafts of a model's own, empty without one."""
    if not getattr(model, "mtp", None):
        return "the model has no modules for further tokens (model.mtp_num_layers)"
    if not hasattr(model, "new_cache") or hasattr(model, "over_tp"):
        return "drafts are made on one device"
    if len(model.engrams):
        return "memories (model.engram_layers) have a state, which cannot forget a draft"
    for kind in model.kinds:
        if kind not in model.spans:
            return f"layers of the kind '{kind}' have a state, which cannot forget a draft"
        if any(model.spans[kind]):
            return f"layers of the kind '{kind}' see a window, which cannot forget a draft"
    return ""


@torch.no_grad()
def speculate(
    model: Any,
    prompt: Sequence[int],
    most: int,
    device: torch.device,
    *,
    n_ids: int | None = None,
    ends: Collection[int] = (),
    ended: Ended | None = None,
) -> Speculated:
    """Write the likeliest tokens after a prompt, `most` at most, up to one of `ends`, or where
    `ended` says so of the new tokens, or up to the model's max_seq_len.

    n_ids: ids that may be written; null = all. Raises ValueError for a model that cannot.
    """
    if reason := why_not_speculate(model):
        raise ValueError(reason)
    most = min(most, model.max_seq_len - len(prompt))
    text, result = _Text(model, prompt, device, n_ids), Speculated()
    unread, drafts = list(prompt), list[int]()
    while len(result.tokens) < most:
        states = text.read([*unread, *drafts])
        chosen = text.likeliest(states[:, len(unread) - 1 :])
        agreed = next((n for n, draft in enumerate(drafts) if draft != chosen[n]), len(drafts))
        result.drafted, result.accepted = result.drafted + len(drafts), result.accepted + agreed
        new = [*drafts[:agreed], chosen[agreed]]
        for token in new:
            result.tokens.append(token)
            if token in ends or (ended is not None and ended(result.tokens)):
                return result
        text.accept(new, len(unread) + agreed)
        wanted = max(min(len(model.mtp), most - len(result.tokens) - 1), 0)
        drafts = text.draft(states[:, : len(unread) + agreed], wanted)
        unread = new[-1:]
    return result


class _Text:
    """A text with the caches of the model and of its modules, cut back where a draft falls.

    tails: of each depth, states for the module that its cache does not have yet, [1, n, dim].
    """

    def __init__(
        self, model: Any, prompt: Sequence[int], device: torch.device, n_ids: int | None
    ) -> None:
        self.model, self.known, self.device, self.n_ids = model, list(prompt), device, n_ids
        self.cache = model.new_cache()
        self.caches = [LayerCache(model.max_seq_len) for _ in model.mtp]
        self.tails: list[Tensor | None] = [None for _ in model.mtp]
        self.length = 0

    def read(self, tokens: Sequence[int]) -> Tensor:
        """Read tokens after those of the cache -> their states, [1, tokens, dim]."""
        return self.model.hidden(self._ids(tokens), cache=self.cache)

    def likeliest(self, states: Tensor) -> list[int]:
        """The likeliest token after each state."""
        logits = head_of(self.model).logits(states[0])
        return logits[:, : self.n_ids].argmax(-1).tolist()

    def accept(self, new: Sequence[int], read: int) -> None:
        """Add tokens to the text, and forget all that was read after `read` tokens."""
        self.known += new
        self.length += read
        for layer in self.cache.layers:
            layer.length = self.length

    def draft(self, states: Tensor, count: int) -> list[int]:
        """Draft `count` tokens after the text. states: of the tokens read last, [1, n, dim]."""
        drafts: list[int] = []
        rest = len(self.known) - 1  # the last token of the text was not read
        for depth, module in enumerate(list(self.model.mtp.values())[:count], 1):
            cache, tail = self.caches[depth - 1], self.tails[depth - 1]
            start = cache.length
            given = states if tail is None else torch.cat((tail, states), 1)
            between = [*self.known, *drafts][start + depth : rest + depth]
            embedding = self.model.embedding(self._ids(between))
            rotations = self.model._rotations(start, len(between), None)
            kind = self.model.section.repeated_kind.name
            states = module(embedding, given, rotations.get(kind), cache)
            drafts += self.likeliest(states[:, -1:])
            # After these places the module read drafts, or states that were made of drafts.
            true, true_before = (max(min(rest, rest - n + 1), 0) for n in (depth, depth - 1))
            self.tails[depth - 1] = given[:, true - start : true_before - start]
            cache.length = true
        return drafts

    def _ids(self, tokens: Sequence[int]) -> Tensor:
        return torch.tensor([list(tokens)], device=self.device)
