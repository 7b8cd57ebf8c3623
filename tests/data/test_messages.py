"""What rows say of tools, calls, reasoning and what is learnt is written, obeyed, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section

from forge.config.data.chats import Chat, preset
from forge.config.tokenizers.chat_template import CHATML, NAMED, fault_of
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.sources.chats import of_messages
from forge.data.text.messages import BadRow
from forge.data.tokenizers.render import Render, prompt_text
from forge.data.tokenizers.tokenizer import Tokenizer, byte_ids

TEMPLATE = (
    "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }} {{ c.function.arguments | tojson }}</call>{% endfor %}"
    "</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
USER = {"role": "user", "content": "weather?"}
TOOL = {"type": "function", "function": {"name": "w", "parameters": {"type": "object"}}}


def call(arguments: Any) -> dict[str, Any]:
    calls = [{"type": "function", "function": {"name": "w", "arguments": arguments}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_ids(Bytes(), text=None)  # type: ignore[arg-type]


def written(row: Any, tokenizer: Tokenizer, template: str, train_on: str = "responses") -> Any:
    """Text of a row, and of it the texts that are learnt."""
    one = of_messages(row, names=("messages", "prompt", "completion"))
    conversation = replace(one, where="row 1")
    (rendered,) = Render(template=template, train_on=train_on)([conversation], tokenizer)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], rendered.counted, [0]]).astype(int)))
    ids = rendered.tokens.tolist()
    learnt = [tokenizer.decode(ids[a:b]) for a, b in edges.reshape(-1, 2).tolist()]
    return tokenizer.decode(ids), learnt


def test_json_texts_are_decoded_as_transformers_writes_the_objects(tokenizer):
    from transformers.utils.chat_template_utils import render_jinja_template

    objects = {"messages": [USER, call({"city": "Oslo"})], "tools": [TOOL]}
    (theirs,), _ = render_jinja_template([objects["messages"]], [TOOL], chat_template=TEMPLATE)
    texts = {
        "messages": json.dumps([USER, call(json.dumps({"city": "Oslo"}))]),
        "tools": json.dumps([json.dumps(TOOL)]),
    }
    for row in (objects, texts):
        text, _ = written(row, tokenizer, TEMPLATE)
        assert text.removesuffix("<|endoftext|>") == theirs
    assert '<call>w {"city": "Oslo"}</call>' in theirs
    with pytest.raises(BadRow, match="arguments of w: it is a text that is no JSON"):
        written({"messages": [USER, call("{city")]}, tokenizer, TEMPLATE)


@pytest.mark.parametrize("name", ["plain", "chatml"])  # nanochat's has code in place of calls
def test_own_templates_write_tools_calls_and_reasoning(tokenizer, name):
    answer = {"role": "assistant", "reasoning_content": "it is cold", "content": "5 degrees"}
    row = {"messages": [USER, call({"a": 1}), {"role": "tool", "content": "5"}, answer]}
    text, learnt = written(row | {"tools": [TOOL]}, tokenizer, NAMED[name])
    assert json.dumps(TOOL) in text
    assert '<tool_call>\n{"name": "w", "arguments": {"a": 1}}\n</tool_call>' in learnt[0]
    assert "<think>\nit is cold\n</think>\n\n5 degrees" in learnt[1]


@pytest.mark.parametrize(
    ("row", "lost"),
    [
        ([USER, {"role": "tool", "content": "5"}], "what the tool says"),
        ([{"role": "developer", "content": "a"}, USER], "what the developer says"),
        ([USER, call({"city": "Oslo"})], "'tool_calls' of the assistant"),
        ([{**USER, "mood": "sad"}], r"'mood' of the user in row 1.*data.leave_out=\[mood\]"),
        ([{"role": "assistant", "content": "b", "thinking": "b"}], "'thinking' of the assistant"),
    ],
    ids=["tool", "developer", "calls", "any", "reasoning"],
)
def test_what_a_template_drops_is_refused(tokenizer, row, lost):
    """Also where the same letters stand elsewhere: 5, a and b do, in answer 5ab."""
    template = (
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}<{{ m.role }}>"
        "{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    answer = {"role": "assistant", "content": "5ab"}
    with pytest.raises(ValueError, match=f"the chat template drops {lost}"):
        written({"messages": [*row, answer]}, tokenizer, template)
    with pytest.raises(ValueError, match="the chat template drops the tools in row 1"):
        written({"messages": [USER, answer], "tools": [TOOL]}, tokenizer, template)


@pytest.mark.parametrize("template", [CHATML, TEMPLATE], ids=["by_tags", "by_prefix"])
@pytest.mark.parametrize("mark", [{"train": False}, {"weight": 0}])
def test_turns_that_are_not_to_be_learnt_are_not(tokenizer, template, mark):
    first, last = ({"role": "assistant", "content": text} for text in ("one", "two"))
    says = [USER, first | mark, USER, last | {"weight": 1}]
    text, learnt = written({"messages": says}, tokenizer, template)
    assert "one" in text
    assert "two" in "".join(learnt)
    assert "one" not in "".join(learnt)
    _, learnt = written({"messages": says}, tokenizer, template, "all")
    assert "weather?" in learnt[0]
    assert "one" not in "".join(learnt)
    _, learnt = written({"messages": [USER, first, USER, last | mark]}, tokenizer, template, "all")
    assert "two" not in "".join(learnt)
    assert not learnt[-1].endswith("<|endoftext|>")
    with pytest.raises(BadRow, match=r"has 0.5 under 'weight'"):
        written({"messages": [USER, first | {"weight": 0.5}]}, tokenizer, template)


def test_parts_of_text_are_joined_and_others_refused(tokenizer):
    parts = [{"type": "text", "text": "a", "image": None}, {"type": "text", "text": "b"}]
    answer = {"role": "assistant", "content": parts}
    assert written({"messages": [USER, answer]}, tokenizer, TEMPLATE)[1][0].startswith("ab")
    image = {"role": "user", "content": [{"type": "image", "image": "x"}]}
    with pytest.raises(BadRow, match="a part of type 'image'"):
        written({"messages": [image, answer]}, tokenizer, TEMPLATE)


def test_nulls_that_parquet_adds_are_taken_away(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"messages": [{**USER, "mood": "sad"}, call({"city": "Oslo"}), call({"day": "today"})]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    corpus: Any = build_section(
        Chat(path=str(tmp_path / "a.parquet"), leave_out=["mood"]), path="data"
    )
    (document,) = corpus.documents()
    says = [m["tool_calls"][0]["function"]["arguments"] for m in document.messages[1:]]
    assert document.messages[0] == USER
    assert says == [{"city": "Oslo"}, {"day": "today"}]


def test_variables_of_a_template_go_with_it(tokenizer):
    template = "{{ '/no_think' if not thinks }}{{ style.name }}" + TEMPLATE
    given = {"thinks": False, "style": {"name": "it's", "n": [1, None]}}
    section = Chat(path="x", chat_template=template, chat_template_kwargs=given)
    source = Render.of(section).source(tokenizer)
    assert source == preset(given) + template
    tokenizer = byte_ids(Bytes(), text=None)  # type: ignore[arg-type]
    tokenizer.stated["chat_template"] = source
    assert prompt_text([USER], tokenizer).startswith("/no_thinkit's<user>")


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}", "passes"),
        (
            "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
            "passes",
        ),
        (
            "{% set n = namespace(s='aa') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}"
            "{% endfor %}",
            "value",
        ),
        ("{% set a = 'ab' %}" + "{% set a %}{{ a }}{{ a }}{% endset %}" * 40, "value"),
        ("{{ 'x' * 9999999999 }}", "value"),
    ],
    ids=["loops", "macros", "doubling", "blocks", "times"],
)
def test_a_template_ends(template, fault, monkeypatch):
    monkeypatch.setattr("forge.config.tokenizers.template_limits.MAX_STEPS", 10_000)
    assert fault_of(template).startswith("it refuses (")
    assert fault in fault_of(template)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_training"])
def test_calls_of_shipped_templates_are_as_transformers_writes_them(tokenizer, name):
    """Arguments as a JSON text, as OpenAI's format has them; transformers is given the object."""
    import importlib.util
    from pathlib import Path

    from transformers.utils.chat_template_utils import render_jinja_template

    (trl,) = importlib.util.find_spec("trl").submodule_search_locations  # type: ignore
    source = (Path(trl) / "chat_templates" / f"{name}.jinja").read_text()
    answers = [{"role": "tool", "name": "w", "tool_call_id": "1", "content": "5 degrees"}]
    answers.append({"role": "assistant", "content": "It is 5."})
    theirs, ours = ([USER, call(said), *answers] for said in ({"a": "b"}, '{"a": "b"}'))
    row = {"messages": ours, "tools": json.dumps([TOOL])}
    text, _ = written(row, tokenizer, source, "last_response")
    (wanted,), _ = render_jinja_template([theirs], [TOOL], chat_template=source)
    assert text.removesuffix("<|endoftext|>").rstrip() == wanted.rstrip()


def test_a_template_that_adds_arguments_to_texts_gets_texts(tokenizer):
    """As DeepSeek V3's does."""
    adds = TEMPLATE.replace("c.function.arguments | tojson", "'```' + c.function.arguments")
    for said in ({"a": "b"}, '{"a": "b"}'):
        text, _ = written({"messages": [USER, call(said)]}, tokenizer, adds)
        assert '<call>w ```{"a": "b"}</call>' in text
