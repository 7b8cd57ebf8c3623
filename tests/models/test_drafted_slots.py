"""Texts with drafts of another model are the texts without, whatever the drafts are worth."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import pytest
import torch
from test_generation import CPU, SHAPES, continued
from test_slots import LIMIT, PROMPTS, WAYS

from forge.models.batching.drafted import Draft, Drafted, why_no_drafts
from forge.models.batching.row import Row
from forge.models.sampling import DrawOptions


def drafted(draft: Draft, model: Any, texts: list[Row], size: int) -> None:
    """Write texts, `size` at once; each joins when a slot is free, its prompt read in chunks."""
    rows = Drafted(draft, model, size, LIMIT, LIMIT, DrawOptions(), CPU)
    waiting = deque(texts)
    while waiting or rows.rows:
        if waiting and rows.free:
            row = waiting.popleft()
            for _ in rows.reading([row.prompt], 4):
                if rows.rows:
                    rows.draw_next()
            rows.join([row])
            rows.read.clear()
        if rows.rows:
            rows.draw_next()


@pytest.mark.parametrize(
    ("shape", "noise"), [("mha", 0.0), ("mha", 0.05), ("mha", 3.0), ("mla latents", 0.05)]
)
def test_texts_are_those_without_drafts(small_decoder, shape, noise) -> None:
    """Greedy and drawn, with a penalty beside, in float64; a copy of the model is always right."""
    torch.manual_seed(1)
    model = small_decoder(**SHAPES[shape]).double().eval()
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += noise * parameter.std() * torch.randn_like(parameter)
    numbers = range(len(PROMPTS))
    for ways, size, most in ((WAYS[:1], 3, 4), (WAYS[::2], 1, 3), (WAYS[::2], 16, 2), (WAYS, 3, 3)):
        alone = [
            continued(model, [prompt], 99, [n], sampling=ways[n % len(ways)], use_cache=False)[0]
            for n, prompt in zip(numbers, PROMPTS, strict=True)
        ]
        draft = Draft(model=other, most=most)
        rows = [
            Row(prompt=(*text,), number=n, most=LIMIT - len(text), sampling=ways[n % len(ways)])
            for n, text in zip(numbers, PROMPTS, strict=True)
        ]
        drafted(draft, model, rows, size)
        assert [row.tokens for row in rows] == alone
        assert draft.drafted > 0
        assert (draft.accepted == draft.drafted) == (noise == 0)
        assert draft.accepted > 0 or noise > 1


def test_models_that_cannot_forget(small_decoder) -> None:
    assert "states" in why_no_drafts(small_decoder(**SHAPES["delta nets"]))
    assert "smears" in why_no_drafts(small_decoder(smear=True))
    assert why_no_drafts(small_decoder()) == ""
