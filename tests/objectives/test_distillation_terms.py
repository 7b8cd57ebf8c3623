"""Terms of distillation against torch, closed forms and TRL, in fp64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from forge.models.head import Head
from forge.objectives.distillation_terms import (
    OnlineTeacher,
    StoredTeacher,
    Terms,
    distillation_terms,
)
from forge.objectives.divergences import NAMES

TOKENS, VOCAB, DIM, WIDE = 13, 29, 7, 11
CLOSE: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}


def drawn(cap: float = 0.0) -> tuple[Tensor, Head, OnlineTeacher, Tensor]:
    draw = torch.Generator().manual_seed(0)
    options: dict[str, Any] = {"generator": draw, "dtype": torch.float64}
    hidden = torch.randn(TOKENS, DIM, **options).requires_grad_()
    weight = torch.randn(VOCAB, DIM, **options).requires_grad_()
    teacher = OnlineTeacher(
        torch.randn(TOKENS, WIDE, **options),
        Head(torch.randn(VOCAB, WIDE, **options) / 2, multiplier=0.7),
    )
    targets = torch.randint(VOCAB, (TOKENS,), generator=draw)
    targets[::4] = -100
    return hidden, Head(weight, cap=cap), teacher, targets


def soft(name: str, weight: float = 1.0, **more: Any) -> Terms:
    return Terms(hard=0.0, soft={name: weight}, **more)


def with_gradients(loss: Tensor, hidden: Tensor, head: Head) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(loss, [hidden, head.weight])]


def expected(name: str, s: Tensor, t: Tensor, beta: float) -> Tensor:
    """A divergence by token, from logits, by torch's own functions."""
    log_q, log_p = s.log_softmax(-1), t.log_softmax(-1)
    if name == "jsd":
        log_m = (beta * log_p.exp() + (1 - beta) * log_q.exp()).log()
        of_teacher = F.kl_div(log_m, log_p, reduction="none", log_target=True)
        of_student = F.kl_div(log_m, log_q, reduction="none", log_target=True)
        return (beta * of_teacher + (1 - beta) * of_student).sum(-1)
    if name == "tvd":
        return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2
    first, second = (log_q, log_p) if name == "forward_kl" else (log_p, log_q)
    return F.kl_div(first, second, reduction="none", log_target=True).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("name", NAMES)
def test_divergences_equal_torchs_in_chunks_of_any_size(name: str, temperature: float) -> None:
    hidden, head, teacher, targets = drawn(cap=3.0)
    s, t = head.logits(hidden), teacher.head.logits(teacher.hidden)
    counted = targets != -100
    each = expected(name, s / temperature, t / temperature, 0.3)[counted].sum()
    ce = F.cross_entropy(s, targets, reduction="sum")
    reference = with_gradients(0.4 * ce + 0.6 * temperature**2 * each, hidden, head)
    terms = Terms(hard=0.4, soft={name: 0.6}, temperature=temperature, beta=0.3)
    for size in (3, 64):
        loss, sums = distillation_terms(hidden, head, teacher, targets, terms, chunk_size=size)
        torch.testing.assert_close(with_gradients(loss, hidden, head), reference, **CLOSE)
        torch.testing.assert_close(sums, {"hard": ce.detach(), name: each.detach()}, **CLOSE)


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, 1.0])
def test_the_generalised_jsd_equals_trls(beta: float) -> None:
    gkd = pytest.importorskip("trl.experimental.gkd")
    hidden, head, teacher, targets = drawn()
    theirs = gkd.GKDTrainer.generalized_jsd_loss(
        head.logits(hidden)[None],
        teacher.head.logits(teacher.hidden)[None],
        labels=targets[None],
        beta=beta,
        temperature=1.7,
        reduction="sum",
    )
    reference = with_gradients(theirs, hidden, head)
    terms = soft("jsd", 1 / 1.7**2, beta=beta, temperature=1.7)
    loss, _ = distillation_terms(hidden, head, teacher, targets, terms, chunk_size=5)
    torch.testing.assert_close(with_gradients(loss, hidden, head), reference, **CLOSE)


def stored(teacher: OnlineTeacher, k: int, tail: str = "bucket", t: float = 1.0) -> StoredTeacher:
    log_p = (teacher.head.logits(teacher.hidden) / t).log_softmax(-1)
    logps, ids = log_p.topk(k, -1)
    rest = log_p.scatter(1, ids, -torch.inf).logsumexp(-1, keepdim=True)
    return StoredTeacher(ids, torch.cat([logps, rest], 1), tail)


@pytest.mark.parametrize("tail", ["bucket", "renormalise"])
@pytest.mark.parametrize("name", NAMES)
def test_all_tokens_stored_equal_the_teacher_itself(name: str, tail: str) -> None:
    hidden, head, teacher, targets = drawn(cap=3.0)
    terms = Terms(hard=0.2, soft={name: 0.8}, temperature=1.3, beta=0.3)
    reference, _ = distillation_terms(hidden, head, teacher, targets, terms)
    kept = stored(teacher, VOCAB, tail, 1.3)
    loss, _ = distillation_terms(hidden, head, kept, targets, terms, chunk_size=5)
    results = (with_gradients(value, hidden, head) for value in (loss, reference))
    torch.testing.assert_close(*results, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_the_bucketed_bound_grows_with_k_up_to_the_divergence(name: str) -> None:
    hidden, head, teacher, targets = drawn()
    bounds = [
        distillation_terms(hidden, head, stored(teacher, k), targets, soft(name))[0].item()
        for k in range(1, VOCAB + 1)
    ]
    full = distillation_terms(hidden, head, teacher, targets, soft(name))[0].item()
    assert all(a <= b + 1e-12 for a, b in pairwise(bounds))
    assert bounds[0] < 0.9 * full
    assert bounds[-1] == pytest.approx(full, abs=1e-12)


@pytest.mark.parametrize("tail", ["bucket", "renormalise", "zero"])
@pytest.mark.parametrize("name", NAMES)
def test_the_tail_against_its_definition(name: str, tail: str) -> None:
    if (name, tail) == ("reverse_kl", "zero"):
        pytest.skip("infinite")
    hidden, head, teacher, targets = drawn(cap=3.0)
    k, counted = 4, targets != -100
    kept = stored(teacher, k, tail)
    q = head.logits(hidden).softmax(-1)
    q_k = q.gather(1, kept.ids)
    p_k = kept.logps[:, :-1].exp()
    if tail == "renormalise":
        p, q = p_k / p_k.sum(-1, keepdim=True), q_k / q_k.sum(-1, keepdim=True)
    else:
        q = torch.cat([q_k, 1 - q_k.sum(-1, keepdim=True)], 1)
        p = torch.cat([p_k, 1 - p_k.sum(-1, keepdim=True)], 1)
    if tail == "zero":
        p = torch.cat([p_k / p_k.sum(-1, keepdim=True), torch.full_like(p[:, :1], 1e-300)], 1)
    each = expected(name, q.log(), p.log(), 0.3)
    reference = with_gradients(each[counted].sum(), hidden, head)
    loss, _ = distillation_terms(hidden, head, kept, targets, soft(name, beta=0.3), chunk_size=5)
    torch.testing.assert_close(
        with_gradients(loss, hidden, head), reference, rtol=1e-10, atol=1e-10
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_teacher_that_is_the_student_has_no_loss_and_no_gradient(name: str) -> None:
    hidden, head, _, targets = drawn(cap=3.0)
    teacher = OnlineTeacher(hidden.detach(), Head(head.weight.detach(), cap=3.0))
    # Of stored values tvd has a kink at 0, and rounding decides on the side.
    for against in (teacher, stored(teacher, 5, t=2.0))[: 1 if name == "tvd" else 2]:
        terms = soft(name, temperature=2.0)
        loss, _ = distillation_terms(hidden, head, against, targets, terms)
        for value in with_gradients(loss, hidden, head):
            assert value.abs().max() < 1e-14


def test_rows_beyond_the_shorter_vocabulary_take_no_part() -> None:
    hidden, head, teacher, targets = drawn()
    longer = Head(torch.cat([teacher.head.weight, torch.ones(3, WIDE)]), multiplier=0.7)
    for ours, theirs in ((head, longer), (Head(head.weight[:25]), teacher.head)):
        rows = min(len(ours.weight), VOCAB)
        counted = targets != -100
        t = theirs.logits(teacher.hidden)[:, :rows]
        each = expected("jsd", ours.logits(hidden), t, 0.5)[counted].sum()
        against = OnlineTeacher(teacher.hidden, theirs)
        loss, _ = distillation_terms(hidden, ours, against, targets, soft("jsd"))
        torch.testing.assert_close(loss, each, **CLOSE)
