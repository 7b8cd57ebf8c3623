"""Speculative decoding in slots: a smaller model drafts tokens for each text, the model reads them
all at once and draws its own, and the drafts that it draws too stand (arXiv:2211.17192, with draws
from the same stream of random numbers instead of rejections: texts stay those without drafts).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forge.models.batching.row import Drawn, Prompt, Row
from forge.models.batching.slots import Slots, refillable
from forge.models.head import head_of


@dataclass(kw_only=True)
class Draft:
    """A model that drafts `most` tokens at a time; counts how many it drafted, and the accepted."""

    model: Any
    most: int
    drafted: int = 0
    accepted: int = 0


def why_no_drafts(model: Any) -> str:
    """The reason against drafts for a model, or by it; empty without one."""
    if not refillable(model):
        return "its layers have windows or states, which cannot forget a draft"
    if getattr(model, "smear", None) is not None:
        return "it smears embeddings (model.smear), and cannot forget that of a draft"
    return ""


class Drafted(Slots):
    """Slots of a model, and of one that drafts; both hold the same tokens at the same places."""

    def __init__(self, draft: Draft, *args: Any) -> None:
        """args: of `Slots`. Models without a reason of `why_no_drafts`."""
        super().__init__(*args)
        self.draft = draft
        self.beside = Slots(draft.model, *args[1:])
        self.beside.rows = self.rows

    def reading(self, prompts: Iterable[Prompt], chunk: int = 0) -> Iterator[None]:
        texts = list(prompts)
        yield from super().reading(texts, chunk)
        self.beside.read = {text: read for text, read in self.beside.read.items() if text in texts}
        yield from self.beside.reading(texts, chunk)

    @torch.no_grad()
    def draw_next(self, count: int = 1) -> list[Row]:
        """Draw a token for each row, and one more for each draft that stands."""
        rows = list(self.rows)
        penalties = any(row.sampling.repetition_penalty != 1 for row in rows)
        if not penalties:
            self.had = None
        # Masks and penalties depend on the token before, which is not known yet.
        drafts = 0 if penalties else self.steps(self.draft.most + 1) - 1
        self._make_room(drafts + 1)
        position = torch.tensor([len(row.tokens) for row in rows], device=self.device)
        places = position[:, None] + torch.arange(drafts + 1, device=self.device)
        uniform = self.draws[: len(rows)].gather(1, places)
        tokens = self._tokens(rows, uniform)
        drawn = self._verified(rows, tokens, uniform)
        chosen = torch.cat([part.tokens for part in drawn], 1)
        agreed = (chosen[:, :drafts] == tokens[:, 1:]).cumprod(1).sum(1)
        self.unread[: len(rows)] = chosen.gather(1, agreed[:, None]).clamp(min=0)
        self._forget(drafts - agreed)
        self.draft.drafted += drafts * len(rows)
        self.draft.accepted += int(agreed.sum())
        self._take(rows, drawn, (agreed + 1).tolist())
        return rows

    def _tokens(self, rows: Sequence[Row], uniform: Tensor) -> Tensor:
        """The unread token of each row with its drafts, [rows, 1 + drafts]; all are read by the
        model that drafts.
        """
        tokens = [self.unread[: len(rows)]]
        for number in range(uniform.shape[1]):
            hidden = self.beside._hidden(tokens[-1])
            if number + 1 < uniform.shape[1]:
                logits = head_of(self.draft.model).logits(hidden)[:, : self.how.n_ids]
                drawn = self._drawn(rows, slice(0, len(rows)), logits, uniform[:, number])
                tokens.append(drawn[:, None].clamp(min=0))
        return torch.cat(tokens, 1)

    def _verified(self, rows: Sequence[Row], tokens: Tensor, uniform: Tensor) -> list[Drawn]:
        """What the model draws behind each of the tokens, by their places."""
        count = tokens.shape[1]
        hidden = self.model.hidden(tokens, cache=self.cache)
        if count == 1:
            return [self._draw(rows, slice(0, len(rows)), hidden[:, -1], uniform[:, 0])]
        # One product with the head for all places; `had` is None here.
        several = [row for row in rows for _ in range(count)]
        drawn = self._draw(several, slice(0, 0), hidden.flatten(0, 1), uniform.flatten())
        return [
            Drawn(
                tokens=drawn.tokens[place::count],
                logprobs=drawn.logprobs[place::count],
                candidates=drawn.candidates and [part[place::count] for part in drawn.candidates],
                support=None if drawn.support is None else drawn.support[place::count],
            )
            for place in range(count)
        ]

    def _forget(self, fallen: Tensor) -> None:
        """Take the last tokens of each row out of both caches. fallen: their numbers, [rows]."""
        least = int(fallen.min())
        shifts = fallen - least
        for slots in (self, self.beside):
            length = slots.cache.length - least
            for layer in slots.cache.layers:
                layer.length = length
            if not shifts.any():
                continue
            # All texts end at one place: those that lost more move to the back.
            places = (torch.arange(length, device=self.device) - shifts[:, None]).clamp(min=0)
            for layer in slots.cache.layers:
                for held in layer.held:
                    texts = held[..., :length, :]
                    shape = (len(fallen), *(1 for _ in held.shape[1:-2]), length, 1)
                    texts.copy_(texts.gather(-2, places.view(shape).expand_as(texts)))
            slots.padding[: len(fallen)] += shifts

    def _enter(self, rows: Sequence[Row]) -> Tensor:
        self.beside._enter(rows)
        return super()._enter(rows)

    def _make_room(self, count: int) -> None:
        self.beside._make_room(count)
        super()._make_room(count)

    def _replace(self, slot: int, last: int) -> None:
        self.beside._replace(slot, last)
        super()._replace(slot, last)

    def _shrunk(self) -> None:
        self.beside._shrunk()
        super()._shrunk()
