"""Chat templates: Jinja in a sandbox, as in transformers, and the spans of the assistant in the
text.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any

BEGIN, END, BROKEN = "\ufdd0", "\ufdd1", "\ufdd2"
"""Noncharacters, absent from every text: around the assistant's words, and inside a message's
spelling of a special token, to break the token.
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
NANOCHAT = """\
{%- set state = namespace(system='', asked=false) -%}
{{- '<|bos|>' -}}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set state.system = message.content + '\\n\\n' -%}
{%- elif message.role == 'user' and not state.asked -%}
{{- '<|user_start|>' + state.system + message.content + '<|user_end|>' -}}
{%- set state.system = '' -%}
{%- set state.asked = true -%}
{%- elif message.role == 'assistant' and state.asked -%}
{{- '<|assistant_start|>' -}}
{%- for part in message.parts or [{'type': 'text', 'text': message.content or ''}] -%}
{%- if part.type == 'python_output' -%}
{{- '<|output_start|>' + part.text + '<|output_end|>' -}}
{%- elif part.type == 'python' -%}
{%- generation -%}{{- '<|python_start|>' + part.text + '<|python_end|>' -}}{%- endgeneration -%}
{%- else -%}
{%- generation -%}{{- part.text -}}{%- endgeneration -%}
{%- endif -%}
{%- endfor -%}
{%- generation -%}{{- '<|assistant_end|>' -}}{%- endgeneration -%}
{%- set state.asked = false -%}
{%- else -%}
{{- raise_exception('after an optional system message, turns of user and assistant alternate') -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""
NAMED = {"plain": PLAIN, "chatml": CHATML, "nanochat": NANOCHAT}
"""Forge's own templates: one for any tokenizer, with turns that begin with plain text, ChatML, and
nanochat's, whose parts {type: python} and {type: python_output} are code and what it printed.
"""

Messages = Sequence[Mapping[str, Any]]
Spans = list[tuple[int, int]]


class BadTemplate(ValueError):
    """A fault of a template, or of a conversation for a template."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A conversation as text. spans: character ranges of the assistant's words, turn by turn."""

    text: str
    spans: Spans


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    """Compile a template. BadTemplate: no Jinja."""
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols

    from forge.config.tokenizers.template_limits import LimitedEnvironment

    class Generation(Extension):
        """{% generation %} ... {% endgeneration %} around the assistant's words."""

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
    # The day of Llama 3's templates: a fixed day keeps texts independent of the time of reading.
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


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """Write JSON; Jinja's own filter escapes characters of HTML."""
    options = {"ensure_ascii": False, "indent": indent} | options
    return json.dumps(value, **options)


@dataclass(frozen=True, kw_only=True)
class ChatTemplate:
    """A template, and its special tokens by name, such as eos_token."""

    source: str
    tokens: Mapping[str, str]

    @property
    def marks(self) -> bool:
        """Whether the template marks the assistant's words."""
        return GENERATION.search(self.source) is not None

    def prompt(self, messages: Messages, tools: Any = None) -> str:
        """Write the text up to the assistant's next turn. BadTemplate: the text cannot be
        written.
        """
        return self._text(messages, tools, prompt=True).replace(BEGIN, "").replace(END, "")

    def text(self, messages: Messages, tools: Any = None) -> str:
        """Write the text of a conversation. BadTemplate: the text cannot be written."""
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
        """Write the text of a conversation with the spans of the assistant: the template's marks,
        else the text after the prompt of each turn. wanted: numbers of the turns with a span; None
        = all of the assistant's.

        BadTemplate: the text cannot be written, or the assistant's spans are unknown.
        """
        marked = self._text(messages, tools)
        turns = [n for n, message in enumerate(messages) if message["role"] == "assistant"]
        wanted = turns if wanted is None else wanted
        if not self.marks:
            return Written(text=marked, spans=self._behind(messages, tools, marked, wanted))
        text, spans = _unmarked(marked)
        if len(spans) < len(turns):
            fault = f"it marks {len(spans)} of the {len(turns)} turns of the assistant"
            raise BadTemplate(f"{fault} by {{% generation %}}")
        if list(wanted) == turns:
            return Written(text=text, spans=spans)
        firsts = self._first_spans(messages, tools, turns) if len(spans) > len(turns) else []
        if firsts and firsts[-1] < len(spans):
            edges = dict(zip(turns, pairwise([*firsts, len(spans)]), strict=True))
            chosen = [spans[slice(*edges[turn])] for turn in wanted]
            return Written(text=text, spans=[span for turn in chosen for span in turn])
        per_turn, remainder = divmod(len(spans), len(turns))
        if remainder and list(wanted) != turns[-1:]:
            fault = f"it marks {len(spans)} places for {len(turns)} turns of the assistant"
            raise BadTemplate(f"{fault}, so that it is not known which turn is which")
        ends = [(len(turns) - turns.index(turn)) * per_turn for turn in wanted]
        chosen = [spans[len(spans) - end :][:per_turn] for end in ends]
        return Written(text=text, spans=[span for turn in chosen for span in turn])

    def _first_spans(self, messages: Messages, tools: Any, turns: Sequence[int]) -> list[int]:
        """The number of spans before each turn of the assistant, from the beginnings of the
        conversation; empty where these cannot be written, or turns would have none.
        """
        try:
            beginnings = [self._text(messages[:turn], tools) for turn in turns]
        except BadTemplate:
            return []
        firsts = [len(_unmarked(beginning)[1]) for beginning in beginnings]
        grows = firsts[0] == 0 and all(low < high for low, high in pairwise(firsts))
        return firsts if grows else []

    def _behind(
        self, messages: Messages, tools: Any, full_text: str, turns: Sequence[int]
    ) -> Spans:
        spans = []
        for turn in turns:
            prompt = self._text(messages[:turn], tools, prompt=True)
            last = turn + 1 == len(messages)
            upto = full_text if last else self._text(messages[: turn + 1], tools)
            for prefix, label in ((prompt, "what comes before turn"), (upto, "turn")):
                if not full_text.startswith(prefix):
                    message = f"it writes {label} {turn + 1} otherwise where more follows"
                    raise BadTemplate(f"{message}, so that it is not known what the assistant says")
            spans.append((len(prompt), len(upto)))
        return spans

    def _text(self, messages: Messages, tools: Any, *, prompt: bool = False) -> str:
        import jinja2

        compiled = _compiled(self.source)
        variables = {"messages": list(messages), "tools": tools, "documents": None, **self.tokens}
        compiled.environment.begin()
        try:
            return compiled.render(variables, add_generation_prompt=prompt)
        except jinja2.TemplateError as error:
            raise BadTemplate(f"it refuses ({error})") from error
        except Exception as error:  # expressions of a template may raise anything
            raise BadTemplate(f"it fails ({type(error).__name__}: {error})") from error


def _unmarked(marked: str) -> tuple[str, Spans]:
    """The text without marks, and the spans of the marks."""
    parts, position, begun, spans = re.split(f"([{BEGIN}{END}])", marked), 0, -1, []
    for part in parts:
        if part == BEGIN:
            begun = position
        elif part == END:
            spans.append((begun, position))
        else:
            position += len(part)
    return marked.replace(BEGIN, "").replace(END, ""), spans


SYSTEM = {"role": "system", "content": "zqsystemzq"}
TURNS = [
    {"role": "user", "content": "zquserzq"},
    {"role": "assistant", "content": "zqanswerzq"},
]


def fault_of(source: str) -> str:
    """The fault of a template, by its text of a conversation; '' for none."""
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
        with_system = template.write([SYSTEM, *TURNS])
    except BadTemplate:  # reported for conversations with a system turn
        return ""
    return "" if SYSTEM["content"] in with_system.text else "it drops the system turn."


def behind_answer(source: str, eos_token: str) -> str:
    """The text a template writes after an answer. BadTemplate: no answer is written."""
    names = ("bos_token", "pad_token", "unk_token")
    template = ChatTemplate(
        source=source, tokens={"eos_token": eos_token} | dict.fromkeys(names, "")
    )
    return template.text(TURNS).partition(TURNS[1]["content"])[2]
