"""Whether a chat template writes everything that a conversation says."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from forge.config.tokenizers.chat_template import BadTemplate, ChatTemplate

REASONING = ("reasoning_content", "reasoning", "thinking")
LABELS = frozenset(("id", "type", "index", "tool_call_id", "required", "role", "content"))
"""Fields that a template may leave out, since they say what others do, or nothing."""
THINK = re.compile(r"</?think>")
SHORT = 16
"""Characters of a text that may well stand elsewhere in a conversation."""


def dropped(
    text: str,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Any,
    learnt: Collection[int],
) -> str:
    """What of messages and tools is not in the text that a template made of them; '' for nothing.
    learnt: numbers of the turns that are; of any other turn its reasoning may be left out.
    """
    if tools and (template.same(text, messages, None) or not all(_written(tools, text))):
        return "the tools"
    for number, message in enumerate(messages):
        role, said = message["role"], message.get("content")
        thoughts = THINK.split(said) if isinstance(said, str) else []
        if role == "assistant" and number not in learnt:
            thoughts = thoughts[-1:]
        if not all(_has(text, thought) for thought in thoughts):
            return f"what the {role} says"
        for field in message:
            spared = field in REASONING and number not in learnt
            if field in LABELS or spared or (field == "name" and role in ("tool", "function")):
                continue
            if not message[field]:
                continue
            less = {k: v for k, v in message.items() if k != field}
            others = [*messages[:number], less, *messages[number + 1 :]]
            if template.same(text, others, tools) or not all(_written(message[field], text)):
                return f"{field!r} of the {role}"
    return _short_dropped(template, messages, tools)


def _short_dropped(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Any
) -> str:
    """Short texts are looked for with others in their place, which stand nowhere else."""
    probes = {
        number: f"zq{number}zq"
        for number, message in enumerate(messages)
        if isinstance(said := message.get("content"), str) and 0 < len(said.strip()) < SHORT
    }
    if not probes:
        return ""
    changed = [
        {**message, "content": probes[number]} if number in probes else message
        for number, message in enumerate(messages)
    ]
    try:
        text = template.text(changed, tools)
    except BadTemplate:  # by what the texts are: they were looked for as such
        return ""
    missing = [messages[number]["role"] for number, probe in probes.items() if probe not in text]
    return f"what the {missing[0]} says" if missing else ""


def _written(value: Any, text: str) -> Iterator[bool]:
    """For each name and text of a value whether it is in the text."""
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
    return said in text or any(each in text for each in spelled)
