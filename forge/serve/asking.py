"""Bodies of requests: OpenAI's fields, checked against bounds."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forge.models.token_distribution import Sampling

TOP = 20  # candidates at a token, at most
STOPS = 16
ROLES = ("system", "developer", "user", "assistant")
IGNORED = {"user", "metadata", "service_tier", "safety_identifier", "parallel_tool_calls"}
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "store": (False,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "modalities": (["text"],),
    "skip_special_tokens": (False,),
}
"""Fields that are not obeyed, with the values that ask for nothing."""
BOUNDS: Mapping[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 100),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "top_k": (int, 0, 1 << 30),
    "repetition_penalty": (float, 0.01, 100),
    "n": (int, 1, 1 << 30),
    "seed": (int, -(1 << 63), (1 << 63) - 1),
    "max_tokens": (int, 1, 1 << 30),
    "max_completion_tokens": (int, 1, 1 << 30),
    "top_logprobs": (int, 0, TOP),
}
DRAWING = ("temperature", "top_p", "min_p", "top_k", "repetition_penalty", "seed")
OTHERS = {"model", "stream", "stream_options", "stop", "logprobs"}
OTHERS |= {"return_token_ids", "stop_token_ids"}  # as vLLM has them
FORMAT = "response_format"
OTHERS |= {FORMAT}


class Refusal(Exception):
    """An answer with an error. param: the field at fault."""

    def __init__(self, status: int, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param = status, message, param


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of a request. body: bytes. tokens: of a prompt with its answer."""

    body: int = 1 << 20
    messages: int = 256
    characters: int = 200_000
    tokens: int = 0
    n: int = 16


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A checked body. prompt: a text, token ids, or messages. most: None = all there is room for.

    top: candidates to report at each token; None = no log-probabilities. usage: in a stream. ids:
    whether to report token ids, the ending token too. ends: further ids that end an answer.
    schema: JSON schema that an answer holds to.
    """

    prompt: Any
    sampling: Sampling
    n: int
    most: int | None
    stop: tuple[str, ...]
    top: int | None
    stream: bool
    usage: bool
    ids: bool = False
    ends: frozenset[int] = frozenset()
    schema: dict[str, Any] | None = None


def parse_body(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises Refusal."""
    try:
        body = json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is no JSON: {str(error)[:200]}") from None
    if not isinstance(body, dict):
        raise Refusal(400, "the body is a JSON object")
    return {name: value for name, value in body.items() if value is not None}


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def asked_of(body: dict[str, Any], *, chat: bool, model: str, limits: Limits) -> Asked:
    """Check a body. Raises Refusal naming the field at fault."""
    if (name := body.get("model", model)) != model:
        known = f"the model is {model!r}"
        raise Refusal(404, f"there is no model {str(name)[:100]!r}; {known}", param="model")
    _check_names(body, "messages" if chat else "prompt")
    values = {name: _number(body, name) for name in BOUNDS if name in body}
    stream, n = _boolean(body, "stream"), values.get("n", 1)
    if n > limits.n:
        raise Refusal(400, f"n={n}: at most {limits.n}", param="n")
    most = values.get("max_completion_tokens", values.get("max_tokens", None if chat else 16))
    return Asked(
        prompt=checked_messages(body, limits) if chat else _prompt(body, limits),
        sampling=_sampling(values, n),
        n=n,
        most=most,
        stop=_stop(body),
        top=_top(body, values, chat=chat),
        stream=stream,
        usage=stream and _boolean(_object(body, "stream_options"), "include_usage"),
        ids=_boolean(body, "return_token_ids"),
        ends=_ends(body),
        schema=_schema(body),
    )


def _sampling(values: dict[str, Any], n: int) -> Sampling:
    """The options of the draw; without a seed a new one."""
    given = {name: values[name] for name in DRAWING if name in values}
    try:
        sampling = Sampling(**({"seed": random.getrandbits(48)} | given))
    except ValueError as error:
        raise Refusal(400, str(error), param=str(error).partition("=")[0]) from None
    if n > 1 and sampling.temperature == 0:
        raise Refusal(400, "n: with temperature 0 all answers would be the same", param="n")
    return sampling


def _check_names(body: dict[str, Any], prompt: str) -> None:
    """Refuse fields that are unknown, and values that would not be obeyed."""
    for name, value in body.items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                raise Refusal(400, f"{name}: not supported; leave it out", param=name)
        elif name not in {prompt, *BOUNDS, *OTHERS, *IGNORED}:
            raise Refusal(400, f"there is no field {name[:100]!r}", param=name[:100])


def _number(body: dict[str, Any], name: str) -> Any:
    kind, least, most = BOUNDS[name]
    value = body[name]
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or (kind is int and value != int(value)) or not least <= value <= most:
        what = "an integer" if kind is int else "a number"
        raise Refusal(400, f"{name}: {what} from {least} to {most}", param=name)
    return kind(value)


def _boolean(body: dict[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise Refusal(400, f"{name}: true or false", param=name)
    return value


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise Refusal(400, f"{name}: an object", param=name)
    return value


def _stop(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop", [])
    stops = [stop] if isinstance(stop, str) else stop
    right = isinstance(stops, list) and len(stops) <= STOPS
    if not right or not all(isinstance(each, str) and 0 < len(each) <= 1000 for each in stops):
        message = f"stop: a text, or up to {STOPS} of them, of 1 to 1000 characters"
        raise Refusal(400, message, param="stop")
    return tuple(stops)


def _ends(body: dict[str, Any]) -> frozenset[int]:
    ids = body.get("stop_token_ids", [])
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise Refusal(400, "stop_token_ids: a list of token ids", param="stop_token_ids")
    return frozenset(ids)


def _schema(body: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of the answer; None for free text."""
    kind = _object(body, FORMAT).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    stated = body[FORMAT].get("json_schema")
    schema = stated.get("schema") if isinstance(stated, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        message = 'type: text, json_object, or json_schema with {"json_schema": {"schema": {}}}'
        raise Refusal(400, f"{FORMAT}: {message}", param=FORMAT)
    return schema


def _top(body: dict[str, Any], values: dict[str, Any], *, chat: bool) -> int | None:
    """The number of candidates to report; None without log-probabilities."""
    wanted = body.get("logprobs", False if chat else None)
    if chat:
        if "top_logprobs" in values and wanted is not True:
            raise Refusal(400, "top_logprobs: give logprobs=true with it", param="top_logprobs")
        return values.get("top_logprobs", 0) if _boolean(body, "logprobs") else None
    if wanted is None or wanted is False:
        return None
    if isinstance(wanted, bool) or not isinstance(wanted, int) or not 0 <= wanted <= TOP:
        raise Refusal(400, f"logprobs: an integer from 0 to {TOP}", param="logprobs")
    return wanted


def _prompt(body: dict[str, Any], limits: Limits) -> Any:
    prompt = body.get("prompt", "")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if isinstance(prompt, list) and prompt and all(type(each) is int for each in prompt):
        return prompt
    if not isinstance(prompt, str):
        raise Refusal(400, "prompt: one text, or one list of token ids", param="prompt")
    return checked_text(prompt, "prompt", limits)


def checked_messages(body: dict[str, Any], limits: Limits) -> list[dict[str, str]]:
    """The messages of a body. Raises Refusal."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal(400, "messages: a list of messages, one at least", param="messages")
    if len(messages) > limits.messages:
        raise Refusal(413, f"messages: at most {limits.messages}", param="messages")
    read = [_message(message, number) for number, message in enumerate(messages)]
    _check_size(sum(len(message["content"]) for message in read), limits, "messages")
    return read


def _message(message: Any, number: int) -> dict[str, str]:
    place = f"messages[{number}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise Refusal(400, f"{place}: the role is one of {', '.join(ROLES)}", param=place)
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else None for part in content]
        content = "".join(map(str, texts)) if all(isinstance(t, str) for t in texts) else None
    if not isinstance(content, str):
        raise Refusal(400, f"{place}: the content is a text, or parts of text", param=place)
    _check_text(content, place)
    if extra := set(message) - {"role", "content", "name", "refusal"}:
        raise Refusal(400, f"{place}: there is no field {min(extra)[:100]!r}", param=place)
    role = "system" if message["role"] == "developer" else message["role"]
    return {"role": role, "content": content}


def checked_text(text: str, name: str, limits: Limits) -> str:
    """A text that can be encoded and is not too long. Raises Refusal."""
    _check_text(text, name)
    _check_size(len(text), limits, name)
    return text


def _check_text(text: str, name: str) -> None:
    """Refuse halves of characters, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refusal(400, f"{name}: it has half a surrogate pair", param=name) from None


def _check_size(characters: int, limits: Limits, name: str) -> None:
    if characters > limits.characters:
        message = f"{name}: {characters:,} characters, of {limits.characters:,} at most"
        raise Refusal(413, message, param=name)
