"""Checks that a chat template writes every part of a conversation."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from forge.config.tokenizers.chat_template import BadTemplate, ChatTemplate

REASONING = ("reasoning_content", "reasoning", "thinking")
LABELS = frozenset(("id", "type", "index", "tool_call_id", "required", "role", "content"))
"""Fields a template may leave out: repeated by other fields, or without content."""
THINK = re.compile(r"</?think>")
SHORT = 16
"""Characters; a shorter text may appear elsewhere in the conversation by chance."""


def dropped(
    text: str,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Any,
    learnt: Collection[int],
) -> str:
    """The part of messages and tools missing from `text`, the output of a template; '' for nothing.
    learnt: numbers of the turns to be learnt; any other turn may lack its reasoning.
    """
    if tools and (template.same(text, messages, None) or not all(_written(tools, text))):
        return "the tools"
    for number, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        thoughts = THINK.split(content) if isinstance(content, str) else []
        if role == "assistant" and number not in learnt:
            thoughts = thoughts[-1:]
        if not all(_has(text, thought) for thought in thoughts):
            return f"what the {role} says"
        for field in message:
            if not message[field] or _may_lack(field, role, learnt=number in learnt):
                continue
            less = {k: v for k, v in message.items() if k != field}
            changed = [*messages[:number], less, *messages[number + 1 :]]
            if template.same(text, changed, tools) or not all(_written(message[field], text)):
                return f"{field!r} of the {role}"
    return _short_dropped(template, messages, tools)


def _may_lack(field: str, role: str, *, learnt: bool) -> bool:
    """Whether a template may leave out a field of a message."""
    if field in REASONING and not learnt:
        return True
    return field in LABELS or (field == "name" and role in ("tool", "function"))


def _short_dropped(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Any
) -> str:
    """Find short texts missing from the output, by writing unique probes in their place."""
    probes = {
        number: f"zq{number}zq"
        for number, message in enumerate(messages)
        if isinstance(spoken := message.get("content"), str) and 0 < len(spoken.strip()) < SHORT
    }
    if not probes:
        return ""
    changed = [
        {**message, "content": probes[number]} if number in probes else message
        for number, message in enumerate(messages)
    ]
    try:
        text = template.text(changed, tools)
    except BadTemplate:  # the template refuses the probes; long texts were checked before
        return ""
    missing = [messages[number]["role"] for number, probe in probes.items() if probe not in text]
    return f"what the {missing[0]} says" if missing else ""


def _written(value: Any, text: str) -> Iterator[bool]:
    """Yield for each name and text of a value whether `text` contains it."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name not in LABELS or isinstance(inner, Mapping):
                yield from _written(inner, text)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _written(inner, text)
    elif isinstance(value, bool):
        yield True
    else:
        yield _has(text, str(value)) or _has(text, json.dumps(value, default=str))


def _has(text: str, said: str) -> bool:
    said = said.strip()
    spelled = (json.dumps(said, ensure_ascii=ascii_alone)[1:-1] for ascii_alone in (False, True))
    return said in text or any(spelling in text for spelling in spelled)
