"""Conversations to tokens by a chat template, and which of these count."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forge.config.data.chats import Chats, own_template, preset, template_beside
from forge.config.tokenizers.chat_template import (
    BEGIN,
    BROKEN,
    END,
    PLAIN,
    BadTemplate,
    ChatTemplate,
    Written,
)
from forge.config.tokenizers.tokenizer import Tokenizer as TokenizerSection
from forge.config.tokenizers.tokenizer_stated import GENERATION, TEMPLATE
from forge.data.text.conversation import Conversation, Rendered
from forge.data.text.dropped import REASONING, dropped
from forge.data.text.messages import LEARNT, ROLES, SPEAKERS, forms_of
from forge.data.text.reading import BadFile
from forge.data.tokenizers.tokenizer import Tokenizer

log = logging.getLogger(__name__)
NAMES = ("pad_token", "unk_token")
MINE = re.compile(f"[{BEGIN}{END}{BROKEN}]")
FIX = "Mend or leave out that conversation, or give another data.chat_template"


@dataclass(frozen=True, kw_only=True)
class Render:
    """How conversations become tokens; it is sent to processes that tokenise. template: Jinja;
    None = that of the tokenizer. preset: Jinja before it, which gives its variables values.
    """

    template: str | None
    train_on: str
    end_responses: bool | None = None
    preset: str = ""

    @staticmethod
    def of(section: Chats) -> Render:
        how: dict[str, Any] = {"train_on": section.train_on, "end_responses": section.end_responses}
        how["preset"] = preset(section.chat_template_kwargs)
        return Render(template=section.template(), **how)

    def source(self, tokenizer: Tokenizer | TokenizerSection) -> str:
        """The Jinja that is used with a tokenizer, or with a section of one."""
        if self.template is not None:
            return self.preset + self.template
        if isinstance(tokenizer, Tokenizer):
            return self.preset + (own_template(tokenizer.stated.get(TEMPLATE)) or PLAIN)
        return self.preset + (template_beside(tokenizer) or PLAIN)

    def __call__(
        self, conversations: Sequence[Conversation], tokenizer: Tokenizer
    ) -> list[Rendered]:
        """BadFile: a conversation cannot be written, loses what is said, or teaches nothing."""
        template = chat_template(self.source(tokenizer), tokenizer)
        guard = _Guard(tokenizer.special_tokens)
        written = [self._written(one, template, guard) for one in conversations]
        encoded = encode([one.text for one in written], tokenizer)
        found, changed = [], []
        for one, text, (ids, starts, stops) in zip(conversations, written, encoded, strict=True):
            counted = _marked(text, starts, stops, everything=self.train_on == "all")
            if self.train_on == "all" and one.untrained:
                counted = ~_marked(text, starts, stops, everything=False)
                for turn in one.untrained:
                    if one.messages[turn]["role"] != "assistant":
                        fix = "Say it of turns of the assistant, or data.train_on=responses"
                        what = f"{one.where} has a turn of another role that is not to be learnt"
                        raise BadFile(what, fix)
            found.append(self._ended(one, text, ids, counted, tokenizer))
            if tokenizer.decode(ids.tolist()) != text.text.replace(BROKEN, ""):
                changed.append(one.where)
        if changed:
            what = f"{len(changed):,} of {len(found):,} conversations are not spelled again by"
            log.warning("%s their tokens; the first is %s", what, changed[0])
        return found

    def _written(self, one: Conversation, template: ChatTemplate, guard: _Guard) -> Written:
        messages, tools = [guard(message) for message in one.messages], guard(one.tools)
        _check_roles(one, template)
        if any(message.get("tool_calls") for message in messages):
            messages = _taken(template, messages, tools)
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        meant = turns if self.train_on == "all" else [turn for turn in turns if turn >= one.asked]
        asked = meant[-1:] if self.train_on == "last_response" else meant
        learnt = [turn for turn in asked if turn not in one.untrained]
        if self.train_on != "all" and not learnt:
            what, fix = "has no turn of the assistant to learn from", "learn all of it"
            if asked:
                what += f", by what its messages say of themselves ({', '.join(LEARNT)})"
                fix = "mend these fields"
            else:
                fix += ": data.train_on=all"
            raise BadFile(f"{one.where} {what}", f"Leave it out, or {fix}")
        wanted = learnt
        if self.train_on == "all":
            wanted = [turn for turn in turns if turn in one.untrained] or turns
        try:
            written = template.write(messages, tools, wanted=wanted)
        except BadTemplate as error:
            fix = f"{FIX}, or data.train_on=last_response" if "turn" in str(error) else FIX
            raise BadFile(f"{one.where} does not fit the chat template: {error}", fix) from error
        if lost := dropped(written.text, template, messages, tools, learnt):
            what = f"the chat template drops {lost} in {one.where}"
            fix = "Give a data.chat_template that writes every turn"
            if "'" in lost:
                name = lost.split("'")[1]
                fix = f"Give a data.chat_template that writes it, or data.leave_out=[{name}]"
                if name in REASONING and self.train_on == "responses":
                    fix += ", or data.train_on=last_response"
            elif lost == "the tools":
                fix = "Give a data.chat_template that writes all of them"
            raise BadFile(what, fix)
        return written

    def _ended(
        self,
        one: Conversation,
        text: Written,
        ids: np.ndarray,
        counted: np.ndarray,
        tokenizer: Tokenizer,
    ) -> Rendered:
        """With the token that ends the last response, and that which begins a document, where the
        template writes none.
        """
        answers = one.messages[-1]["role"] == "assistant"
        said = text.text.rstrip()
        special = [tokenizer.eos_token] if self.end_responses else tokenizer.special_tokens
        if answers and self.end_responses is not False and not said.endswith(tuple(special)):
            learnt = len(one.messages) - 1 not in one.untrained
            ids, counted = np.append(ids, tokenizer.eos_id), np.append(counted, learnt)
        if tokenizer.begin_id is not None and ids[0] != tokenizer.begin_id:
            ids = np.insert(ids, 0, tokenizer.begin_id)
            counted = np.insert(counted, 0, self.train_on == "all")
        return Rendered(tokens=ids.astype(np.uint32), counted=counted)


def _check_roles(one: Conversation, template: ChatTemplate) -> None:
    """BadFile: a turn is of a role that is not known, and that the template does not name."""
    for number, role in enumerate((message["role"] for message in one.messages), start=1):
        if role in ROLES or re.search(f"[\"']{re.escape(role)}[\"']", template.source):
            continue
        what = f"{one.where}: message {number} is of the role {role!r}, which the chat template"
        usual = SPEAKERS.get(role.lower())
        fix = f"Name it {usual!r}" if usual else f"A role is one of {', '.join(ROLES[:5])}"
        other = f"or give a data.chat_template that names {role!r}"
        raise BadFile(f"{what} does not name", f"{fix}, {other}")


def _taken(template: ChatTemplate, messages: list[Any], tools: Any) -> list[Any]:
    """The first form of messages that a template takes, and of which it does not write a null as
    Python spells it; as they are where it takes none.
    """
    best, fewest = messages, None
    for form in forms_of(messages):
        try:
            nulls = template.text(form, tools).count("None")
        except BadTemplate:
            continue
        if fewest is None or nulls < fewest:
            best, fewest = form, nulls
        if nulls == 0:
            break
    return best


def render(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    template: str | None = None,
    train_on: str = "responses",
    where: str = "the conversation",
) -> Rendered:
    """Tokens of one conversation, and which of them are learnt. template: Jinja; None = that of
    the tokenizer, else plain. BadFile, naming `where`: it does not fit the template.
    """
    one = Conversation(messages=tuple(map(dict, messages)), where=where)
    return Render(template=template, train_on=train_on)([one], tokenizer)[0]


def prompt_text(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> str:
    """What is read before the assistant answers; special tokens that messages spell are broken.
    ValueError: the template of the tokenizer refuses it.
    """
    guard, source = _Guard(tokenizer.special_tokens), Render(template=None, train_on="all")
    try:
        template = chat_template(source.source(tokenizer), tokenizer)
        return template.prompt([guard(message) for message in messages])
    except BadTemplate as error:
        raise ValueError(f"the chat template does not take these messages: {error}") from error


def prompt_ids(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> list[int]:
    """The tokens of it, which begin as documents do."""
    ((ids, _, _),) = encode([prompt_text(messages, tokenizer)], tokenizer)
    begin = tokenizer.begin_id
    return [*([begin] if begin is not None and ids[:1] != [begin] else []), *ids.tolist()]


def turn_ends(tokenizer: Tokenizer) -> tuple[str, ...]:
    """The special tokens, as they are spelled, with which the template ends an answer."""
    template = chat_template(Render(template=None, train_on="all").source(tokenizer), tokenizer)
    asked, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "zqanswerzq"}
    behind = template.write([asked, answer]).text.partition(answer["content"])[2]
    special = [token for token in tokenizer.special_tokens if token in behind]
    return tuple(sorted(special, key=behind.index)[:1])


def stated_ends(tokenizer: Tokenizer) -> list[int]:
    """The ids that end texts by what the model's folder says of generation."""
    stated = (tokenizer.stated.get(GENERATION) or {}).get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    known = range(tokenizer.vocab_size)
    return [token for token in ids if isinstance(token, int) and token in known]


def turn_end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of them. BadTemplate: as of `turn_ends`."""
    encoded = tokenizer.encode_marked(turn_ends(tokenizer))
    return frozenset(token for ids, _ in encoded for token in ids)


def chat_template(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    """A template with the special tokens of a tokenizer."""
    tokens = {"eos_token": tokenizer.eos_token, "bos_token": tokenizer.bos_token}
    for name in NAMES:
        stated = tokenizer.stated.get(name)
        tokens[name] = stated.get("content") if isinstance(stated, dict) else stated
    known = {name: token for name, token in tokens.items() if isinstance(token, str)}
    return ChatTemplate(source=source, tokens=known)


class _Guard:
    """Breaks what a message spells like a special token, so that it does not become one."""

    def __init__(self, special: Sequence[str]) -> None:
        longest = sorted(filter(None, special), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            value = MINE.sub("", value)
            return self.pattern.sub(lambda found: f"{found[0][0]}{BROKEN}{found[0][1:]}", value)
        if isinstance(value, Mapping):
            return {name: self(one) for name, one in value.items()}
        return [self(one) for one in value] if isinstance(value, list | tuple) else value


def encode(
    texts: Sequence[str], tokenizer: Tokenizer
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Of each text its ids, and where in it the characters of each of them begin and end. Special
    tokens are what spells them, unless it is broken.
    """
    parts = [text.split(BROKEN) for text in texts]
    encoded = iter(tokenizer.encode_marked([part for each in parts for part in each]))
    found = []
    for each in parts:
        at, ids, spans = 0, [], []
        for part in each:
            own, offsets = next(encoded)
            ids += own
            spans += [(start + at, stop + at) for start, stop in offsets]
            at += len(part) + 1
        starts, stops = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        found.append((np.array(ids, dtype=np.int64), starts, stops))
    return found


def _marked(
    text: Written, starts: np.ndarray, stops: np.ndarray, *, everything: bool
) -> np.ndarray:
    """Which tokens have characters of what the assistant says."""
    counted = np.full(len(starts), everything)
    for begin, end in text.spans:
        inside = np.flatnonzero((stops > begin) & (starts < end))
        if len(inside):
            counted[inside[0] : inside[-1] + 1] = True
    return counted
