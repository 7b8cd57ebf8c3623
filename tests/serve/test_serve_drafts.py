"""A server with a model that drafts answers as without, and counts the drafts that stand."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from serving import serving

from forge.models.batching.drafted import Draft
from forge.serve import loading
from forge.serve.__main__ import main

BODIES: list[dict[str, Any]] = [
    {"prompt": "the sea", "temperature": 0, "max_tokens": 40, "logprobs": 2},
    {"prompt": "a", "temperature": 0, "max_tokens": 33, "stop": ["e"]},
    {"prompt": "ship and the whale", "temperature": 0.9, "seed": 4, "n": 3, "max_tokens": 20},
    {"prompt": "was his", "temperature": 1.2, "top_p": 0.9, "seed": 5, "max_tokens": 28},
    {"prompt": "1", "temperature": 0, "max_tokens": 9, "response_format": {"type": "json_object"}},
    {"prompt": "the", "temperature": 0, "repetition_penalty": 1.3, "max_tokens": 12},
    {"prompt": "the", "temperature": 0, "max_tokens": 60},
]


def answered(address: str, most: int) -> list[Any]:
    def ask(body: dict[str, Any]) -> Any:
        reply = httpx.post(f"{address}/v1/completions", json=body, timeout=60, trust_env=False)
        return reply.json()["choices"]

    with ThreadPoolExecutor(most) as pool:
        return list(pool.map(ask, BODIES))


def test_answers_are_those_without_drafts(loaded) -> None:
    """Greedy and drawn answers, JSON, penalties and log-probabilities, alone and together."""
    torch.manual_seed(0)
    other = copy.deepcopy(loaded.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 0.1 * parameter.std() * torch.randn_like(parameter)
    with serving(loaded, slots=8) as (address, _):
        expected = answered(address, 1)
    for slots, at_once in ((3, 1), (8, 7)):
        draft = Draft(model=other, most=3)
        with serving(loaded, slots=slots, draft=draft) as (address, _):
            answers = answered(address, at_once)
            counts = httpx.get(f"{address}/metrics", trust_env=False).text
        for mine, theirs in zip(answers, expected, strict=True):
            for choice, other_choice in zip(mine, theirs, strict=True):
                logprobs, others = choice.pop("logprobs"), other_choice["logprobs"]
                assert choice == {k: v for k, v in other_choice.items() if k != "logprobs"}
                if others:
                    near = pytest.approx(others["token_logprobs"], abs=1e-4)
                    assert logprobs["token_logprobs"] == near
        values = dict(line.split() for line in counts.splitlines() if "{" not in line)
        assert 0 < draft.accepted < draft.drafted
        assert float(values["forge_accepted_tokens_total"]) == draft.accepted
        share = draft.accepted / draft.drafted
        assert float(values["forge_accepted_share"]) == pytest.approx(share)


def test_a_draft_of_another_tokenizer_is_refused(talker, tiny_run, capsys, monkeypatch) -> None:
    load = loading.load_run
    other = SimpleNamespace(tokenizer=SimpleNamespace(to_json=lambda: "{}"))
    monkeypatch.setattr(
        loading, "load_run", lambda path, **how: other if path == tiny_run else load(path, **how)
    )
    assert main([str(talker), "--draft", str(tiny_run), "--port", "0"]) == 2
    said = capsys.readouterr().err
    assert f"--draft {tiny_run}: its tokenizer is another than the served model's" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--draft", "nowhere"], "nowhere"),
        (["--drafts", "0", "--draft", "."], "--drafts 0: must be at least 1"),
        (["--draft", ".", "--parallel", "tp2"], "--draft .: drafts are made on one device"),
        (["--device", "cpu", "--parallel", "tp2"], "--device cpu: --parallel takes the devices"),
        (["other", "--parallel", "tp2"], "--parallel tp2: with one run alone, not with two"),
        (["--weights-from", ".", "--draft", "."], "--draft .: without --weights-from"),
        (["--parallel", "tp3"], "model.n_heads (2) must be divisible by parallel.tp (3)"),
        (["--parallel", "pp2"], "--parallel pp2: the stages of a pipeline would wait"),
    ],
)
def test_options_that_cannot_be(talker, capsys, words, said) -> None:
    assert main([str(talker), "--port", "0", *words]) == 2
    assert said in capsys.readouterr().err
