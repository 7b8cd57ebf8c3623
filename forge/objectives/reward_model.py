"""Reward models: a score of each response, trained by comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from forge.config.objectives.reward_model import RewardModel as Section
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import Batch
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.models.contract import LanguageModel
from forge.models.head import Head, head_of
from forge.objectives.objective import hidden_of
from forge.objectives.preference import Compared, Preference, ResponsePair, paired, preferred
from forge.objectives.whole_rows import whole_rows_of


class RewardModel(Preference):
    """-log sigmoid(r_chosen - r_rejected) + center_rewards * (r_chosen + r_rejected)^2, r = the
    score of a response.
    """

    section: Section

    def responses(self, model: LanguageModel, batch: Batch) -> ResponsePair:
        """The score of each response, in place of a log-probability."""
        assert self.tokenizer is not None
        is_target = batch["targets"] != IGNORE_INDEX
        hidden = hidden_of(model, batch)
        row, rows = score_id(self.tokenizer, self.section.score_token), whole_rows_of(model)
        last = last_of(is_target)
        score = scores(hidden, head_of(model), last, row) * rows.has_last(is_target, last)
        return paired(rows.total(score), rows.total(is_target.sum(1)))

    def compare(self, both: ResponsePair, batch: Batch) -> Compared:
        chosen, rejected = (side.logp for side in both)
        loss = preferred(chosen - rejected)
        if weight := self.section.center_rewards:
            loss = loss + weight * (chosen + rejected).square()
        return Compared(loss=loss, rewards=(chosen, rejected), more={})


def score_id(tokenizer: Tokenizer, token: str | None) -> int:
    """The id of the token that scores. Raises ValueError for an unknown token."""
    index = tokenizer.eos_id if token is None else tokenizer.ids.get(token)
    if index is None:
        message = "the tokenizer has no such token"
        raise ValueError(f"objective.score_token={token}: {message}")
    return index


def last_of(is_target: Tensor) -> Tensor:
    """The last place with a target in each row, [rows]; 0 in rows without one."""
    places = torch.arange(is_target.shape[1], device=is_target.device)
    return (is_target * places).amax(1)


def scores(hidden: Tensor, head: Head, places: Tensor, row: int) -> Tensor:
    """The scores of rows, in fp32 (fp64 of fp64): [rows].

    hidden: [rows, seq, dim]. places: of each row's last token. row: of the head, for scores.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    states = hidden[torch.arange(len(hidden), device=hidden.device), places].to(dtype)
    local = row - head.first
    is_local = 0 <= local < len(head.weight)
    weight = head.weight[local if is_local else 0].to(dtype)
    return _Total.apply((states @ weight) * float(is_local), head)


class _Total(torch.autograd.Function):
    """The sum over ranks with rows of the head; backward each rank has its summand's gradient."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, head: Head) -> Tensor:
        return head.total(values.clone())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


@torch.no_grad()
def scores_of(
    model: Any, ids: Sequence[Sequence[int]], row: int, *, batch_size: int, device: torch.device
) -> list[float]:
    """The score of each sequence of tokens, read to its last one; the longest first."""
    order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
    results = [0.0] * len(ids)
    for first in range(0, len(order), batch_size):
        chosen = order[first : first + batch_size]
        tokens = torch.zeros(len(chosen), len(ids[chosen[0]]), dtype=torch.int64)
        for line, index in enumerate(chosen):
            tokens[line, : len(ids[index])] = torch.tensor(ids[index])
        places = torch.tensor([len(ids[index]) - 1 for index in chosen], device=device)
        hidden = model.hidden(tokens.to(device))
        values = scores(hidden, head_of(model), places, row).tolist()
        for index, value in zip(chosen, values, strict=True):
            results[index] = value
    return results
