"""Chat templates: Jinja in a sandbox, as transformers has it, and where in its text the assistant
speaks.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

BEGIN, END, BROKEN = "\ufdd0", "\ufdd1", "\ufdd2"
"""Noncharacters, which no text has: around what the assistant says, and within what a message
spells like a special token, and is none.
"""
GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
THOUGHT = """\
{%- macro thought(message) -%}
{%- set text = message.reasoning_content or message.reasoning or message.thinking -%}
{%- if text -%}{{ '<think>\\n' + text + '\\n</think>\\n\\n' }}{%- endif -%}
{%- endmacro -%}
{%- macro calls(message) -%}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first %}{{ '\\n' }}{% endif -%}
{{ '<tool_call>\\n' + ((call.function or call) | tojson) + '\\n</tool_call>' }}
{%- endfor -%}
{%- endmacro -%}
"""
PLAIN = f"""\
{THOUGHT}\
{{%- if tools -%}}
{{{{ 'Tools:' }}}}
{{%- for tool in tools %}}{{{{ '\\n' + (tool | tojson) }}}}{{% endfor -%}}
{{{{ '\\n' }}}}
{{%- endif -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'assistant' -%}}
{{{{ 'Assistant:' }}}}{{% generation %}}{{{{ ' ' + thought(message) + (message.content or '') + \
calls(message) + eos_token }}}}{{% endgeneration %}}
{{%- if not loop.last %}}{{{{ '\\n' }}}}{{% endif %}}
{{%- else -%}}
{{{{ message.role | capitalize + ': ' + message.content + '\\n' }}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{ 'Assistant:' }}}}{{%- endif -%}}
"""
CHATML = f"""\
{THOUGHT}\
{{%- if tools -%}}
{{{{ '<|im_start|>tools' }}}}
{{%- for tool in tools %}}{{{{ '\\n' + (tool | tojson) }}}}{{% endfor -%}}
{{{{ '<|im_end|>\\n' }}}}
{{%- endif -%}}
{{%- for message in messages -%}}
{{{{ '<|im_start|>' + message.role + '\\n' }}}}
{{%- if message.role == 'assistant' -%}}
{{% generation %}}{{{{ thought(message) + (message.content or '') + calls(message) + \
'<|im_end|>' }}}}{{% endgeneration %}}{{{{ '\\n' }}}}
{{%- else -%}}
{{{{ message.content + '<|im_end|>\\n' }}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{ '<|im_start|>assistant\\n' }}}}{{%- endif -%}}
"""
NAMED = {"plain": PLAIN, "chatml": CHATML}
"""Forge's own: one for any tokenizer, whose turns begin with plain text, and ChatML."""

Messages = Sequence[Mapping[str, Any]]
Spans = list[tuple[int, int]]


class BadTemplate(ValueError):
    """What is wrong with a template, or with a conversation for it."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A conversation as text. spans: of its characters, what the assistant says, turn by turn."""

    text: str
    spans: Spans


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    """BadTemplate: it is no Jinja."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols

    from forge.config.tokenizers.template_limits import LimitedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %}, around what the assistant says."""

        tags = frozenset({"generation"})  # type: ignore[assignment]

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            block = nodes.CallBlock(self.call_method("_marked"), [], [], body)
            return block.set_lineno(line)

        def _marked(self, caller: Any) -> str:
            return f"{BEGIN}{caller()}{END}"

    environment = LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals["raise_exception"] = _raise
    # The day of Llama 3's templates: what a text is does not depend on when it is read.
    environment.globals["strftime_now"] = date(2024, 7, 26).strftime
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise BadTemplate(f"it is no Jinja ({error.message}, line {error.lineno})") from error
    except jinja2.TemplateError as error:
        raise BadTemplate(f"it is no Jinja ({error})") from error


def _raise(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None, **how: Any) -> str:
    """Jinja's own escapes what HTML would read."""
    how = {"ensure_ascii": False, "indent": indent} | how
    return json.dumps(value, **how)


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A template, and the special tokens that it may name, such as eos_token."""

    source: str
    tokens: Mapping[str, str]

    @property
    def marks(self) -> bool:
        """Whether it says by itself what the assistant says."""
        return GENERATION.search(self.source) is not None

    def prompt(self, messages: Messages, tools: Any = None) -> str:
        """The text up to where the assistant is to speak. BadTemplate: it cannot be written."""
        return self._text(messages, tools, prompt=True).replace(BEGIN, "").replace(END, "")

    def text(self, messages: Messages, tools: Any = None) -> str:
        """The text of a conversation. BadTemplate: it cannot be written."""
        return self._text(messages, tools).replace(BEGIN, "").replace(END, "")

    def takes(self, messages: Messages, tools: Any = None) -> bool:
        """Whether a conversation can be written."""
        try:
            self._text(messages, tools)
        except BadTemplate:
            return False
        return True

    def same(self, text: str, messages: Messages, tools: Any = None) -> bool:
        """Whether a conversation becomes this text."""
        try:
            return self.text(messages, tools) == text
        except BadTemplate:
            return False

    def write(
        self, messages: Messages, tools: Any = None, *, wanted: Sequence[int] | None = None
    ) -> Written:
        """The text of a conversation, and what of it the assistant says: what the template marks,
        else what follows the text up to each of its turns. wanted: numbers of the turns whose place
        is asked for; None = all of the assistant's.

        BadTemplate: it cannot be written, or it is not known where the assistant speaks.
        """
        marked = self._text(messages, tools)
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        wanted = turns if wanted is None else wanted
        if not self.marks:
            return Written(text=marked, spans=self._behind(messages, tools, marked, wanted))
        text, spans = _unmarked(marked)
        if len(spans) < len(turns):
            what = f"it marks {len(spans)} of the {len(turns)} turns of the assistant"
            raise BadTemplate(f"{what} by {{% generation %}}")
        if list(wanted) == turns:
            return Written(text=text, spans=spans)
        each, rest = divmod(len(spans), len(turns))
        if rest and list(wanted) != turns[-1:]:
            what = f"it marks {len(spans)} places for {len(turns)} turns of the assistant"
            raise BadTemplate(f"{what}, so that it is not known which turn is which")
        ends = [(len(turns) - turns.index(turn)) * each for turn in wanted]
        chosen = [spans[len(spans) - end :][:each] for end in ends]
        return Written(text=text, spans=[span for turn in chosen for span in turn])

    def _behind(self, messages: Messages, tools: Any, whole: str, turns: Sequence[int]) -> Spans:
        spans = []
        for turn in turns:
            before = self._text(messages[:turn], tools, prompt=True)
            last = turn + 1 == len(messages)
            upto = whole if last else self._text(messages[: turn + 1], tools)
            for text, place in ((before, "what comes before turn"), (upto, "turn")):
                if not whole.startswith(text):
                    what = f"it writes {place} {turn + 1} otherwise where more follows"
                    raise BadTemplate(f"{what}, so that it is not known what the assistant says")
            spans.append((len(before), len(upto)))
        return spans

    def _text(self, messages: Messages, tools: Any, *, prompt: bool = False) -> str:
        import jinja2

        compiled = _compiled(self.source)
        given = {"messages": list(messages), "tools": tools, "documents": None, **self.tokens}
        compiled.environment.begin()
        try:
            return compiled.render(given, add_generation_prompt=prompt)
        except jinja2.TemplateError as error:
            raise BadTemplate(f"it refuses ({error})") from error
        except Exception as error:  # whatever its expressions do
            raise BadTemplate(f"it fails ({type(error).__name__}: {error})") from error


def _unmarked(marked: str) -> tuple[str, Spans]:
    """The text without its marks, and where they were."""
    parts, at, begun, spans = re.split(f"([{BEGIN}{END}])", marked), 0, -1, []
    for part in parts:
        if part == BEGIN:
            begun = at
        elif part == END:
            spans.append((begun, at))
        else:
            at += len(part)
    return marked.replace(BEGIN, "").replace(END, ""), spans


SYSTEM = {"role": "system", "content": "zqsystemzq"}
TURNS = [
    {"role": "user", "content": "zquserzq"},
    {"role": "assistant", "content": "zqanswerzq"},
]


def fault_of(source: str) -> str:
    """What is wrong with a template, by what it makes of a conversation; '' for nothing."""
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    template = ChatTemplate(source=source, tokens=dict.fromkeys(names, ""))
    try:
        written = template.write(TURNS)
        begun = template.prompt(TURNS[:1])
    except BadTemplate as error:
        return f"{error}."
    for turn in TURNS:
        if turn["content"] not in written.text:
            return f"it drops what the {turn['role']} says."
    if TURNS[1]["content"] not in "".join(written.text[a:b] for a, b in written.spans):
        return "what it marks by {% generation %} is not what the assistant says."
    if TURNS[0]["content"] not in begun:
        return "with add_generation_prompt it drops what the user says."
    try:
        whole = template.write([SYSTEM, *TURNS])
    except BadTemplate:  # which is said of conversations that have such a turn
        return ""
    return "" if SYSTEM["content"] in whole.text else "it drops the system turn."


def behind_answer(source: str, eos_token: str) -> str:
    """What a template writes behind an answer. BadTemplate: it does not write one."""
    names = ("bos_token", "pad_token", "unk_token")
    template = ChatTemplate(
        source=source, tokens={"eos_token": eos_token} | dict.fromkeys(names, "")
    )
    return template.text(TURNS).partition(TURNS[1]["content"])[2]
