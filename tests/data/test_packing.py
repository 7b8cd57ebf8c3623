"""Plans of samples: no target lost or doubled, the policies against plain readings of them, and a
loader that obeys.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import TrainLoader, count_samples
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import best_fit, find_ends, first_fit, plan_samples
from forge.objectives.pretrain import Pretrain

END, SEQ = 0, 16
POLICIES = ["concat_then_split", "first_fit", "best_fit"]


def text(seed: int, *, documents: int = 80, ended: bool = True) -> np.ndarray:
    """Documents of 1 to 60 tokens; all tokens but their ends differ."""
    draw = random.Random(seed)
    lengths = [
        draw.choice((1, 2, draw.randint(1, 12), draw.randint(1, 60), SEQ, SEQ + 1))
        for _ in range(documents)
    ]
    tokens = np.arange(1, sum(lengths) + 1)
    tokens[np.cumsum(lengths) - 1] = END
    return tokens if ended else np.append(tokens, [len(tokens) + 1, len(tokens) + 2])


def pairs(tokens: np.ndarray) -> list[tuple[int, int]]:
    """(token, the next one) within documents."""
    return [(a, b) for a, b in pairwise(tokens.tolist()) if a != END]


def naive(lengths: list[int], room: int, most: int, *, best: bool) -> list[list[int]]:
    bins: list[list[int]] = []
    for number, length in enumerate(lengths):
        left = [room - sum(lengths[each] for each in one) for one in bins]
        fits = [
            own
            for own, one in enumerate(bins)
            if left[own] >= length and (not most or len(one) < most)
        ]
        if fits:
            bins[min(fits, key=lambda own: left[own]) if best else fits[0]].append(number)
        else:
            bins.append([number])
    return bins


@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("policy", [first_fit, best_fit])
def test_a_policy_is_what_its_name_says(policy, most) -> None:
    draw = random.Random(1)
    for count in (0, 1, 2, 3, 50, 257):
        lengths = [draw.randint(2, SEQ) for _ in range(count)]
        expected = naive(lengths, SEQ + 1, most, best=policy is best_fit)
        assert policy(lengths, SEQ + 1, most) == expected


@pytest.mark.parametrize("ended", [True, False])
@pytest.mark.parametrize("most", [0, 1, 3])
@pytest.mark.parametrize("policy", POLICIES)
def test_every_target_is_there_once(store, policy, most, ended) -> None:
    for seed in range(5):
        tokens = text(seed, ended=ended)
        whole = store(tokens)
        how = {"end_of_text": END, "seq_len": SEQ, "policy": policy, "max_segments": most}
        made = plan_samples(whole, **how)
        found: list[tuple[int, int]] = []
        for sample in range(len(made)):
            pieces = [whole.read(*piece) for piece in made.pieces_of(sample)]
            window = np.concatenate(pieces)
            assert 2 <= len(window) <= SEQ + 1
            found += pairs(window)
            ends = (window[:-1] == END).sum() + (window[-2] != END)
            assert not most or ends <= most
        assert sorted(found) == sorted(pairs(tokens))
        assert 0 < made.filled(SEQ) <= 1


def test_fitting_fills_sequences_better_than_a_document_each(store) -> None:
    whole, shares = store(text(0, documents=400)), {}
    for policy, most in (("first_fit", 0), ("best_fit", 0), ("best_fit", 1)):
        made = plan_samples(whole, end_of_text=END, seq_len=SEQ, policy=policy, max_segments=most)
        shares[policy, most] = made.filled(SEQ)
    assert shares["first_fit", 0] > 0.9
    assert shares["best_fit", 0] > 0.9
    assert shares["best_fit", 1] < 0.8


def test_a_text_without_ends_and_an_empty_plan(store) -> None:
    how = {"end_of_text": END, "seq_len": SEQ, "max_segments": 0}
    for policy in POLICIES:
        made = plan_samples(store(np.arange(1, 40)), policy=policy, **how)
        assert [made.pieces_of(n) for n in range(len(made))] == [[(0, 17)], [(16, 33)], [(32, 39)]]
    ends = store([END] * 40)
    for policy in ("first_fit", "best_fit"):
        empty = Mixture(stores={"": ends}, plans={"": plan_samples(ends, policy=policy, **how)})
        with pytest.raises(ValueError, match="no document of the training split has two tokens"):
            count_samples(empty, SEQ)
    assert find_ends(store(np.arange(1, 40)), END).tolist() == []


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_obeys(store, num_workers) -> None:
    """An epoch has every target once; padding has none; each rank counts those of all."""
    tokens = text(3)
    whole = store(tokens)
    made = plan_samples(whole, end_of_text=END, seq_len=SEQ, policy="best_fit", max_segments=0)
    samples = len(made) - len(made) % 2
    options = {"seq_len": SEQ, "seed": 5, "batch_size": 1, "end_of_text": END}
    planned = Mixture(stores={"": whole}, plans={"": made})
    loaders = [
        TrainLoader(
            planned,
            Pretrain(PretrainConfig()),
            **options,
            rank=rank,
            num_ranks=2,
            num_workers=num_workers,
        )
        for rank in range(2)
    ]
    found, counted = [], 0
    for _ in range(samples // 2):
        steps = [next(loader) for loader in loaders]
        assert len({step.n_targets for step in steps}) == 1
        counted += steps[0].n_targets
        rows = [step.batches[0]["tokens"][0].tolist() for step in steps]
        empty = sum(next(n for n in range(SEQ) if row[SEQ - 1 - n] != END) for row in rows)
        assert {step.n_places for step in steps} == {2 * SEQ}
        assert {step.n_tokens for step in steps} == {2 * SEQ - empty}
        for step in steps:
            batch = step.batches[0]
            kept = batch["targets"] != IGNORE_INDEX
            both = (batch[name][kept].tolist() for name in ("tokens", "targets"))
            found += zip(*both, strict=True)
            row, numbers = batch["tokens"][0].tolist(), batch["documents"][0].tolist()
            for place in range(1, SEQ):
                assert numbers[place] - numbers[place - 1] == (row[place - 1] == END)
    assert len(found) == counted
    assert len(set(found)) == len(found)
    assert set(found) <= set(pairs(tokens))
    if samples == len(made):
        assert sorted(found) == sorted(pairs(tokens))
    assert loaders[0].samples_per_epoch == len(made)
    for loader in loaders:
        loader.close()
