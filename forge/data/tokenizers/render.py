"""Conversations to tokens by a chat template, with a mark for each learnt token."""

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
    """Renders conversations to tokens; pickled for tokenising processes. template: Jinja; None =
    the template of the tokenizer. preset: Jinja before the template, setting its variables.
    """

    template: str | None
    train_on: str
    end_responses: bool | None = None
    preset: str = ""

    @staticmethod
    def of(section: Chats) -> Render:
        options: dict[str, Any] = {
            "train_on": section.train_on,
            "end_responses": section.end_responses,
        }
        options["preset"] = preset(section.chat_template_kwargs)
        return Render(template=section.template(), **options)

    def source(self, tokenizer: Tokenizer | TokenizerSection) -> str:
        """The Jinja source used with a tokenizer, or with a section of a tokenizer."""
        if self.template is not None:
            return self.preset + self.template
        if isinstance(tokenizer, Tokenizer):
            return self.preset + (own_template(tokenizer.stated.get(TEMPLATE)) or PLAIN)
        return self.preset + (template_beside(tokenizer) or PLAIN)

    def __call__(
        self, conversations: Sequence[Conversation], tokenizer: Tokenizer
    ) -> list[Rendered]:
        """Render conversations. BadFile: the template refuses one or drops a part, or no turn is
        learnt.
        """
        template = _chat_template(self.source(tokenizer), tokenizer)
        guard = _Guard(tokenizer.special_tokens)
        written = [self._written(conversation, template, guard) for conversation in conversations]
        encoded = encode([text.text for text in written], tokenizer)
        rendered, changed = [], []
        for conversation, text, (ids, starts, stops) in zip(
            conversations, written, encoded, strict=True
        ):
            counted = _marked(text, starts, stops, everything=self.train_on == "all")
            if self.train_on == "all" and conversation.untrained:
                counted = ~_marked(text, starts, stops, everything=False)
                for turn in conversation.untrained:
                    if conversation.messages[turn]["role"] != "assistant":
                        hint = "Say it of turns of the assistant, or data.train_on=responses"
                        message = (
                            f"{conversation.where} has a turn of another role "
                            "that is not to be learnt"
                        )
                        raise BadFile(message, hint)
            rendered.append(self._ended(conversation, text, ids, counted, tokenizer))
            if tokenizer.decode(ids.tolist()) != text.text.replace(BROKEN, ""):
                changed.append(conversation.where)
        if changed:
            message = (
                f"{len(changed):,} of {len(rendered):,} conversations are not spelled again by"
            )
            log.warning("%s their tokens; the first is %s", message, changed[0])
        return rendered

    def _written(self, one: Conversation, template: ChatTemplate, guard: _Guard) -> Written:
        messages, tools = [guard(message) for message in one.messages], guard(one.tools)
        _check_roles(one, template)
        if any(message.get("tool_calls") for message in messages):
            messages = _taken(template, messages, tools)
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        learnt = self._learnt(one, turns)
        marked = learnt
        if self.train_on == "all":
            marked = [turn for turn in turns if turn in one.untrained] or turns
        try:
            written = template.write(messages, tools, wanted=marked)
        except BadTemplate as error:
            hint = f"{FIX}, or data.train_on=last_response" if "turn" in str(error) else FIX
            raise BadFile(f"{one.where} does not fit the chat template: {error}", hint) from error
        if lost := dropped(written.text, template, messages, tools, learnt):
            fault = f"the chat template drops {lost} in {one.where}"
            raise BadFile(fault, self._hint_of_lost(lost))
        return written

    def _learnt(self, one: Conversation, turns: list[int]) -> list[int]:
        """The numbers of the turns to be learnt. Raises BadFile where none is."""
        meant = turns if self.train_on == "all" else [turn for turn in turns if turn >= one.asked]
        asked = meant[-1:] if self.train_on == "last_response" else meant
        learnt = [turn for turn in asked if turn not in one.untrained]
        if self.train_on != "all" and not learnt:
            fault, hint = "has no turn of the assistant to learn from", "learn all of it"
            if asked:
                fault += f", by what its messages say of themselves ({', '.join(LEARNT)})"
                hint = "mend these fields"
            else:
                hint += ": data.train_on=all"
            raise BadFile(f"{one.where} {fault}", f"Leave it out, or {hint}")
        return learnt

    def _hint_of_lost(self, lost: str) -> str:
        """The remedy for a part of a conversation that the template drops."""
        if lost == "the tools":
            return "Give a data.chat_template that writes all of them"
        if "'" not in lost:
            return "Give a data.chat_template that writes every turn"
        name = lost.split("'")[1]
        hint = f"Give a data.chat_template that writes it, or data.leave_out=[{name}]"
        if name in REASONING and self.train_on == "responses":
            hint += ", or data.train_on=last_response"
        return hint

    def _ended(
        self,
        one: Conversation,
        text: Written,
        ids: np.ndarray,
        counted: np.ndarray,
        tokenizer: Tokenizer,
    ) -> Rendered:
        """Add the end token of the last response and the begin token of a document, where the
        template writes none.
        """
        answers = one.messages[-1]["role"] == "assistant"
        ending = text.text.rstrip()
        special = [tokenizer.eos_token] if self.end_responses else tokenizer.special_tokens
        if answers and self.end_responses is not False and not ending.endswith(tuple(special)):
            learnt = len(one.messages) - 1 not in one.untrained
            ids, counted = np.append(ids, tokenizer.eos_id), np.append(counted, learnt)
        if tokenizer.begin_id is not None and ids[0] != tokenizer.begin_id:
            ids = np.insert(ids, 0, tokenizer.begin_id)
            counted = np.insert(counted, 0, self.train_on == "all")
        return Rendered(tokens=ids.astype(np.uint32), counted=counted)


def _check_roles(one: Conversation, template: ChatTemplate) -> None:
    """Raise BadFile for a turn of an unknown role, also not named in the template."""
    for number, role in enumerate((message["role"] for message in one.messages), start=1):
        if role in ROLES or re.search(f"[\"']{re.escape(role)}[\"']", template.source):
            continue
        fault = f"{one.where}: message {number} is of the role {role!r}, which the chat template"
        usual = SPEAKERS.get(role.lower())
        hint = f"Name it {usual!r}" if usual else f"A role is one of {', '.join(ROLES[:5])}"
        other = f"or give a data.chat_template that names {role!r}"
        raise BadFile(f"{fault} does not name", f"{hint}, {other}")


def _taken(template: ChatTemplate, messages: list[Any], tools: Any) -> list[Any]:
    """The first form of messages accepted by the template without a null spelled as Python's
    `None`, else the form with the fewest; the messages unchanged where the template accepts none.
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


def render_conversation(
    messages: Sequence[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    template: str | None = None,
    train_on: str = "responses",
    where: str = "the conversation",
) -> Rendered:
    """Render one conversation. template: Jinja; None = the template of the tokenizer, else plain.
    BadFile, naming `where`: the conversation does not fit the template.
    """
    conversation = Conversation(messages=tuple(map(dict, messages)), where=where)
    return Render(template=template, train_on=train_on)([conversation], tokenizer)[0]


def prompt_text(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> str:
    """The text before the assistant's answer; special tokens spelled in messages are broken up.
    ValueError: the template of the tokenizer refuses the messages.
    """
    guard, source = _Guard(tokenizer.special_tokens), Render(template=None, train_on="all")
    try:
        template = _chat_template(source.source(tokenizer), tokenizer)
        return template.prompt([guard(message) for message in messages])
    except BadTemplate as error:
        raise ValueError(f"the chat template does not take these messages: {error}") from error


def prompt_ids(messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer) -> list[int]:
    """The tokens of `prompt_text`, beginning as documents do."""
    ((ids, _, _),) = encode([prompt_text(messages, tokenizer)], tokenizer)
    begin = tokenizer.begin_id
    return [*([begin] if begin is not None and ids[:1] != [begin] else []), *ids.tolist()]


def encode_prompt(tokenizer: Tokenizer, prompt: str | Sequence[Mapping[str, Any]]) -> list[int]:
    """Token ids of a text or of messages, beginning as documents do; an empty text begins a new
    document.
    """
    if not isinstance(prompt, str):
        return prompt_ids(prompt, tokenizer)
    begin = [] if tokenizer.begin_id is None else [tokenizer.begin_id]
    return begin + tokenizer.encode(prompt) or [tokenizer.eos_id]


def turn_ends(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Spellings of the special token the template ends an answer with; empty without one."""
    template = _chat_template(Render(template=None, train_on="all").source(tokenizer), tokenizer)
    asked, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": "zqanswerzq"}
    behind = template.write([asked, answer]).text.partition(answer["content"])[2]
    special = [token for token in tokenizer.special_tokens if token in behind]
    return tuple(sorted(special, key=behind.index)[:1])


def stated_ends(tokenizer: Tokenizer) -> list[int]:
    """The ids ending texts according to the generation file in the model's folder."""
    stated = (tokenizer.stated.get(GENERATION) or {}).get("eos_token_id")
    ids = stated if isinstance(stated, list) else [stated]
    vocabulary = range(tokenizer.vocab_size)
    return [token for token in ids if isinstance(token, int) and token in vocabulary]


def turn_end_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The ids of `turn_ends`. BadTemplate: as for `turn_ends`."""
    encoded = tokenizer.encode_marked(turn_ends(tokenizer))
    return frozenset(token for ids, _ in encoded for token in ids)


def template_of(tokenizer: Tokenizer) -> ChatTemplate:
    """The chat template of a tokenizer; a plain one for a tokenizer without."""
    return _chat_template(Render(template=None, train_on="all").source(tokenizer), tokenizer)


def _chat_template(source: str, tokenizer: Tokenizer) -> ChatTemplate:
    """Build a template with the special tokens of a tokenizer."""
    tokens = {"eos_token": tokenizer.eos_token, "bos_token": tokenizer.bos_token}
    for name in NAMES:
        stated = tokenizer.stated.get(name)
        tokens[name] = stated.get("content") if isinstance(stated, dict) else stated
    spellings = {name: token for name, token in tokens.items() if isinstance(token, str)}
    return ChatTemplate(source=source, tokens=spellings)


class _Guard:
    """Breaks up spellings of special tokens in a message, to keep them plain text."""

    def __init__(self, special: Sequence[str]) -> None:
        longest = sorted(filter(None, special), key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest)) or "(?!)")

    def __call__(self, value: Any) -> Any:
        if isinstance(value, str):
            value = MINE.sub("", value)
            return self.pattern.sub(lambda match: f"{match[0][0]}{BROKEN}{match[0][1:]}", value)
        if isinstance(value, Mapping):
            return {name: self(entry) for name, entry in value.items()}
        return [self(entry) for entry in value] if isinstance(value, list | tuple) else value


def encode(
    texts: Sequence[str], tokenizer: Tokenizer
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Encode each text to its ids, and the first and past-the-end character of each id. Special
    tokens are read from their spelling, unless broken up.
    """
    parts = [text.split(BROKEN) for text in texts]
    encoded = iter(tokenizer.encode_marked([part for text_parts in parts for part in text_parts]))
    encoded_texts = []
    for text_parts in parts:
        offset, ids, spans = 0, [], []
        for part in text_parts:
            part_ids, offsets = next(encoded)
            ids += part_ids
            spans += [(start + offset, stop + offset) for start, stop in offsets]
            offset += len(part) + 1
        starts, stops = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        encoded_texts.append((np.array(ids, dtype=np.int64), starts, stops))
    return encoded_texts


def _marked(
    text: Written, starts: np.ndarray, stops: np.ndarray, *, everything: bool
) -> np.ndarray:
    """Mask of the tokens with characters of the assistant's turns: bool [tokens]."""
    counted = np.full(len(starts), everything)
    for begin, end in text.spans:
        inside = np.flatnonzero((stops > begin) & (starts < end))
        if len(inside):
            counted[inside[0] : inside[-1] + 1] = True
    return counted
