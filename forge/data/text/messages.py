"""Messages of a row as chat templates take them: JSON texts decoded, parts of text joined."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from forge.data.text.conversation import Conversation

SPEAKERS = {
    **dict.fromkeys(("human", "user", "prompter"), "user"),
    **dict.fromkeys(("gpt", "assistant", "bot", "chatgpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "function_response", "observation"), "tool"),
    "system": "system",
    "developer": "developer",
}
"""Role of a speaker, by the words of common data sets."""
ROLES = ("system", "developer", "user", "assistant", "tool", "function", "ipython")
"""Roles accepted without a mention in the chat template, since templates may write any role."""
LEARNT = {"train": True, "training": True, "weight": True, "masked": False}
"""Fields of a message marking a turn as learnt or not, with the value meaning learnt."""
CODE = ("python", "python_output")
"""Types of parts that are code an assistant runs, and what the code printed."""
SPOKEN = 'A message is {"role": "user", "content": "Hello"}'
CALL = 'A call is {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}'


class BadRow(ValueError):
    """A fault of a row, with advice to mend it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.fix = what, fix


def messages_of(messages: Any, tools: Any = None, *, asked: int = 0) -> Conversation:
    """Build a conversation of a row's messages and tools. asked: number of prompt messages. BadRow:
    a message or tool is malformed.
    """
    read, untrained = [], []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            fault, hint = f"message {number} has no text under 'role'", SPOKEN
            if isinstance(message, Mapping) and "from" in message:
                hint += "; of {'from': ..., 'value': ...} data=sharegpt makes messages"
            raise BadRow(fault, hint)
        where = f"message {number}, of {message['role']},"
        if not _is_learnt(message, where):
            untrained.append(number - 1)
        fields = {k: v for k, v in message.items() if v is not None and k not in LEARNT}
        if isinstance(fields.get("content"), list | tuple):
            fields |= _content(fields["content"], where)
        if "tool_calls" in fields:
            fields["tool_calls"] = _calls(fields["tool_calls"], where)
        if not isinstance(fields.get("content"), str):
            if not fields.get("tool_calls"):
                content = message.get("content")
                kind = "null" if content is None else type(content).__name__
                fault = f"{where} has no text under 'content' ({kind})"
                raise BadRow(fault, "What is said is one text, or the message has tool_calls")
            fields = {"role": message["role"], "content": None, **fields}
        read.append(fields)
    options: dict[str, Any] = {"untrained": tuple(untrained), "asked": asked}
    return Conversation(messages=tuple(read), where="", tools=_tools(tools) or None, **options)


def forms_of(messages: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """List the messages in all forms templates take: content of a turn of calls alone null or an
    empty text, and arguments of calls objects or texts.
    """
    forms = [list(map(dict, messages))]
    if any(message.get("content", "") is None for message in messages):
        filled = [{**turn, "content": turn.get("content") or ""} for turn in messages]
        forms.append(filled)
    if any(message.get("tool_calls") for message in messages):
        forms += [with_argument_texts(form) for form in forms]
    return forms


def with_argument_texts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the arguments of calls as JSON texts, for templates joining arguments to
    strings.
    """
    changed = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            inner = call.get("function", call)
            if "arguments" in inner:
                arguments = json.dumps(inner["arguments"], ensure_ascii=False)
                inner = {**inner, "arguments": arguments}
            calls.append({**call, "function": inner} if "function" in call else inner)
        changed.append({**message, "tool_calls": calls} if calls else dict(message))
    return changed


def without_nulls(value: Any) -> Any:
    """Drop the null entries of all mappings: columns fill each row with the fields of all rows."""
    if isinstance(value, Mapping):
        return {name: without_nulls(v) for name, v in value.items() if v is not None}
    return [without_nulls(v) for v in value] if isinstance(value, list | tuple) else value


def decoded(value: Any, where: str, fix: str) -> Any:
    """Decode a JSON text; return any other value unchanged. BadRow: the text is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"{where} is a text that is no JSON ({error})", fix) from error


def _is_learnt(message: Mapping[str, Any], where: str) -> bool:
    """Whether a turn may be learnt, by its own LEARNT fields."""
    stated = {name: message[name] for name in LEARNT if message.get(name) is not None}
    for name, value in stated.items():
        if not isinstance(value, bool | int | float) or value not in (0, 1):
            fault = f"{where} has {value!r} under {name!r}"
            raise BadRow(fault, f"A turn is learnt or not: {name!r} is true or 1, false or 0")
    says = {bool(value) is LEARNT[name] for name, value in stated.items()}
    if len(says) > 1:
        raise BadRow(f"{where} is learnt and is not: {stated}", "Leave one of them")
    return says != {False}


def _content(parts: Sequence[Any], where: str) -> dict[str, Any]:
    """The fields of a message with a content of parts: one text, or with parts of code the parts
    themselves, for a template that writes them.
    """
    kinds = {part.get("type") for part in parts if isinstance(part, Mapping)}
    if not kinds & {*CODE}:
        return {"content": _joined(parts, where)}
    read = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = _joined([{**part, "type": "text"} if kind in CODE else part], where)
        read.append({"type": kind, "text": text})
    return {"content": "", "parts": read}


def _joined(parts: Sequence[Any], where: str) -> str:
    texts = []
    for part in parts:
        kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            fault = f"{where} has a part of type {kind!r} in its content"
            raise BadRow(
                fault, 'Parts are {"type": "text", "text": "Hello"}: forge reads text alone'
            )
        if extra := [k for k, v in part.items() if k not in ("type", "text") and v is not None]:
            fault = f"{where} has {', '.join(map(repr, extra))} beside the text of a part"
            raise BadRow(fault, "Take it away: a part is a type and a text")
        texts.append(part["text"])
    return "".join(texts)


def _calls(calls: Any, where: str) -> list[Any]:
    """Decode calls, with arguments as objects for the templates."""
    where = f"{where} has tool_calls, which"
    calls = decoded(calls, where, CALL)
    if not isinstance(calls, list | tuple):
        raise BadRow(f"{where} is no list ({type(calls).__name__})", CALL)
    read = []
    for call in calls:
        call = decoded(call, where, CALL)
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise BadRow(f"{where} has a call without the name of a function", CALL)
        if "arguments" in inner:
            fault = f"{where} has arguments of {inner['name']}: it"
            arguments = decoded(inner["arguments"] or {}, fault, CALL)
            if not isinstance(arguments, Mapping):
                raise BadRow(f"{fault} is no object ({type(arguments).__name__})", CALL)
            inner = {**inner, "arguments": arguments}
        read.append({**call, "function": inner} if "function" in call else inner)
    return read


def _tools(tools: Any) -> list[Any]:
    where, hint = "'tools'", 'Tools are a list: [{"type": "function", "function": {"name": "f"}}]'
    tools = decoded(tools or [], where, hint)
    if not isinstance(tools, list | tuple):
        raise BadRow(f"{where} is no list ({type(tools).__name__})", hint)
    read = [decoded(tool, where, hint) for tool in tools]
    if not all(isinstance(tool, Mapping) for tool in read):
        raise BadRow(f"{where} has an entry that is no object", hint)
    return read
