"""Compared examples are prepared before a run; streaming them is refused, and conversations and
pairs are streamed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from refusing import only

from forge.config.data.text import STREAM_OPTIONS, STREAMED, Streams
from forge.data.text.reading import BadFile
from forge.data.text.rows import row_text

BEFORE = "python -m forge.prepare does so beforehand"


@pytest.mark.parametrize(
    ("kind", "objective", "prepares"),
    [
        ("chat_demo", "sft", True),
        ("preference", "dpo", False),
        ("chat_preference", "dpo", False),
        ("labelled", "kto", False),
    ],
)
def test_each_kind_says_why_and_what_to_do(kind: str, objective: str, prepares: bool) -> None:
    path = [f"data.path={__file__}"] if kind != "chat_demo" else []
    words = [f"data={kind}", *path, f"objective={objective}"]
    problem = only([*words, "data.hf_streaming=true"])
    assert problem.key == "data.hf_streaming=true"
    assert (
        "has no option 'hf_streaming': text, data=chat, sharegpt, alpaca and pairs " in problem.what
    )
    assert "data.cache_dir" in problem.fix
    assert (BEFORE in problem.fix) == prepares  # shards hold no examples that are compared
    assert "data.cache_dir" in only([*words, "data.streaming=true"]).fix  # as others call it


def test_a_source_of_a_mixture_too() -> None:
    source = f"+data.sources.mine={{data: formatted, path: {__file__}, hf_streaming: true}}"
    problem = only(["data=mix", source, "objective=sft"])
    assert problem.key == "data.sources.mine.hf_streaming=true"
    assert "these rows are prepared" in problem.what
    assert BEFORE in problem.fix


@pytest.mark.parametrize("kind", ["chat", "sharegpt", "alpaca", "pairs"])
def test_conversations_are_packed_as_they_come(kind: str) -> None:
    """What needs the whole corpus beforehand is refused: best_fit, which they set."""
    words = [f"data={kind}", f"data.path={__file__}", "objective=sft", "tokenizer=bytes"]
    problem = only([*words, "data.hf_streaming=true"])
    assert problem.key == "data.packing=best_fit"
    assert "data.packing=next_fit" in problem.fix


def test_the_options_of_streams_are_those_that_act_with_one() -> None:
    fields = Streams.__dataclass_fields__
    acting = [name for name, one in fields.items() if one.metadata.get("acts_when") is STREAMED]
    assert sorted(STREAM_OPTIONS) == sorted(["hf_streaming", *acting])


def test_running_text_is_told_of_data_that_reads_messages(tmp_path: Path) -> None:
    for turn, kind in (({"role": "user"}, "chat"), ({"from": "human", "value": "Hi"}, "sharegpt")):
        with pytest.raises(BadFile) as error:
            row_text("a.jsonl line 1", {"turns": [turn]}, "turns")
        assert f"or data={kind}, which reads messages" in str(error.value)
    with pytest.raises(BadFile, match="text_field"):
        row_text("a.jsonl line 1", {"turns": ["Hi"]}, "turns")
