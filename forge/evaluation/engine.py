"""The scoring engine: log-probabilities of continuations, equal on every layout and batch size.

Requests are sorted by length and packed into rows with their documents apart, so nothing is padded
but the ends of rows. Each part of the batch reads its rows; sums by the request's index are added
up over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from forge.evaluation.packed_weights import HeadPacker, weights_packed
from forge.evaluation.requests import Reading, Request, Round, readings, rounds
from forge.evaluation.trees import joined_by_beginning
from forge.models.head import Head, head_of
from forge.models.reading_mode import evaluating
from forge.models.token_distribution import NOT_FINITE
from forge.objectives.objective import hidden_of
from forge.parallel.pipeline import Pipeline
from forge.parallel.ranks import Ranks
from forge.tasks.item import Score
from forge.tensors.wide import widest

LOGITS_AT_ONCE = {"cpu": 1 << 22}
"""Logits made at once on a device; a CPU's allocator reuses blocks below 32 MB, and clears larger
ones.
"""
MANY_LOGITS = 1 << 24
BATCH_TOKENS = 8192
CPU_TOKENS = 1024
"""Tokens read at once on a CPU, so that activations stay in its caches."""
Done = Sequence[tuple[int, Score]]


class Engine:
    """Scores requests with a model; called alike by all ranks, with equal results on all.

    batch_tokens: tokens read at once by a part of the batch. shares_rows: whether the model reads
    documents of a shared row apart; None = as the model says. shares_beginnings: whether texts that
    begin alike have their beginning read once; False = never.
    """

    def __init__(
        self,
        model: Any,
        *,
        device: torch.device,
        ranks: Ranks | None = None,
        batch_tokens: int = BATCH_TOKENS,
        shares_rows: bool | None = None,
        shares_beginnings: bool = True,
    ) -> None:
        self.model, self.device, self.ranks = model, device, ranks or Ranks()
        self.batch_tokens = batch_tokens
        apart = getattr(model, "reads_padding", False) if shares_rows is None else shares_rows
        self.shares_rows = bool(apart)
        able = self.shares_rows and getattr(model, "reads_branches", False)
        self.shares_beginnings = bool(shares_beginnings and able)
        self.multiple = _multiple(self.ranks)

    @property
    def longest(self) -> int:
        """Tokens that a request may have the model read."""
        return int(self.model.max_seq_len) // self.multiple * self.multiple

    @property
    def _tokens_at_once(self) -> int:
        """Tokens that a part of the batch reads in a round."""
        on_cpu = self.device.type == "cpu"
        return min(self.batch_tokens, CPU_TOKENS) if on_cpu else self.batch_tokens

    @torch.no_grad()
    def score(
        self, requests: Sequence[Request], on_round: Callable[[Done], None] | None = None
    ) -> list[Score]:
        """The score of each request, in their order.

        on_round: called by all ranks after each round with the requests finished in it, and free to
        raise. Raises ValueError for a request without tokens, or longer than the model, and
        FloatingPointError where a log-probability is not finite.
        """
        for number, request in enumerate(requests):
            if not request.prefix or not request.continuation:
                raise ValueError(f"request {number} has no prefix or no continuation")
            if request.length > self.longest:
                limit = f"more than model.max_seq_len={self.longest}"
                raise ValueError(f"request {number} has {request.length} tokens to read, {limit}")
        scores: list[Score | None] = [None] * len(requests)
        planned = rounds(
            self._readings(requests),
            longest=self.longest,
            batch_tokens=self._tokens_at_once,
            parts=self.ranks.batch[1],
            multiple=self.multiple,
            share=self.shares_rows,
        )
        tokens = sum(each.width * each.per_part for each in planned)
        with evaluating(self.model), weights_packed(self.model, CPU_TOKENS, tokens) as packer:
            for each in planned:
                done = list(self._round(each, requests, packer))
                for index, score in done:
                    scores[index] = score
                if on_round is not None:
                    on_round(done)
        return [score for score in scores if score is not None]

    def _readings(self, requests: Sequence[Request]) -> list[Reading]:
        """The texts to read, the longest first."""
        texts = readings(requests)
        if not self.shares_beginnings:
            return texts
        return joined_by_beginning(texts, min(self.longest, self.batch_tokens))

    def _round(
        self, planned: Round, requests: Sequence[Request], packer: HeadPacker
    ) -> Iterator[tuple[int, Score]]:
        """Read the rows of a round, and yield the requests finished in it."""
        indices = [i for row in planned.rows for reading in row for i in reading.requests]
        slots = {index: slot for slot, index in enumerate(indices)}
        sums = torch.zeros(2, len(indices), dtype=widest(self.device), device=self.device)
        part, count = self.ranks.batch[0], planned.per_part
        own = planned.rows[part * count : (part + 1) * count]
        self._add(planned, own, slots, sums, packer)
        self.ranks.total(sums)
        logprobs, matches = sums.tolist()
        for index, logprob, matched in zip(indices, logprobs, matches, strict=True):
            if logprob != logprob or logprob == -float("inf"):
                raise FloatingPointError(NOT_FINITE)
            yield index, Score(logprob, len(requests[index].continuation), int(matched))

    def _add(
        self,
        planned: Round,
        rows: Sequence[Any],
        slots: dict[int, int],
        sums: Tensor,
        packer: HeadPacker,
    ) -> None:
        """Add this rank's targets to `sums`: [2, requests], log-probabilities and matches."""
        shape = (planned.per_part, planned.width)
        tokens = torch.zeros(shape, dtype=torch.int64)
        documents = torch.zeros(shape, dtype=torch.int32)
        branches = torch.arange(1, planned.width + 1, dtype=torch.int32).repeat(planned.per_part, 1)
        targets: list[tuple[int, int, int]] = []
        for row, content in enumerate(rows):
            start = 0
            for number, reading in enumerate(content):
                end = start + len(reading.tokens)
                tokens[row, start:end] = torch.tensor(reading.tokens)
                documents[row, start:] = number
                ends = torch.tensor(reading.ends or [len(reading.tokens)])
                branches[row, start:end] = start + ends
                origin = row * planned.width + start
                targets += [(origin + at, target, slots[i]) for at, target, i in reading.targets]
                start = end
            documents[row, start:] = len(content)
        batch = {"tokens": tokens}
        if planned.branched:
            batch["branches"] = branches
        elif planned.packed:
            batch["documents"] = documents
        batch = self.ranks.own_batch(batch, ("tokens",), self.device)
        model: Any = self.model.read(batch) if isinstance(self.model, Pipeline) else self.model
        if model is None:  # a rank of a pipeline without the last stage
            return
        hidden = hidden_of(model, batch).flatten(0, 1)
        places = self.ranks.own_part(torch.arange(tokens.numel()).view(shape)).flatten()
        _look_up(hidden, packer(head_of(model)), places, targets, sums)


def _look_up(
    hidden: Tensor, head: Head, places: Tensor, targets: list[tuple[int, int, int]], sums: Tensor
) -> None:
    """Add log-probabilities and matches of targets predicted by `hidden`: [tokens, dim], the states
    at these places of the rows. A place with several targets is multiplied once.
    """
    indices = {place: index for index, place in enumerate(places.tolist())}
    own = sorted((indices[place], t, slot) for place, t, slot in targets if place in indices)
    columns = torch.tensor(own, dtype=torch.int64, device=hidden.device).view(-1, 3)
    if not len(columns):
        return
    positions, inverse = columns[:, 0].unique_consecutive(return_inverse=True)
    limit = LOGITS_AT_ONCE.get(hidden.device.type, MANY_LOGITS)
    at_once = max(limit // head.vocab_size, 1)
    for start in range(0, len(positions), at_once):
        logits = head.logits(hidden[positions[start : start + at_once]])
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        within = (inverse >= start) & (inverse < start + at_once)
        rows, labels, slots = inverse[within] - start, *columns[within, 1:].unbind(1)
        top, likeliest = logits.max(-1)
        above = (logits[rows, labels] - top[rows]).to(sums.dtype)
        # In place: a CPU takes longer to allocate as much again than to compute it.
        rest = logits.sub_(top.unsqueeze(-1)).exp_().sum(-1).to(sums.dtype).log_()
        matches = likeliest[rows] == labels
        values = torch.stack([above - rest[rows], matches.to(sums.dtype)])
        sums.index_add_(1, slots, values)


def _multiple(ranks: Ranks) -> int:
    """Number of equal pieces that a layout cuts a row into."""
    if ranks.mesh is None:
        return 1
    return prod(ranks.mesh.parallel.sequence_factors.values())
