"""data=pairs: responses are targets and prompts are not; what is wrong with a file is said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from data_helpers import build_section, make_prose

from forge.config.data.text import Pairs
from forge.config.objectives.base import Pretrain as PretrainConfig
from forge.config.tokenizers.tokenizer import BPE
from forge.data import IGNORE_INDEX
from forge.data.batches.loader import TrainLoader, eval_batches
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.objectives.pretrain import Pretrain

ROWS = 40
TEXT = Pretrain(PretrainConfig())


@pytest.fixture
def section(tmp_path: Path) -> Pairs:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"question": f"{make_prose(1, seed)}?", "answer": make_prose(2, 1000 + seed)}
        for seed in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    fields = {"prompt_field": "question", "response_field": "answer"}
    return Pairs(path=str(path), cache_dir=str(tmp_path / "cache"), val_fraction=0.2, **fields)


def prepared_of(section: Pairs) -> Prepared:
    return prepare_tokens(section, BPE(vocab_size=300), build=build_section)


def test_the_tokens_of_responses_and_the_ends_behind_them_count(section):
    prepared = prepared_of(section)
    tokenizer, found = prepared.tokenizer, []
    for store in (prepared.train, prepared.val):
        ids = store.read(0, len(store))
        counted = store.counted.read(0, len(store)).astype(bool)
        starts = np.flatnonzero(np.diff(np.concatenate([[1], counted.astype(int)])) == -1)
        ends = np.flatnonzero(ids == tokenizer.eos_id) + 1
        for start, end in zip(starts, ends, strict=True):
            inside = counted[start:end]
            prompt, response = ids[start:end][~inside], ids[start:end][inside]
            assert response[-1] == tokenizer.eos_id
            assert not inside[: len(prompt)].any(), "the prompt comes first"
            texts = (prompt.tolist(), response[:-1].tolist())
            found.append(tuple(tokenizer.decode(text) for text in texts))
    rows = [json.loads(line) for line in Path(section.path).read_text().splitlines()]
    assert sorted(found) == sorted((row["question"], row["answer"]) for row in rows)
    assert len(prepared.val) > 0


def test_each_rank_counts_the_targets_of_all(section):
    store, options = prepared_of(section).train, {"seq_len": 32, "seed": 3, "batch_size": 2}
    one = TrainLoader(store, TEXT, **options, grad_accum_steps=4)
    two = [
        TrainLoader(store, TEXT, **options, grad_accum_steps=2, num_ranks=2, rank=r) for r in (0, 1)
    ]
    workers = TrainLoader(store, TEXT, **options, grad_accum_steps=4, num_workers=1)
    for _ in range(3):
        whole, halves, other = next(one), [next(loader) for loader in two], next(workers)
        of_ranks = [
            sum(int((batch["targets"] != IGNORE_INDEX).sum()) for batch in step.batches)
            for step in (whole, *halves)
        ]
        assert whole.n_targets == of_ranks[0] == of_ranks[1] + of_ranks[2] == other.n_targets
        assert {step.n_targets for step in halves} == {whole.n_targets}
        assert 0 < whole.n_targets < whole.n_tokens == 4 * 2 * 32
    workers.close()


def test_evaluation_counts_the_same_targets(section):
    store = prepared_of(section).val
    batches = eval_batches(store, TEXT, seq_len=32, batch_size=2)
    counted = store.counted.read(1, len(store))
    found = sum(int((batch["targets"] != IGNORE_INDEX).sum()) for batch in batches)
    assert found == int(counted.sum())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "a.jsonl",
            '{"question": "q"}\n',
            "a.jsonl line 1 has no field 'answer' (its fields: question). "
            "Name the one that holds the text with data.response_field.",
        ),
        (
            "a.jsonl",
            '{"answer": "a", "question": null}\n',
            "a.jsonl line 1: field 'question' is null, not text. "
            "Choose another with data.prompt_field.",
        ),
        ("a.txt", "text", "a.txt is not named as JSON lines. Give files named .jsonl of lines"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(section, tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    section.path = str(tmp_path / name)
    with pytest.raises(ValueError, match=r"data\.path: ") as caught:
        prepared_of(section)
    assert said in str(caught.value)
