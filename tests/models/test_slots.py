"""Texts that share slots, join late and leave early are the texts that each would be alone."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_generation import CPU, SHAPES, continued

from forge.models.batching.row import Row
from forge.models.batching.slots import Apart, Slots, refillable
from forge.models.sampling import DrawOptions, continue_rows
from forge.models.token_distribution import Sampling
from forge.rollouts.slots import write_rows

LIMIT = 24  # max_seq_len of the model
PROMPTS = [[7, 7, 3], [1], [*range(10, 30)], [*range(40, 50)], [5] * 23, [2, 9, 4], [7, 7, 3], [8]]
WAYS = [
    Sampling(temperature=0),
    Sampling(temperature=1.5, repetition_penalty=1.3, seed=4),
    Sampling(temperature=1.2, top_k=9, seed=5),
]
SMEAR = {"smear": {"smear": True}, "smear, window": {"smear": True, "sliding_window_size": 4}}


def served(model: Any, texts: list[Row], size: int, chunk: int) -> None:
    """Write texts, `size` at once; each joins when a slot is free, between two steps."""
    rows: Any = Slots(model, size, LIMIT, LIMIT, DrawOptions(), CPU) if refillable(model) else None
    rows = rows or Apart(model, size, LIMIT, DrawOptions(), CPU)
    waiting = deque(texts)
    while waiting or rows.rows:
        if waiting and rows.free:
            row = waiting.popleft()
            for _ in rows.reading([row.prompt], chunk):
                if rows.rows:
                    rows.draw_next()
            rows.join([row])
            rows.read.clear()
        if rows.rows:
            rows.draw_next()


@pytest.mark.ci("mha", "chunks, sinks", "mla latents", "delta nets", "smear")
@pytest.mark.parametrize("options", [*SHAPES.values(), *SMEAR.values()], ids=[*SHAPES, *SMEAR])
def test_a_text_does_not_depend_on_its_neighbours(small_decoder, options) -> None:
    """With options of its own each, at 1, 3 and 16 at once, its prompt read whole or in chunks."""
    model = small_decoder(**options).double().eval()
    if model.smear is not None:
        torch.nn.init.normal_(model.smear.gate)
        torch.nn.init.constant_(model.smear.scale, 0.7)
    alone = [
        continued(model, [prompt], 99, [n], sampling=WAYS[n % 3], use_cache=False)[0]
        for n, prompt in enumerate(PROMPTS)
    ]
    for size, chunk in ((1, 0), (3, 4), (16, 0)):
        rows = [
            Row(prompt=(*prompt,), number=n, most=LIMIT - len(prompt), sampling=WAYS[n % 3])
            for n, prompt in enumerate(PROMPTS)
        ]
        served(model, rows, size, chunk)
        assert [row.tokens for row in rows] == alone


@pytest.mark.parametrize("options", [SMEAR["smear"], SHAPES["delta nets"]], ids=["smear", "delta"])
def test_rollouts_of_what_is_beside_keys_and_values(small_decoder, options) -> None:
    """Rows that take the places of ended ones have embeddings, and states, of their own."""
    model = small_decoder(**options).double().eval()
    if model.smear is not None:
        torch.nn.init.normal_(model.smear.gate)
        torch.nn.init.constant_(model.smear.scale, 0.7)
    how = DrawOptions(
        sampling=WAYS[2], ended=lambda row, drawn: len(drawn) > row % 3, logprobs=True
    )
    prompts, numbers = [(*prompt,) for prompt in PROMPTS], range(len(PROMPTS))
    expected = continue_rows(model, prompts, 9, replace(how, use_cache=False), CPU)
    written = write_rows(model, prompts, numbers, 9, how, CPU, size=3)
    assert written.tokens == expected.tokens
    for mine, theirs in zip(written.logprobs, expected.logprobs, strict=True):
        assert mine == pytest.approx(theirs, abs=1e-6)


def test_candidates_and_ends(small_decoder) -> None:
    """Log-probabilities are the model's own; a row ends where its own rule says so."""
    model = small_decoder().double().eval()
    sampling = Sampling(temperature=1.5, seed=4)
    row = Row(prompt=(7, 7, 3), number=0, most=9, sampling=sampling, top=4)
    other = Row(prompt=(1, 2), number=1, most=9, sampling=sampling, ended=lambda t: len(t) == 3)
    served(model, [row, other], 2, 0)
    assert (len(row.tokens), len(other.tokens), other.candidates) == (9, 3, [])
    with torch.no_grad():
        logits = model(torch.tensor([[*row.prompt, *row.tokens]]))[0, 2:-1].log_softmax(-1)
    values, ids = logits.topk(4)
    for place, token in enumerate(row.tokens):
        assert row.logprobs[place] == pytest.approx(logits[place, token].item(), abs=1e-5)
        assert [each[0] for each in row.candidates[place]] == ids[place].tolist()
        chances = [each[1] for each in row.candidates[place]]
        assert chances == pytest.approx(values[place].tolist(), abs=1e-5)
