"""What is sampled: distributions in closed form, greedy text, ends, seeds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers import LogitsProcessorList
from transformers.generation import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from forge.models.sampling import generate
from forge.models.token_distribution import (
    Sampling,
    drawn_from,
    next_token_probabilities,
    penalised,
    uniforms,
)

P = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.2])


class FixedLogits(nn.Module):
    """A model that always predicts the same distribution."""

    max_seq_len = 4096

    def __init__(self, probabilities: Tensor) -> None:
        super().__init__()
        self.log_p = probabilities.log()

    def hidden(self, tokens: Tensor, *, cache: None = None) -> Tensor:
        return torch.ones(*tokens.shape, 1)

    @property
    def output_weight(self) -> Tensor:
        return self.log_p[:, None]


EXPECTED = [
    ({"temperature": 1.0}, [0.05, 0.4, 0.1, 0.25, 0.2]),
    ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
    ({"temperature": 0.5}, (P**2 / (P**2).sum()).tolist()),
    ({"temperature": 1.0, "top_k": 2}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
    ({"temperature": 1.0, "top_p": 0.5}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
    ({"temperature": 1.0, "top_p": 0.8}, [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
    ({"temperature": 1.0, "top_k": 3, "top_p": 0.6}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
    ({"temperature": 1.0, "min_p": 0.3}, [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
    ({"temperature": 0.5, "min_p": 0.3}, [0, 0.16 / 0.2225, 0, 0.0625 / 0.2225, 0]),
]


@pytest.mark.parametrize(("options", "expected"), EXPECTED)
def test_probabilities_in_closed_form(options, expected) -> None:
    logits = torch.stack((P.log(), P.flip(0).log() + 3.0))
    both = torch.stack((torch.tensor(expected), torch.tensor(expected).flip(0)))
    found = next_token_probabilities(logits, **options)
    torch.testing.assert_close(found, both.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "cuts", [{"top_k": 40}, {"top_p": 0.6}, {"min_p": 0.1}, {"top_k": 30, "top_p": 0.7}], ids=str
)
def test_probabilities_are_those_of_transformers(cuts, temperature) -> None:
    """By its own processors, in the order of its `generate`."""
    penalty, wide = 1.4, {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    draw = torch.Generator().manual_seed(2)
    logits = 3 * torch.randn(16, 200, generator=draw)
    text = torch.randint(200, (16, 30), generator=draw)
    kinds = {"top_k": TopKLogitsWarper, "top_p": TopPLogitsWarper, "min_p": MinPLogitsWarper}
    steps = [RepetitionPenaltyLogitsProcessor(penalty), TemperatureLogitsWarper(temperature)]
    steps += [kind(cuts[name]) for name, kind in kinds.items() if name in cuts]
    expected = LogitsProcessorList(steps)(text, logits).softmax(-1)
    had = torch.zeros(16, 200, dtype=torch.bool).scatter(1, text, True)
    way = Sampling(temperature=temperature, **wide | cuts)
    found = way.probabilities(penalised(logits, had, penalty))
    assert 1 < (expected > 0).sum(-1).float().mean() < 100
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_a_draw_is_the_inverse_of_what_probabilities_sum_up_to() -> None:
    """What has no probability is not drawn at the borders either."""
    p = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    places = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53, 1.0], dtype=torch.float64)
    drawn = drawn_from(p.expand(len(places), -1), places)
    assert drawn.tolist() == [1, 1, 3, 3, 4, 4, 4]


def test_a_row_draws_from_a_stream_of_its_own() -> None:
    cpu = torch.device("cpu")
    many = uniforms(5, range(6), 40, cpu)
    assert torch.equal(uniforms(5, [4, 1], 3, cpu), many[[4, 1], :3])
    assert torch.equal(uniforms(5, [4, 1], 40, cpu), many[[4, 1]])
    others = torch.cat((many, uniforms(6, range(6), 40, cpu)))
    assert (torch.corrcoef(others) - torch.eye(12)).abs().max() < 0.6
    assert torch.unique(others).numel() == others.numel()


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"temperature": 0.5}, {"min_p": 0.3}], ids=str
)
def test_samples_have_those_frequencies(options) -> None:
    """Chi-squared over 20,000 draws, below its 99.9 % point for 4 degrees of freedom."""
    prompt = torch.zeros(1000, 1, dtype=torch.int64)
    sampled = generate(FixedLogits(P), prompt, 20, use_cache=False, seed=1, **options)[:, 1:]
    wanted = next_token_probabilities(P.log()[None], **({"temperature": 1.0} | options))[0]
    expected = wanted * sampled.numel()
    counts = torch.bincount(sampled.flatten(), minlength=5)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert ((counts - expected)[possible] ** 2 / expected[possible]).sum() < 18.47


@pytest.mark.parametrize(
    "options", [{}, {"n_kv_heads": 1, "qk_norm": True}, {"position": "learned"}], ids=str
)
def test_greedy_text_is_the_chain_of_likeliest_tokens_with_and_without_a_cache(
    small_decoder, options
) -> None:
    model = small_decoder(**options)
    expected = torch.tensor([[3, 1, 4], [1, 5, 9]])
    prompt = expected
    for _ in range(12):
        expected = torch.cat((expected, model(expected)[:, -1].argmax(-1, keepdim=True)), dim=1)
    assert expected[:, 3:].unique().numel() > 3
    for use_cache in (True, False):
        text = generate(model, prompt, 12, temperature=0, use_cache=use_cache)
        assert torch.equal(text, expected)


def test_the_seed_decides_and_the_global_generator_is_left_alone(small_decoder) -> None:
    model, prompt = small_decoder(), torch.tensor([[1, 2]])
    before = torch.get_rng_state()
    texts = [
        generate(model, prompt, 20, seed=seed, use_cache=use_cache)
        for seed, use_cache in ((0, True), (0, True), (0, False), (1, True))
    ]
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    assert not torch.equal(texts[0], texts[3])


def test_text_stops_at_the_longest_sequence(small_decoder) -> None:
    model = small_decoder()
    assert generate(model, torch.zeros(2, 20, dtype=torch.int64), 50).shape == (2, 24)
    assert generate(model, torch.zeros(2, 24, dtype=torch.int64), 50).shape == (2, 24)
    assert generate(model, torch.zeros(2, 5, dtype=torch.int64), 0).shape == (2, 5)
    what = r"model\.max_seq_len=24: a prompt has 1 to that many tokens, not 25"
    with pytest.raises(ValueError, match=what):
        generate(model, torch.zeros(1, 25, dtype=torch.int64), 1)


def test_ended_rows_are_filled_and_all_ended_stops() -> None:
    prompt = torch.zeros(16, 1, dtype=torch.int64)
    text = generate(FixedLogits(P), prompt, 4000, use_cache=False, eos_id=1)[:, 1:]
    assert text.shape[1] < 200
    for row in text.tolist():
        end = row.index(1)
        assert row[end:] == [1] * (len(row) - end)
    assert any(row.index(1) < text.shape[1] - 1 for row in text.tolist())
    assert (text[:, -2] != 1).any()


@pytest.mark.parametrize("training", [True, False])
def test_mode_is_restored_and_no_graph_kept(small_decoder, training) -> None:
    model = small_decoder().train(training)
    modes = []

    def note(module, *_) -> None:
        modes.append((module.training, torch.is_grad_enabled()))

    model.blocks["0"].register_forward_hook(note)
    generate(model, torch.tensor([[1]]), 2)
    assert set(modes) == {(False, False)}
    assert model.training is model.blocks["0"].training is training
    model.blocks["0"].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generate(model, torch.tensor([[1]]), 2)
    assert model.training is training


@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": -1.0}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0.0}),
        *({"top_p": 1.5}, {"min_p": -0.1}, {"min_p": 1.1}, {"repetition_penalty": 0.0}),
    ],
    ids=str,
)
def test_impossible_options_are_refused(small_decoder, options) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        generate(small_decoder(), torch.tensor([[1]]), 1, **options)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_that_no_token_has_are_never_drawn(temperature) -> None:
    """The second is the likeliest by far; a tokenizer of one id has no such token."""
    model, prompt = FixedLogits(torch.tensor([0.01, 0.99])), torch.zeros(1, 1, dtype=torch.int64)
    drawn = [generate(model, prompt, 50, temperature=temperature, n_ids=n) for n in (1, 2)]
    assert (drawn[0] == 0).all()
    assert (drawn[1] == 1).sum() > 40
