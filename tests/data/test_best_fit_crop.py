"""Rows by best fit with crop, as nanochat packs them: against a scan of lists that follows its
description, on random documents; the same rows on any number of ranks and after a resume.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.refusing import SMALL, resolved

from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.data import IGNORE_INDEX
from forge.data.batches import packing, plans
from forge.data.batches.loader import TrainLoader, eval_batches
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import Plan, plan_samples
from forge.data.tokens.store import ENDS, TokenStore
from forge.objectives.pretrain import Pretrain
from forge.training.data import evaluated_plan

BOS = 0


def documents(seed: int, *, number: int, longest: int) -> list[list[int]]:
    """Documents of 1 to `longest` tokens, each beginning with BOS; all other tokens differ."""
    draw, next_token, made = random.Random(seed), 1, []
    for _ in range(number):
        length = draw.choice((1, 2, draw.randint(1, 8), draw.randint(1, longest)))
        made.append([BOS, *range(next_token, next_token + length - 1)])
        next_token += length
    return made


def scanned(
    texts: list[list[int]], *, seq_len: int, size: int, crop: bool
) -> tuple[list[list[int]], int]:
    """(rows, tokens dropped), by scanning a list of buffered documents for each fit."""
    coming: Iterator[list[int]] = iter(texts)
    buffer: list[list[int]] = []
    rows, dropped = [], 0
    while True:
        row: list[int] = []
        while len(row) < seq_len + 1:
            while len(buffer) < size and (document := next(coming, None)) is not None:
                buffer.append(document)
            room = seq_len + 1 - len(row)
            fits = [document for document in buffer if len(document) <= room]
            if fits:
                chosen = max(fits, key=len)  # max and min give the first of equals
            elif buffer and crop:
                chosen = min(buffer, key=len)
            else:
                break
            buffer = [document for document in buffer if document is not chosen]
            row += chosen[:room]
            dropped += max(len(chosen) - room, 0)
        if not row:
            return rows, dropped
        rows.append(row)


def how(policy: str, seq_len: int, size: int, **other: Any) -> dict[str, Any]:
    options = {"end_of_text": -1, "begin_of_text": BOS, "max_segments": 0, "too_long": "split"}
    return options | {"policy": policy, "seq_len": seq_len, "buffer": size} | other


def rows_of(store: TokenStore, plan: Plan) -> list[list[int]]:
    pieces = [plan.pieces_of(sample) for sample in range(len(plan))]
    return [[token for piece in row for token in store.read(*piece).tolist()] for row in pieces]


@pytest.mark.parametrize("size", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("seq_len", [1, 15, 64])
def test_rows_are_those_of_a_scan(store, monkeypatch, seq_len: int, size: int) -> None:
    monkeypatch.setattr(packing, "BLOCK", 777)  # documents cross the blocks that are read
    for seed in range(4):
        texts = documents(seed, number=400, longest=3 * seq_len + 2)
        whole = store(np.concatenate(texts), shard_tokens=1000)
        expected, dropped = scanned(texts, seq_len=seq_len, size=size, crop=True)
        plan = plan_samples(whole, **how("best_fit_crop", seq_len, size))
        assert rows_of(whole, plan) == expected
        assert all(row[0] == BOS for row in expected)
        assert {len(row) for row in expected[:-1]} == {seq_len + 1}
        assert plan.cropped == dropped
        total = sum(map(len, texts))
        assert plan.cropped_share == pytest.approx(dropped / total, abs=0)
        assert sum(map(len, expected)) + dropped == total

        short = [text[: seq_len + 1] for text in texts]
        expected, dropped = scanned(short, seq_len=seq_len, size=size, crop=False)
        plan = plan_samples(whole, **how("best_fit_pad", seq_len, size, too_long="truncate"))
        assert rows_of(whole, plan) == expected
        assert plan.cropped == dropped == 0
        assert plan.cut_off == sum(len(text) > seq_len + 1 for text in texts)


def test_documents_are_told_apart_by_their_ends_or_marks_too(store) -> None:
    texts = documents(5, number=60, longest=40)
    expected, _ = scanned(texts, seq_len=20, size=10, crop=True)
    begun = plan_samples(store(np.concatenate(texts)), **how("best_fit_crop", 20, 10))
    at_ends = store(np.concatenate([[*text[1:], BOS] for text in texts]))
    ended = how("best_fit_crop", 20, 10, begin_of_text=None, end_of_text=BOS)
    np.testing.assert_array_equal(plan_samples(at_ends, **ended).pieces, begun.pieces)
    whole = store(np.concatenate([[9] * len(text) for text in texts]))
    marks = np.zeros(len(whole), np.uint8)
    marks[np.cumsum([len(text) for text in texts]) - 1] = ENDS
    whole.counted = store(marks)
    by_marks = plan_samples(whole, **how("best_fit_crop", 20, 10))
    np.testing.assert_array_equal(by_marks.pieces, begun.pieces)
    assert [len(row) for row in rows_of(whole, by_marks)] == [len(row) for row in expected]


def test_a_plan_in_the_cache_is_written_block_by_block(store, monkeypatch, tmp_path) -> None:
    texts = documents(1, number=500, longest=50)
    whole = store(np.concatenate(texts))
    expected = plan_samples(whole, **how("best_fit_crop", 32, 16))
    monkeypatch.setattr(packing, "BLOCK", 500)
    parts = list(packing.buffered_parts(whole, **how("best_fit_crop", 32, 16)))
    assert len(parts) > 5
    assert max(len(part) for part in parts) < 60
    for _ in range(2):
        plan = plans.kept_plan(tmp_path, whole, **how("best_fit_crop", 32, 16))
        np.testing.assert_array_equal(plan.pieces, expected.pieces)
        np.testing.assert_array_equal(plan.begins, expected.begins)
        assert plan.cropped == expected.cropped > 0


def loader(whole: TokenStore, plan: Plan, **options: Any) -> TrainLoader:
    text = Mixture(stores={"": whole}, plans={"": plan})
    return TrainLoader(text, Pretrain(PretrainConfig()), seq_len=24, seed=3, **options)


def drawn(loaders: list[TrainLoader], steps: int) -> list[tuple[list, list, int, int]]:
    """(tokens, targets, n_targets, n_tokens) of steps over all ranks."""
    made = []
    for _ in range(steps):
        parts = [next(one) for one in loaders]
        counts = {(part.n_targets, part.n_tokens) for part in parts}
        assert len(counts) == 1
        rows = [
            [row for part in parts for row in part.batches[0][name].tolist()]
            for name in ("tokens", "targets")
        ]
        made.append((*rows, *counts.pop()))
    return made


@pytest.mark.parametrize("policy", ["best_fit_crop", "best_fit_pad"])
def test_ranks_and_a_resume_draw_the_same_rows(store, policy: str) -> None:
    texts = documents(2, number=300, longest=60)
    whole = store(np.concatenate(texts))
    plan = plan_samples(whole, **how(policy, 24, 20, too_long="truncate"))
    steps = len(plan) // 4 + 5  # into the second epoch
    alone = drawn([loader(whole, plan, batch_size=4)], steps)
    pair = [loader(whole, plan, batch_size=2, rank=rank, num_ranks=2) for rank in range(2)]
    assert drawn(pair, steps) == alone
    states = [one.state_dict() for one in pair]
    assert states[0] == states[1]
    four = [loader(whole, plan, batch_size=1, rank=rank, num_ranks=4) for rank in range(4)]
    stopped = drawn(four, 7)
    resumed = loader(whole, plan, batch_size=4)
    resumed.load_state_dict(four[0].state_dict())
    assert [*stopped, *drawn([resumed], steps - 7)] == alone
    for tokens, targets, n_targets, n_tokens in alone:
        counting = sum(target != IGNORE_INDEX for row in targets for target in row)
        assert n_targets == n_tokens == counting
        assert all(row[0] == BOS for row in tokens)


def test_evaluations_read_packed_rows_where_asked(store) -> None:
    """Else all of the text, cut at every seq_len."""
    texts = documents(4, number=120, longest=60)
    whole = store(np.concatenate(texts))
    expected, _ = scanned(texts, seq_len=24, size=30, crop=True)
    tokenizer: Any = SimpleNamespace(eos_id=-1, begin_id=BOS, add_eos=False)
    objective: Any = SimpleNamespace(tokenizer=tokenizer)
    options = ["train.seq_len=24", "data.packing=best_fit_crop", "data.packing_buffer=30"]
    for packed in (False, True):
        words = [*SMALL, *options, f"eval.packed={packed}", "eval.enabled=true"]
        config = resolved(words, as_point=True).config
        plan = evaluated_plan(config, whole, objective)
        collates = Pretrain(PretrainConfig())
        batches = eval_batches(whole, collates, seq_len=24, batch_size=1, plan=plan)
        rows = [(b["tokens"][0].tolist(), b["targets"][0].tolist()) for b in batches]
        read = [[*tokens[:1], *(t for t in targets if t >= 0)] for tokens, targets in rows]
        if packed:
            assert read == [row for row in expected if len(row) > 1]
        else:
            assert plan is None
            assert [t for row in read for t in row[1:]] == whole.read(1, len(whole)).tolist()
