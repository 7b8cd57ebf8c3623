"""Answers that are JSON of a schema, whatever the weights say."""

from __future__ import annotations

import json
import sys
from typing import Any

import httpx
import jsonschema
import openai
import pytest
import torch

from forge.models.batching.row import Row
from forge.models.batching.slots import Slots
from forge.models.sampling import DrawOptions
from forge.models.token_distribution import Sampling
from forge.serve.engine import Answer, Piece, Request
from forge.serve.json_guide import MISSING, JSONGuides

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "mood": {"enum": ["calm", "wild"]},
        "years": {"type": "integer", "minimum": 0, "maximum": 99},
        "real": {"type": "boolean"},
        "parts": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["mood", "years", "real", "parts"],
    "additionalProperties": False,
}
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 90}


@pytest.fixture
def client(served) -> openai.OpenAI:
    own = httpx.Client(trust_env=False)
    return openai.OpenAI(base_url=f"{served[0]}/v1", api_key="-", max_retries=0, http_client=own)


def of_schema(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_every_answer_is_of_the_schema_and_ends(client, temperature: float) -> None:
    ask = client.chat.completions.create
    answers = [
        ask(**CHAT, response_format=of_schema(SCHEMA), temperature=temperature, seed=seed)
        for seed in range(6)
    ]
    values = [json.loads(answer.choices[0].message.content or "") for answer in answers]
    for value in values:
        jsonschema.validate(value, SCHEMA)
    assert {answer.choices[0].finish_reason for answer in answers} == {"stop"}
    assert len({str(value) for value in values}) > 3 or temperature == 0
    parts = ask(**CHAT, response_format=of_schema(SCHEMA), seed=5, temperature=1.5, stream=True)
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    jsonschema.validate(json.loads(text), SCHEMA)


def test_texts_beside_an_answer_of_a_schema_stay_as_they_are(loaded) -> None:
    """A guided text and a free one in the same steps, and each alone."""
    model, tokenizer = loaded.model, loaded.tokenizer
    maker = JSONGuides(tokenizer, [tokenizer.end_id]).maker(SCHEMA)

    def written(*guided: bool) -> list[list[int]]:
        how = DrawOptions(n_ids=tokenizer.vocab_size)
        slots = Slots(model, 2, 120, 40, how, torch.device("cpu"))
        rows = [
            Row(
                prompt=(65 + is_guided,),
                number=int(is_guided),
                most=40,
                sampling=Sampling(seed=7),
                guide=maker() if is_guided else None,
            )
            for is_guided in guided
        ]
        list(slots.reading(row.prompt for row in rows))
        slots.join(rows)
        while slots.rows:
            slots.draw_next(8)
        return [row.tokens for row in rows]

    free, guided = written(False, True)
    assert [free] == written(False)
    assert [guided] == written(True)
    assert tokenizer.decode(guided).startswith('{"mood":"')


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"type": "xml"}, "response_format: type: text, json_object, or json_schema"),
        ({"type": "json_schema"}, "response_format: type: text, json_object, or json_schema"),
        (of_schema({"type": "nothing"}), "the schema cannot be followed: Invalid type: nothing"),
    ],
)
def test_a_format_that_cannot_be_followed_is_refused(client, wanted: Any, message: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**CHAT, response_format=wanted)
    assert message in str(caught.value)


def test_an_answer_that_cannot_go_on_ends_with_an_error(loaded) -> None:
    guide = JSONGuides(loaded.tokenizer, [loaded.tokenizer.end_id]).maker({"type": "boolean"})()
    pieces: list[Piece] = []
    request = Request(
        prompt=(65,), put=pieces.append, most=4, sampling=Sampling(), ends=frozenset(), n=1
    )
    request.guide = lambda: guide
    answer = Answer(request, 0, loaded.tokenizer)
    answer.row.take(loaded.tokenizer.encode("x")[0], -1.0, [])
    answer.tell()
    assert answer.row.over
    assert "doesn't satisfy the grammar" in pieces[-1].error
    assert pieces[-1].finish is None


def test_without_the_package_it_is_said(loaded, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match="pip install") as caught:
        JSONGuides(loaded.tokenizer, [0]).maker(SCHEMA)
    assert str(caught.value) == MISSING
