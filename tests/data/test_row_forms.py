"""Rows as data sets have them: prompts with completions, nulls beside calls, roles, masks; and what
is wrong with one is said by its message.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section
from test_chat_masks import BORDERS, SAID, raw, shipped

from forge.config.data.chats import Chat, ShareGPT
from forge.config.data.text import Pairs
from forge.config.objectives.preference import ChatLabelled, ChatPreference, PreferencePairs
from forge.config.tokenizers.chat_template import CHATML
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.sources.chats import of_messages
from forge.data.text.reading import BadFile
from forge.data.tokenizers.render import Render
from forge.data.tokenizers.tokenizer import Tokenizer, byte_ids

__all__ = ["raw"]
NAMES = ("messages", "prompt", "completion")
ASKED = {"role": "user", "content": "What is 2+2?"}
ANSWER = {"role": "assistant", "content": "It is 4."}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "clock"}}]}
RESULT = {"role": "tool", "content": "noon sharp"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_ids(Bytes(), text=None)  # type: ignore[arg-type]


def rendered(row: Any, tokenizer: Tokenizer, template: str, train_on: str = "responses") -> Any:
    one = replace(of_messages(row, names=NAMES), where="row 1")
    return Render(template=template, train_on=train_on)([one], tokenizer)[0]


def written(row: Any, tokenizer: Tokenizer, template: str, train_on: str = "responses") -> Any:
    """The text of a row, and of it the texts that are learnt."""
    whole = rendered(row, tokenizer, template, train_on)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], whole.counted, [0]]).astype(int)))
    ids = whole.tokens.tolist()
    return tokenizer.decode(ids), [tokenizer.decode(ids[a:b]) for a, b in edges.reshape(-1, 2)]


def corpus_of(path: Path, schema: Any, row: dict[str, Any], **options: Any) -> Any:
    file = path / "a.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return build_section(schema(path=str(file), **options), path="data")


def test_a_completion_is_learnt_and_its_prompt_is_not(tokenizer):
    """An answer within the prompt is not learnt either, but with data.train_on=all."""
    row = {"prompt": SAID[:3], "completion": SAID[3:]}
    text, learnt = written(row, tokenizer, CHATML)
    assert text == written({"messages": SAID}, tokenizer, CHATML)[0]
    assert learnt == [f"{SAID[3]['content']}<|im_end|>", "<|endoftext|>"]
    assert written(row, tokenizer, CHATML, "last_response")[1] == learnt
    assert written(row, tokenizer, CHATML, "all")[1] == [text]
    texts = {"prompt": json.dumps(SAID[:3]), "completion": SAID[3]["content"]}
    assert written(texts, tokenizer, CHATML) == (text, learnt)
    assert written(row | {"messages": [ASKED, ANSWER]}, tokenizer, CHATML)[1][0][:8] == "It is 4."


@pytest.mark.nightly
@pytest.mark.parametrize("name", BORDERS)
def test_ids_and_labels_of_prompts_and_completions_are_those_of_trl(raw, name):
    """Of the templates that the models ship, without the tags that TRL adds."""
    from datasets import Dataset
    from tokenizers import Tokenizer as Raw
    from transformers import PreTrainedTokenizerFast
    from trl.trainer.sft_trainer import SFTTrainer

    bos, eos = BORDERS[name]
    theirs = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=bos, eos_token=eos)
    template = theirs.chat_template = shipped(name, marked=False)
    rows = [{"prompt": SAID[:n], "completion": SAID[n : n + 1]} for n in (1, 3)]
    trainer: Any = SFTTrainer.__new__(SFTTrainer)
    trainer.chat_template, trainer._tokenizer, trainer.completion_only_loss = None, theirs, True
    stated = {"assistant_only_loss": False, "shuffle_dataset": False, "dataset_text_field": "text"}
    args = SimpleNamespace(**stated, dataset_num_proc=None, max_length=None)
    prepared: Any = trainer._prepare_dataset(
        Dataset.from_list(rows), theirs, args, False, None, "train"
    )
    ours = Tokenizer(Raw.from_str(raw.to_str()), eos_token=eos, bos_token=bos)
    for row, wanted in zip(rows, prepared, strict=True):
        one = rendered(row, ours, template)
        labels = np.where(one.counted, one.tokens.astype(int), -100).tolist()
        assert one.tokens.tolist() == wanted["input_ids"]
        assert labels == wanted["labels"]
        assert -100 in labels


@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        ("{% if m.content is none %}-{% else %}{{ m.content }}{% endif %}", "-clock"),
        ("{{ m['content'] + '' }}", "clock"),
        ("{{ m.content }}", "clock"),
        ("{{ m.content | trim }}", "clock"),
    ],
    ids=["asks", "adds", "writes", "trims"],
)
@pytest.mark.parametrize("absent", [False, True])
def test_nothing_said_beside_calls_is_written_as_templates_expect_it(
    tokenizer, says, wanted, absent
):
    """Null where they ask for it, as DeepSeek's does; an empty text where they write or add it."""
    template = (
        f"{{% for m in messages %}}<{{{{ m.role }}}}>{says}{{% for c in m.tool_calls or [] %}}"
        "{{ c.function.name }}{% endfor %}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    calls = {k: v for k, v in CALL.items() if not absent or k != "content"}
    text, learnt = written({"messages": [ASKED, calls, RESULT, ANSWER]}, tokenizer, template)
    assert text == f"<user>What is 2+2?<assistant>{wanted}<tool>noon sharp<assistant>It is 4." + (
        "<|endoftext|>"
    )
    assert learnt[0] == wanted


@pytest.mark.parametrize("weight", [{"masked": True}, {"masked": 1, "train": False}])
def test_masked_messages_are_not_learnt(tokenizer, weight):
    first = {"role": "assistant", "content": "It is 5."}
    said = [ASKED, first | weight, ASKED, ANSWER | {"masked": False}]
    text, learnt = written({"messages": said}, tokenizer, CHATML)
    assert "5" in text
    assert "5" not in "".join(learnt)
    assert "It is 4." in learnt[0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            [ASKED, {"role": "assistant", "content": None}],
            "message 2, of assistant, has no text under 'content' (null). What is said is one text,"
            " or the message has tool_calls.",
        ),
        (
            [ASKED, ANSWER | {"masked": True, "weight": 1}],
            "message 2, of assistant, is learnt and is not: {'weight': 1, 'masked': True}. Leave "
            "one of them.",
        ),
        (
            [{"from": "human", "value": "Hello"}],
            'message 1 has no text under \'role\'. A message is {"role": "user", "content": '
            "\"Hello\"}; of {'from': ..., 'value': ...} data=sharegpt makes messages.",
        ),
    ],
    ids=["null", "both", "from"],
)
def test_what_is_wrong_with_a_message_is_said(tmp_path, row, said):
    with pytest.raises(BadFile, match=re.escape(f"a.jsonl line 1: {said}")):
        list(corpus_of(tmp_path, Chat, {"messages": row}).documents())


@pytest.mark.parametrize(
    ("role", "said"),
    [
        ("human", "Name it 'user', or give a data.chat_template that names 'human'"),
        ("GPT", "Name it 'assistant', or give a data.chat_template that names 'GPT'"),
        (
            "critic",
            "A role is one of system, developer, user, assistant, tool, or give a "
            "data.chat_template that names 'critic'",
        ),
    ],
)
def test_a_role_that_is_not_known_is_refused_by_name(tokenizer, role, said):
    """But where the template names it; one that is known need not be named."""
    row = {"messages": [{"role": role, "content": "Add it up."}, ASKED, ANSWER]}
    what = f"row 1: message 1 is of the role '{role}', which the chat template does not name. "
    with pytest.raises(BadFile, match=re.escape(what + said)):
        written(row, tokenizer, CHATML)
    assert "Add it up." in written(row, tokenizer, f"{{# '{role}' #}}{CHATML}")[0]
    row["messages"][0]["role"] = "developer"
    assert "developer\nAdd it up." in written(row, tokenizer, CHATML)[0]


def test_a_row_of_which_all_is_masked_is_refused(tokenizer):
    completion = [ANSWER | {"masked": True}]
    for row in (
        {"messages": [ASKED, ANSWER | {"weight": 0}]},
        {"prompt": [ASKED], "completion": completion},
    ):
        said = (
            "row 1 has no turn of the assistant to learn from, by what its messages say of "
            "themselves (train, training, weight, masked). Leave it out, or mend these fields."
        )
        with pytest.raises(BadFile, match=re.escape(said)):
            written(row, tokenizer, CHATML)


@pytest.mark.parametrize(
    ("schema", "row", "said"),
    [
        (Pairs, {"prompt": [ASKED], "response": [ANSWER]}, "or data=chat, which reads messages"),
        (
            PreferencePairs,
            {"prompt": [ASKED], "chosen": [ANSWER], "rejected": [ANSWER]},
            "or data=chat_preference, which reads messages",
        ),
        (
            Chat,
            {"prompt": "2+2=", "completion": "4"},
            "'prompt' and 'completion' are texts, which no chat template writes. data=pairs "
            "data.prompt_field=prompt data.response_field=completion learns such rows;",
        ),
        (Chat, {"prompt": "2+2=", "response": "4"}, "data=pairs data.response_field=response."),
        (Chat, {"prompt": [ASKED], "answer": [ANSWER]}, "data=chat data.completion_field=answer."),
        (Chat, {"conversations": [{"from": "human"}]}, "data.messages_field=conversations."),
        (Chat, {"chosen": [ANSWER], "rejected": [ANSWER]}, "data=chat_preference objective=dpo."),
        (Chat, {"instruction": "Add.", "output": "4"}, "Such rows are read with data=alpaca."),
        (ShareGPT, {"said": [ASKED, ANSWER]}, "data=chat data.messages_field=said."),
    ],
    ids=[
        "pairs",
        "preference",
        "texts",
        "response",
        "answer",
        "sharegpt",
        "sides",
        "alpaca",
        "chat",
    ],
)
def test_rows_of_another_kind_are_sent_there(tmp_path, schema, row, said):
    with pytest.raises(BadFile, match=r"a\.jsonl line 1") as caught:
        list(corpus_of(tmp_path, schema, row).documents())
    assert said in str(caught.value)


@pytest.mark.parametrize("schema", [ChatPreference, ChatLabelled])
def test_a_prompt_that_whole_conversations_lack_is_refused(tmp_path, schema):
    """TRL joins them; where they are whole and begin with it, it is theirs already."""
    whole = [ASKED, ANSWER]
    sides = {"chosen": whole, "rejected": whole, "completion": whole, "label": True}
    side = "chosen" if schema is ChatPreference else "completion"
    system = {"role": "system", "content": "Be kind."}
    said = (
        f"what is under '{side}' begins with a turn of the user, and lacks what the system says "
        f"under 'prompt', which it would follow. Give the answer alone under '{side}', or "
        "data.prompt_field=''."
    )
    with pytest.raises(BadFile, match=re.escape(said)):
        list(corpus_of(tmp_path, schema, sides | {"prompt": [system]}).documents())
    if schema is ChatPreference:
        for prompt, options in (
            (ASKED["content"], {}),
            ([ASKED], {}),
            ([system], {"prompt_field": ""}),
        ):
            corpus = corpus_of(tmp_path, schema, sides | {"prompt": prompt}, **options)
            (example,) = corpus.documents()
            assert [list(one.messages) for one in example.documents] == [whole, whole]
