"""The indexer of latent attention: its loss by autograd of the formula, its choice by a loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_transformers_parity import randomise
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.mla import MLA as MLAConfig
from forge.models.decoder import Decoder
from forge.models.mixers import indexer as module
from forge.models.mixers.indexer import Indexer, best_keys, index_scores
from forge.models.rope import RotaryTable, rotate

WIDTHS = {"q_lora_rank": 12, "kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8}
INDEXER = {"use_indexer": True, "indexer_head_dim": 16, "indexer_n_heads": 5, "indexer_topk": 6}
SEQ, DIM, VOCAB = 24, 32, 50


def section(*, sparse: bool = True, factor: float = 0.0, **mixer: Any) -> DecoderConfig:
    options: Any = WIDTHS | INDEXER | {"v_head_dim": 6, "indexer_sparse_training": sparse}
    own = MLAConfig(**(options | {"indexer_loss_scaling_factor": factor} | mixer))
    sizes: Any = {"dim": DIM, "n_heads": 4, "max_seq_len": SEQ, "vocab_size": VOCAB}
    return DecoderConfig(n_layers=2, mixer=own, **sizes)


def model_of(own: DecoderConfig) -> Decoder:
    model = Decoder(own).double()
    randomise(model)
    return model


def tokens(rows: int = 2) -> Tensor:
    return torch.randint(VOCAB, (rows, SEQ), generator=torch.Generator().manual_seed(3))


def documents() -> Tensor:
    return torch.tensor([[0] * 9 + [1] * 15, [0] * 2 + [1] * 20 + [2] * 2])


def visible_in(numbers: Tensor | None) -> Tensor:
    causal = torch.ones(2, SEQ, SEQ, dtype=torch.bool).tril()
    return causal if numbers is None else causal & (numbers[:, :, None] == numbers[:, None])


def picked(values: Tensor, visible: Tensor, topk: int) -> Tensor:
    """The choice, key by key, in a plain loop."""
    mask = torch.zeros_like(visible)
    for row, query in torch.cartesian_prod(torch.arange(len(values)), torch.arange(SEQ)).tolist():
        keys = [key for key in range(SEQ) if visible[row, query, key]]
        keys.sort(key=lambda key: (-float(values[row, query, key]), key))
        mask[row, query, keys[:topk]] = True
    return mask


def losses_by_autograd(
    model: Decoder, numbers: Tensor | None, *, sparse: bool, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, Tensor]:
    """The losses of all layers, added up, and the sum of the outputs, by dense formulas."""
    total: list[Tensor] = []
    visible = visible_in(numbers)

    def learn(self: Indexer, y: Tensor, index: Any, seen: Any, target: Any) -> Tensor:
        values = index_scores(index, index.keys)[0]
        mask = picked(values.detach(), visible, 6) if sparse else visible
        logits = target.queries @ target.keys.mT * target.scale
        p = logits.masked_fill(~mask[:, None], -torch.inf).softmax(-1).sum(1)
        p = p / p.sum(-1, keepdim=True)
        log_q = values.masked_fill(~mask, -torch.inf).log_softmax(-1)
        total.append((p[mask] * (p[mask].log() - log_q[mask])).sum())
        return y

    with monkeypatch.context() as patch:
        patch.setattr(Indexer, "learn", learn)
        hidden = model.hidden(tokens(), documents=numbers)
    return torch.stack(total).sum(), hidden


@pytest.mark.parametrize("numbers", [None, documents()], ids=["one document", "documents"])
@pytest.mark.parametrize("sparse", [False, True], ids=["warm-up", "sparse"])
@pytest.mark.parametrize("at_once", [1 << 26, 7 * 2 * 5 * SEQ], ids=["at once", "in rows"])
def test_the_loss_and_its_gradient_are_those_of_the_formula(
    sparse: bool, numbers: Tensor | None, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all layers, beside a loss of the model that reaches everything but the indexers."""
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    model, factor, scale = model_of(section(sparse=sparse, factor=0.7)), 0.7, 0.125
    named = dict(model.named_parameters())
    to = torch.randn(2, SEQ, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    loss, hidden = losses_by_autograd(model, numbers, sparse=sparse, monkeypatch=monkeypatch)
    total = (hidden * to).sum() + factor * scale * loss
    expected = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    model.begin_step(scale)  # type: ignore[operator]
    (model.hidden(tokens(), documents=numbers) * to).sum().backward()
    assert loss > 1
    for (name, parameter), gradient in zip(named.items(), expected, strict=True):
        if name == "output.weight":
            continue
        assert parameter.grad is not None, name
        assert gradient is not None, name
        assert gradient.norm() > 1e-6, name
        assert (parameter.grad - gradient).norm() <= 1e-10 * gradient.norm(), name
    report = model.end_of_step(0.0, skipped=torch.tensor(False), total=lambda x: x)  # type: ignore[operator]
    torch.testing.assert_close(report.sums["indexer_loss"] * 2, loss.detach())


def test_the_indexer_learns_from_its_loss_alone() -> None:
    """The gradients of the model with the loss are, to the bit, those without; and the loss is 0,
    with no gradient, where softmax(scores) is the attention.
    """
    gradients = []
    for factor in (0.0, 1.0):
        model = model_of(section(factor=factor))
        if factor:
            model.begin_step(1.0)  # type: ignore[operator]
        model(tokens()).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    without, beside = gradients
    for name, gradient in without.items():
        if ".indexer." in name:
            assert gradient is None
            assert beside[name] is not None
        else:
            assert torch.equal(gradient, beside[name]), name


def test_a_perfect_indexer_has_no_loss() -> None:
    """One head, whose scores before ReLU are positive and those of the attention's single head."""
    layer = Indexer(section(indexer_n_heads=1)).double()
    q, k = torch.rand(2, 2, 1, SEQ, 16, dtype=torch.float64, generator=torch.Generator()).unbind()
    weights = torch.full((2, SEQ, 1), 0.3, dtype=torch.float64)
    index = module.Index(q.transpose(1, 2), k[:, 0], weights)
    loss, *gradients = layer._loss(index, None, module.Target(q, k, 0.3))
    assert abs(loss) < 1e-12
    assert all(gradient.abs().max() < 1e-12 for gradient in gradients)
    assert layer._loss(index, None, module.Target(q, k, 0.9))[0] > 0.1


@pytest.mark.parametrize("numbers", [None, documents()], ids=["one document", "documents"])
@pytest.mark.parametrize("topk", [1, 6, 23, 24])
def test_exactly_the_best_keys_are_chosen(topk: int, numbers: Tensor | None) -> None:
    """Of equal scores, of which there are many, the earlier keys."""
    values = torch.randint(-2, 3, (2, SEQ, SEQ), generator=torch.Generator().manual_seed(1)).float()
    visible = visible_in(numbers)
    mask = best_keys(values, visible, topk)
    assert torch.equal(mask, picked(values, visible, topk))
    assert torch.equal(mask.sum(-1), visible.sum(-1).clamp(max=topk))


def test_with_all_keys_chosen_the_model_is_dense() -> None:
    """And with fewer the first rows alone are equal."""
    dense, sparse = model_of(section(sparse=False)), model_of(section())
    everything = model_of(section(indexer_topk=SEQ))
    with torch.no_grad():
        expected, found = dense(tokens()), sparse(tokens())
        torch.testing.assert_close(everything(tokens()), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[:, :6], expected[:, :6], rtol=1e-12, atol=1e-12)
    assert (found - expected)[:, 6:].abs().amax(-1).min() > 1e-4


@pytest.mark.parametrize("of_model", [False, True], ids=["model apart", "model adjacent"])
@pytest.mark.parametrize("of_indexer", [False, True], ids=["apart", "adjacent"])
def test_an_indexer_rotates_its_pairs(of_indexer: bool, of_model: bool) -> None:
    """By tables in the layout of the model's pairs."""
    own = section(indexer_rope_interleave=of_indexer)
    own.rope_interleave = of_model
    x = torch.randn(1, SEQ, 3, 16, generator=torch.Generator().manual_seed(1))
    layer = Indexer(own)
    found = rotate(x, layer._in_layout(RotaryTable(own)(0, SEQ)), adjacent=of_indexer)
    own.rope_interleave = of_indexer
    expected = rotate(x, RotaryTable(own)(0, SEQ), adjacent=of_indexer)
    assert torch.equal(found, expected)
    assert not torch.equal(found, x)


@pytest.mark.parametrize("sparse", [False, True], ids=["warm-up", "sparse"])
@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_flops_are_those_counted(factor: float, sparse: bool) -> None:
    """But that a mask does not spare the products of the other keys."""
    own = section(sparse=sparse, factor=factor)
    own.sdpa_backend = "math"
    with FlopCounterMode(display=False) as counter:
        Decoder(own)(tokens()).sum().backward()
    spared = own.n_layers * 6 * own.n_heads * (18 + 6) * (SEQ - 6) if sparse else 0
    assert counter.get_total_flops() == tokens().numel() * (own.flops_per_token(SEQ) + spared)


def repeated(rows: int, generator: torch.Generator) -> Tensor:
    """Texts whose second half is their first half again."""
    half = torch.randint(VOCAB, (rows, SEQ // 2), generator=generator)
    return torch.cat((half, half), 1)


def loss_of(model: Decoder, text: Tensor) -> Tensor:
    """Of the repeated half, which is known from the tokens that are attended to."""
    logits = model(text)[:, SEQ // 2 - 1 : -1]
    return F.cross_entropy(logits.flatten(0, 1), text[:, SEQ // 2 :].flatten())


@pytest.mark.nightly
def test_a_taught_indexer_chooses_better_than_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the two stages of the paper's recipe: a dense model, then its indexer alone."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    dense = Decoder(section(sparse=False, factor=1.0))
    model_parts = dict(dense.named_parameters())
    of_indexer = [p for name, p in model_parts.items() if ".indexer." in name]
    others = [p for name, p in model_parts.items() if ".indexer." not in name]
    for parameters, steps, scale in ((others, 600, 0.0), (of_indexer, 300, 1 / (32 * SEQ))):
        optimizer = torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.0)
        losses = []
        for _ in range(steps):
            dense.begin_step(scale)  # type: ignore[operator]
            loss_of(dense, repeated(32, generator)).backward()
            sums = dense.end_of_step(0.0, skipped=torch.tensor(False), total=lambda x: x).sums  # type: ignore[operator]
            losses.append(float(sums["indexer_loss"]) / (32 * SEQ))
            optimizer.step()
            dense.zero_grad()
    assert losses[-1] < losses[0] / 3
    text = repeated(256, generator)
    sparse = Decoder(section())
    sparse.load_state_dict(dense.state_dict())

    def by_chance(values: Tensor, visible: Tensor, topk: int) -> Tensor:
        return best_keys(torch.rand(values.shape, generator=generator), visible, topk)

    with torch.no_grad():
        of_all, of_chosen = float(loss_of(dense, text)), float(loss_of(sparse, text))
        monkeypatch.setattr(module, "best_keys", by_chance)
        of_chance = float(loss_of(sparse, text))
    assert of_all < 0.5
    assert of_chosen - of_all < (of_chance - of_all) / 4
