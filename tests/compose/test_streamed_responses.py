"""Rows that forge or a function makes are prepared before a run, and streaming them is refused;
rows of files are streamed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.refusing import only, resolved

from forge.config.data.text import STREAM_OPTIONS, STREAMED, Streams
from forge.data.text.reading import BadFile
from forge.data.text.rows import row_text

BEFORE = "python -m forge.prepare does so beforehand"


@pytest.mark.parametrize(
    ("kind", "objective", "prepares"),
    [
        ("chat_demo", "sft", True),
        ("preference_demo", "dpo", False),
    ],
)
def test_each_kind_says_why_and_what_to_do(kind: str, objective: str, prepares: bool) -> None:
    words = [f"data={kind}", f"objective={objective}"]
    problem = only([*words, "data.hf_streaming=true"])
    assert problem.key == "data.hf_streaming=true"
    said = "has no option 'hf_streaming': text, and rows of data=chat, sharegpt, alpaca, pairs, "
    assert said in problem.what
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


@pytest.mark.parametrize(
    ("kind", "objective"),
    [("preference", "dpo"), ("chat_preference", "dpo"), ("labelled", "kto")],
)
def test_the_reference_of_a_stream_is_computed_in_each_step(kind: str, objective: str) -> None:
    """By a copy, or without the adapter; and objectives without one need none."""
    words = [f"data={kind}", f"data.path={__file__}", f"objective={objective}", "tokenizer=bytes"]
    words.append("data.hf_streaming=true")

    def reference(*more: str) -> str:
        return resolved([*words, *more]).config.objective.reference  # type: ignore[attr-defined]

    assert reference() == "copy"
    assert reference("adapter=lora") == "adapter"
    assert reference("data.hf_streaming=false") == "cached"
    assert only([*words, "objective.reference=cached"]).key == "objective.reference=cached"
    if objective == "dpo":
        resolved([*words, "objective.reference_free=true", "objective.reference=cached"])
        resolved([*words[:2], "objective=simpo", *words[3:]])


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
