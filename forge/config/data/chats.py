"""Conversations in the `data` group: instructions and answers, in the turns of a chat template."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from forge.config.data.text import Data, Dataset, Rows, Streams
from forge.config.field import opt, section
from forge.config.regular import read_text
from forge.config.rule import Findings, rule
from forge.config.tokenizers.chat_template import NAMED, behind_answer, fault_of
from forge.config.tokenizers.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, Tokenizer
from forge.config.tokenizers.tokenizer_files import Existing, Facts
from forge.config.tokenizers.tokenizer_stated import TEMPLATE, stated_beside

GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
GUARD = "put {% generation %} and {% endgeneration %} around what the assistant says"


@section
class Chats(Data):
    """Base of what is conversations: how they are written, and what of them is learnt."""

    marks_responses = True
    several_turns = True  # of the assistant, in a row
    prompt = "What is Python?"
    chat_template: str | None = opt(
        None,
        f"Jinja that writes the turns, or {' or '.join(NAMED)}; null = that of the tokenizer, else "
        "plain",
        verbatim=True,
    )
    chat_template_path: str | None = opt(None, "file of the chat template", path=True)
    train_on: str = opt(
        "responses",
        "tokens to learn: all, those of the assistant, or those of its last turn",
        choices=("all", "responses", "last_response"),
    )
    end_responses: bool | None = opt(
        None,
        "end the last turn of the assistant with tokenizer.eos_token; null = where the template "
        "ends it with no special token",
    )
    chat_template_kwargs: dict[str, Any] = opt(
        {}, "variables of the template, such as enable_thinking: false; kept with the tokenizer"
    )
    leave_out: list[str] = opt(
        [],
        "fields of messages to leave out; a field that a template would drop is refused otherwise",
    )

    def template(self) -> str | None:
        """Read the Jinja; None = the tokenizer's. OSError, UnicodeDecodeError: from the template's
        file.
        """
        if self.chat_template_path:
            return read_text(self.chat_template_path)
        return NAMED.get(self.chat_template or "", self.chat_template)


@section
class ChatDemo(Chats):
    """Instructions and answers made of the functions of this Python's standard library, and of
    what they say of themselves (PSF-2.0); without a download.
    """

    schema_name = "chat_demo"
    prompt = "What does Path.exists do?"
    _target_: str = "forge.data.sources.chat_demo.chat_demo"


@section
class ChatRows(Chats, Rows, Dataset):
    """Base of conversations of your own: rows of JSON, JSON lines or Parquet, or a dataset of the
    `datasets` library, of the hub or of this machine.
    """


@section
class Alpaca(Streams, ChatRows):
    """Rows of an instruction, an input, which may be left out or empty, and an output."""

    schema_name = "alpaca"
    several_turns = False
    _target_: str = "forge.data.sources.chats.alpaca"


@section
class ShareGPT(Streams, ChatRows):
    """Rows of conversations: a list of who speaks, `from`, and what, `value`."""

    schema_name = "sharegpt"
    _target_: str = "forge.data.sources.chats.sharegpt"
    messages_field: str = opt("conversations", "field of the list")


@section
class Chat(Streams, ChatRows):
    """Rows of messages: a list of who speaks, `role`, and what, `content`; and maybe of tools. Or
    rows of two such lists, a prompt and its completion, which is learnt.
    """

    schema_name = "chat"
    _target_: str = "forge.data.sources.chats.chat"
    messages_field: str = opt("messages", "field of the list")
    prompt_field: str = opt(
        "prompt", "field of the messages that are not learnt, of a row without such a list"
    )
    completion_field: str = opt("completion", "field of the messages that follow the prompt")


@section
class Formatted(ChatRows):
    """Rows that a function of your own makes messages of."""

    schema_name = "formatted"
    _target_: str = "forge.data.sources.chats.formatted"
    formatting_func: dict[str, Any] = opt(
        {},
        "{_target_: mypkg.messages, name: value}: called with a row and these keywords, gives its "
        "messages, each {role: user, content: ...}, or null to leave it out",
    )

    @property
    def reader(self) -> dict[str, Any]:
        """The target and its options: the function is built of the user's trusted code, and called
        with rows.
        """
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return options | {"formatting_func": {**self.formatting_func, "_partial_": True}}


def preset(variables: Mapping[str, Any]) -> str:
    """Jinja that sets unset variables to the given values; goes before a template."""
    return "".join(
        f"{{%- if {name} is not defined %}}{{% set {name} = {_literal(value)} %}}{{% endif -%}}"
        for name, value in variables.items()
    )


def _literal(value: Any) -> str:
    """A value of YAML as an expression of Jinja."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(k)}: {_literal(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return repr(value)


def own_template(stated: Any) -> str | None:
    """The Jinja of a tokenizer, from the tokenizer's files: a text, or several by name."""
    if isinstance(stated, list):
        templates = {
            entry.get("name"): entry.get("template") for entry in stated if isinstance(entry, dict)
        }
        stated = templates.get("default", next(iter(templates.values()), None))
    return stated if isinstance(stated, str) else None


def template_beside(tokenizer: Tokenizer) -> str | None:
    """The Jinja in the files of a tokenizer, or of its options."""
    facts = tokenizer.facts() if isinstance(tokenizer, Existing) else ""
    file = facts.file if isinstance(facts, Facts) else None
    if tokenizer.template is not None:
        return tokenizer.template
    return own_template(stated_beside(file).get(TEMPLATE)) if file is not None else None


@rule("data.chat_template", "data.chat_template", "data.chat_template_path", "tokenizer.path")
def chat_template(data: Chats, tokenizer: Tokenizer) -> Findings:
    """A chat template is Jinja that writes every turn, and says where the assistant speaks."""
    key, path = "data.chat_template", data.chat_template_path
    if needed := {"role", "content"} & set(data.leave_out):
        yield "data.leave_out", f"a turn needs {', '.join(sorted(needed))}.", "take it away"
    for name in data.chat_template_kwargs:
        if not str(name).isidentifier() or name in GIVEN:
            yield f"{key}_kwargs", f"{name!r} is no variable of a template.", "take it away"
            return
    other = "data.chat_template=plain"
    if data.chat_template is not None and path is not None:
        yield key, "two templates are given.", f"{key}_path=null"
        return
    if path is not None:
        key, other = f"{key}_path", f"{other} data.chat_template_path=null"
        if not os.path.isfile(path):
            yield key, f"there is no file {path}.", f"check the path, or {other}"
            return
    try:
        source = data.template()
    except (OSError, UnicodeDecodeError) as error:
        yield key, f"it cannot be read ({error}).", f"a file of Jinja in UTF-8, or {other}"
        return
    if (from_tokenizer := source is None) and (source := template_beside(tokenizer)) is None:
        return
    if fault := fault_of(preset(data.chat_template_kwargs) + source):
        fault = f"in the template of the tokenizer: {fault}" if from_tokenizer else fault
        hint = GUARD if "generation" in fault or "not known" in fault else "mend it"
        yield key, fault, f"{hint}, or {other}"


@rule("data.formatting_func")
def formatting_func(data: Formatted) -> Findings:
    """data=formatted needs the function that makes messages of a row, as a _target_."""
    if not data.formatting_func.get("_target_"):
        key = "data.formatting_func"
        yield key, f"+{key}._target_=mypkg.messages run.trust=[mypkg.]"


@rule("data.no_template", "data.chat_template", "tokenizer.path", warning=True)
def no_template(data: Chats, tokenizer: Existing) -> Findings:
    """A tokenizer that brings no chat template learns forge's plain one."""
    is_chosen = data.chat_template is not None or data.chat_template_path is not None
    if (
        not is_chosen
        and isinstance(tokenizer.facts(), Facts)
        and template_beside(tokenizer) is None
    ):
        message = (
            f"{tokenizer.place} brings no chat template; plain is taken: User: ..., Assistant: ..."
        )
        yield (
            "data.chat_template",
            message,
            "data.chat_template=plain, or chatml, or one of your own",
        )


@rule(
    "data.end_responses",
    *("data.end_responses", "data.chat_template", "data.chat_template_path", "tokenizer.path"),
)
def turns_end(data: Chats, tokenizer: Tokenizer) -> Findings:
    """With data.end_responses=false the chat template itself ends an answer with a special token,
    else a model that learns it never stops.
    """
    if data.end_responses is False and _ends_no_turn(data, tokenizer):
        message = "the chat template writes no special token after an answer, so it never ends one."
        yield "data.end_responses", message, "data.end_responses=true"


@rule(
    "data.ends_no_turn",
    *("data.chat_template", "data.chat_template_path", "data.train_on", "tokenizer.path"),
    warning=True,
)
def ends_no_turn(data: Chats, tokenizer: Tokenizer) -> Findings:
    """A chat template ends each answer with a special token; else only the last of a row does."""
    learns_several = data.train_on != "last_response" and data.several_turns
    if learns_several and data.end_responses is not False and _ends_no_turn(data, tokenizer):
        message = (
            "the chat template writes no special token after an answer: tokenizer.eos_token is"
        )
        message += " put after the last one of a row, and nothing ends those before it."
        hint = (
            "data.train_on=last_response, or data.chat_template=plain, or one that ends each turn"
        )
        yield "data.chat_template", message, hint


def _ends_no_turn(data: Chats, tokenizer: Tokenizer) -> bool:
    """Whether the template is known to write no token after an answer at which generation
    stops.
    """
    facts = tokenizer.facts() if isinstance(tokenizer, Existing) else ""
    special, end = [END_OF_TEXT, BEGIN_OF_TEXT, *tokenizer.specials], END_OF_TEXT
    if isinstance(tokenizer, Existing):
        if not isinstance(facts, Facts):
            return False
        end = tokenizer.end_token(facts) or ""
        special = [*facts.added, *filter(None, (facts.eos, end))]
    try:
        source = data.template() or template_beside(tokenizer) or NAMED["plain"]
        behind = behind_answer(preset(data.chat_template_kwargs) + source, end)
    except (OSError, ValueError):  # reported by the rule data.chat_template
        return False
    return not any(token in behind for token in special)
