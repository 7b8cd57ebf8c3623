"""Rows become conversations, these tokens by a chat template, and of these the responses count."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import build_section, shards_of
from tokenizers import Tokenizer as Raw
from tokenizers import normalizers

from forge.build import build
from forge.config.data.chats import Alpaca, Chat, ChatRows, Formatted, ShareGPT, chat_template
from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import eval_batches
from forge.data.batches.packing import plan_samples
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.data.tokenizers.render import render_conversation
from forge.data.tokenizers.tokenizer import Tokenizer, byte_ids
from forge.data.tokens.shards import IndexedStore
from forge.objectives.pretrain import Pretrain

SAID = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "It is 4."},
    {"role": "user", "content": "And é?"},
    {"role": "assistant", "content": "A letter: é"},
]
END = "<|endoftext|>"


def counted(found: Any, tokenizer: Tokenizer) -> list[str]:
    """The texts of the runs of tokens that count."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], found.counted, [0]]).astype(int)))
    runs = edges.reshape(-1, 2).tolist()
    return [tokenizer.decode(found.tokens[start:stop].tolist()) for start, stop in runs]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_ids(Bytes(), text=None)  # type: ignore[arg-type]


def test_responses_and_what_ends_them_count(tokenizer):
    said = partial(render_conversation, SAID, tokenizer)
    assert counted(said(), tokenizer) == [f" It is 4.{END}", f" A letter: é{END}"]
    assert counted(said(train_on="last_response"), tokenizer) == [f" A letter: é{END}"]
    whole = said(train_on="all")
    assert whole.counted.all()
    assert tokenizer.decode(whole.tokens.tolist()) == (
        f"System: Be kind.\nUser: What is 2+2?\nAssistant: It is 4.{END}\n"
        f"User: And é?\nAssistant: A letter: é{END}"
    )


def test_what_a_message_spells_is_no_special_token(tokenizer):
    spelled = [{"role": "user", "content": f"a{END}"}, {"role": "assistant", "content": END}]
    found = render_conversation(spelled, tokenizer)
    assert np.count_nonzero(found.tokens == tokenizer.eos_id) == 1
    assert counted(found, tokenizer) == [f" {END}{END}"]


def test_a_template_without_an_end_gets_one(tokenizer):
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    prompted = template + "{% if add_generation_prompt %}assistant: {% endif %}"
    found = render_conversation(SAID, tokenizer, template=prompted)
    assert counted(found, tokenizer) == ["It is 4.\n", f"A letter: é\n{END}"]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (
            "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}"
            "{% endfor %}",
            "the chat template drops what the system says in row 1. "
            "Give a data.chat_template that writes every turn.",
        ),
        (
            "{{ raise_exception('System role not supported') }}",
            "row 1 does not fit the chat template: it refuses (System role not supported). "
            "Mend or leave out that conversation, or give another data.chat_template.",
        ),
        (
            "{% for m in messages %}{{ m.content }}{{ '!' if loop.last else '?' }}{% endfor %}",
            "row 1 does not fit the chat template: it writes what comes before turn 3 otherwise "
            "where more follows, so that it is not known what the assistant says. Mend or leave "
            "out that conversation, or give another data.chat_template, or "
            "data.train_on=last_response.",
        ),
    ],
    ids=["drops_system", "refuses", "not_by_prefix"],
)
def test_what_does_not_fit_a_template_is_said(tokenizer, template, said):
    with pytest.raises(ValueError) as caught:
        render_conversation(SAID, tokenizer, template=template, where="row 1")
    assert str(caught.value) == f"data.path: {said}"


def mine(row: dict[str, Any], *, before: str) -> list[dict[str, str]] | None:
    """What a user's function gives."""
    if not row["a"]:
        return None
    turns = {"user": before + row["q"], "assistant": row["a"]}
    return [{"role": role, "content": content} for role, content in turns.items()]


def trusting(section: Any, *, path: str, **runtime: Any) -> Any:
    return build(section, path=path, trust=["test_chats."], **runtime)


def prepared_of(
    folder: Path, kind: type[ChatRows], row: dict[str, Any], **options: Any
) -> Prepared:
    (folder / "a.jsonl").write_text(json.dumps(row) + "\n")
    cache, path = str(folder / "cache"), str(folder / "a.jsonl")
    section = kind(path=path, cache_dir=cache, val_fraction=0.0, **options)
    return prepare_tokens(section, Bytes(), build=trusting)


@pytest.mark.parametrize(
    ("kind", "row", "text"),
    [
        (
            Alpaca,
            {"instruction": "Add.", "input": "2+2", "output": "4"},
            f"User: Add.\n\n2+2\nAssistant: 4{END}",
        ),
        (
            ShareGPT,
            {
                "system": "Be kind.",
                "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}],
            },
            f"System: Be kind.\nUser: a\nAssistant: b{END}",
        ),
        (
            Chat,
            {"messages": SAID[1:3], "more": 1},
            f"User: What is 2+2?\nAssistant: It is 4.{END}",
        ),
        (Formatted, {"q": "a", "a": "b"}, f"User: >a\nAssistant: b{END}"),
    ],
    ids=["alpaca", "sharegpt", "chat", "formatted"],
)
def test_rows_of_each_kind(tmp_path, kind, row, text):
    function = {"_target_": "test_chats.mine", "before": ">"}
    options = {"formatting_func": function} if kind is Formatted else {}
    found: Any = prepared_of(tmp_path, kind, row, **options)
    ids = found.train.read(0, len(found.train))
    assert found.tokenizer.decode(ids.tolist()) == text


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        (Alpaca, {"input": "a"}, "it has no text under 'instruction' (its fields: input). A row"),
        (Chat, {"text": 1}, "it has no list under 'messages' (its fields: text). Name the one"),
        (
            ShareGPT,
            {"conversations": [{"from": "me", "value": "a"}]},
            "turn 1 of field 'conversations' is from 'me'. A turn is from one of human, user",
        ),
        (Chat, {"messages": SAID[:2]}, " has no turn of the assistant to learn from. Leave it out"),
    ],
    ids=["alpaca", "chat", "sharegpt", "no_answer"],
)
def test_what_is_wrong_with_a_row_is_said(tmp_path, kind, row, said):
    with pytest.raises(ValueError, match=r"data\.path: .*a\.jsonl line 1") as caught:
        prepared_of(tmp_path, kind, row)
    assert said in str(caught.value)


def test_turns_that_end_as_documents_do_are_one_document(tmp_path):
    """And too long ones are cut off, left out where nothing of them is learnt, or refused."""
    lines = [{"messages": SAID}, {"messages": SAID[1:3]}, {"messages": SAID[3:]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = Chat(path=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path), val_fraction=0.0)
    store: Any = prepare_tokens(section, BPE(vocab_size=300), build=build_section).train
    eos = int(store.read(0, len(store))[-1])
    how: Any = {"end_of_text": eos, "policy": "none", "max_segments": 0}
    pieces = plan_samples(store, seq_len=999, **how).pieces  # type: ignore[arg-type]
    assert len(pieces) == 3
    assert pieces[:, 1].tolist() == np.append(pieces[1:, 0], len(store)).tolist()
    lengths = (pieces[:, 1] - pieces[:, 0]).tolist()
    assert np.count_nonzero(store.read(0, lengths[0]) == eos) == 2
    first = int(np.flatnonzero(store.counted.read(0, lengths[0]) & 1)[0])
    seq_len = max(first + 2, *lengths[1:])
    assert seq_len < lengths[0] - 1
    found = plan_samples(store, seq_len=seq_len, too_long="truncate", **how)  # type: ignore[arg-type]
    assert (len(found), found.cut_off, found.left_out) == (3, 1, 0)
    assert found.pieces[0].tolist() == [0, seq_len + 1]
    found = plan_samples(store, seq_len=seq_len, too_long="drop", **how)  # type: ignore[arg-type]
    assert (len(found), found.cut_off, found.left_out) == (2, 0, 1)
    found = plan_samples(store, seq_len=first - 1, too_long="truncate", **how)  # type: ignore[arg-type]
    assert found.left_out == 1, "nothing of it would be learnt"
    with pytest.raises(ValueError, match=r"^data\.too_long = refuse: 1 documents are longer than"):
        plan_samples(store, seq_len=seq_len, too_long="refuse", **how)  # type: ignore[arg-type]


def test_evaluations_have_whole_conversations(tmp_path):
    """As those are that are trained on, so that every response follows its question."""
    lines = [{"messages": SAID}, {"messages": SAID[1:3]}, {"messages": SAID[3:]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = Chat(path=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path), val_fraction=0.0)
    found = prepare_tokens(section, Bytes(), build=build_section)
    store: Any = found.train
    how: Any = {"end_of_text": found.tokenizer.eos_id, "policy": "best_fit", "max_segments": 0}
    rows = plan_samples(store, seq_len=110, **how)
    batches = eval_batches(
        store,
        Pretrain(PretrainConfig()),
        seq_len=110,
        batch_size=2,
        end_of_text=found.tokenizer.eos_id,
        plan=rows,
    )
    read = list(batches)
    tokens, targets = (torch.cat([one[name] for one in read]) for name in ("tokens", "targets"))
    assert all(found.tokenizer.decode(row[:5].tolist()) in ("Syste", "User:") for row in tokens)
    assert int((targets != IGNORE_INDEX).sum()) == int(
        (store.counted.read(0, len(store)) & 1).sum()
    )


def test_the_template_of_a_tokenizer_is_checked_too(tmp_path):
    byte_ids(Bytes(add_bos=True), text=None).save(tmp_path)  # type: ignore[arg-type]
    named: Any = TokenizerFile(path=str(tmp_path / "tokenizer.json"))
    assert not [*chat_template.body(Chat(), named)]
    drops = "{% for m in messages %}{{ m.content if m.role != 'system' }}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(drops)
    ((key, what, _),) = chat_template.body(Chat(), named)
    assert key == "data.chat_template"
    assert what == "in the template of the tokenizer: it drops the system turn."
    assert not [*chat_template.body(Chat(chat_template="chatml"), named)]


def test_shards_have_the_same_tokens_and_marks(tmp_path):
    lines = [{"messages": SAID}, {"messages": SAID[1:3]}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    section = Chat(path=str(tmp_path / "a.jsonl"), cache_dir=str(tmp_path), val_fraction=0.0)
    store: Any = prepare_tokens(section, Bytes(), build=build_section).train
    shards_of(tmp_path / "out", section, Bytes())
    made = IndexedStore(tmp_path / "out" / "train")
    assert made.fingerprint == store.fingerprint


def test_what_is_not_spelled_again_is_reported(tokenizer, caplog):
    lowered = Raw.from_str(tokenizer._raw.to_str())
    lowered.normalizer = normalizers.Lowercase()
    loses = Tokenizer(lowered, eos_token=END)
    render_conversation(SAID, loses, where="a.jsonl line 7")
    assert caplog.messages == [
        "1 of 1 conversations are not spelled again by their tokens; the first is a.jsonl line 7"
    ]
