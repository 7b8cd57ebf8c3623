"""data=preference: each response a row, pairs together; what is too long, or wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import build_section, make_prose

from forge.config.objectives.preference import DPO, ChatPreference, PreferencePairs
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.data.batches.examples import plan_examples
from forge.data.batches.loader import TrainLoader, eval_batches
from forge.data.batches.mixture import Mixture
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.objectives.responses import References

ROWS = 40


@pytest.fixture
def section(tmp_path: Path) -> PreferencePairs:
    path = tmp_path / "preferences.jsonl"
    rows = [
        {"prompt": f"{seed}?", "chosen": make_prose(1, seed), "rejected": f"{seed % 3} no"}
        for seed in range(ROWS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return PreferencePairs(path=str(path), cache_dir=str(tmp_path / "cache"), val_fraction=0.2)


def prepared_of(section: PreferencePairs) -> Prepared:
    return prepare_tokens(section, BPE(vocab_size=300), build=build_section)


def test_a_batch_has_a_row_for_each_response_and_every_rank_counts_pairs(section) -> None:
    prepared, objective = prepared_of(section), build_section(DPO(), path="objective")
    tokenizer, rows = prepared.tokenizer, Path(section.path).read_text().splitlines()
    wanted = sorted((r["prompt"], r["chosen"], r["rejected"]) for r in map(json.loads, rows))
    found = []
    for store in (prepared.train, prepared.val):
        plan = plan_examples(store, seq_len=200, too_long="refuse")
        objective.references = {
            store.fingerprint: References(
                plan.pieces[::2, 0], np.arange(2 * len(plan)).reshape(-1, 2)
            )
        }
        known = []
        shares = [
            list(eval_batches(store, objective, seq_len=200, batch_size=3, part=(i, 2), plan=plan))
            for i in (0, 1)
        ]
        for one in [batch for both in zip(*shares, strict=True) for batch in both]:
            for row in range(0, len(one["tokens"]), 2):
                texts = []
                for tokens, targets in zip(
                    one["tokens"][row : row + 2], one["targets"][row : row + 2], strict=True
                ):
                    counted = targets != -100
                    first = int(counted.int().argmax())
                    response = targets[counted].tolist()
                    assert not response or response[-1] == tokenizer.eos_id
                    prompt = tokenizer.decode(tokens[: first + 1].tolist())
                    texts.append((prompt, tokenizer.decode(response[:-1])))
                if texts[0][1]:
                    assert texts[0][0] == texts[1][0]
                    found.append((texts[0][0], texts[0][1], texts[1][1]))
                    known += one["reference"][row : row + 2].tolist()
        assert sorted(known) == list(range(2 * len(plan)))
    assert sorted(found) == wanted

    store = prepared.train
    plans = {"": plan_examples(store, seq_len=200, too_long="refuse")}
    mixture = Mixture(stores={"": store}, plans=plans)
    options: dict[str, Any] = {"seq_len": 200, "seed": 3, "batch_size": 2}
    whole = next(TrainLoader(mixture, objective, **options, grad_accum_steps=4))
    halves = [
        next(TrainLoader(mixture, objective, **options, grad_accum_steps=2, num_ranks=2, rank=r))
        for r in (0, 1)
    ]
    for step in (whole, *halves):
        assert step.n_targets == 8
        assert step.n_tokens == whole.n_tokens
    assert whole.n_places == 8 * 2 * 200
    narrow = [
        next(TrainLoader(mixture, objective, **options, multiple=8, grad_accum_steps=4)),
        *(
            next(
                TrainLoader(
                    mixture,
                    objective,
                    **options,
                    multiple=8,
                    grad_accum_steps=2,
                    num_ranks=2,
                    rank=rank,
                )
            )
            for rank in (0, 1)
        ),
    ]
    widths = [batch["tokens"].shape[1] for batch in narrow[0].batches]
    for width, short, full in zip(widths, narrow[0].batches, whole.batches, strict=True):
        last = int(((full["targets"] != -100) | (full["tokens"] != 0)).any(0).nonzero().max()) + 1
        assert width == -(-last // 8) * 8 < 200
        for name in ("tokens", "targets"):
            assert torch.equal(short[name], full[name][:, :width])
    for step in narrow:
        assert step.n_places == 4 * sum(widths)
        assert (step.n_targets, step.n_tokens) == (whole.n_targets, whole.n_tokens)
    first = torch.cat([halves[0].batches[0]["tokens"], halves[1].batches[0]["tokens"]])
    assert torch.equal(first, torch.cat([one["tokens"] for one in whole.batches[:2]]))


def test_what_is_too_long(section) -> None:
    store = prepared_of(section).train
    lengths = np.diff(store.offsets).reshape(-1, 2)
    whole = plan_examples(store, seq_len=200, too_long="refuse")
    assert np.array_equal(np.diff(whole.pieces)[:, 0].reshape(-1, 2), lengths)
    seq = int(np.median(lengths[:, 0])) - 1
    cut = plan_examples(store, seq_len=seq, too_long="truncate")
    n_long = int((lengths > seq + 1).any(1).sum())
    assert (len(cut), cut.cut_off, cut.left_out) == (len(whole), n_long, 0)
    assert np.diff(cut.pieces).max() == seq + 1
    dropped = plan_examples(store, seq_len=seq, too_long="drop")
    assert (len(dropped), dropped.left_out) == (len(whole) - n_long, n_long)
    nothing = plan_examples(store, seq_len=1, too_long="truncate")
    assert nothing.left_out > 0
    said = (
        rf"data\.too_long=refuse: {n_long} of {len(whole)} examples have more than train\.seq_len "
        rf"\+ 1 = {seq + 1} tokens, the longest {lengths.max()}\. Set train\.seq_len="
    )
    with pytest.raises(ValueError, match=said):
        plan_examples(store, seq_len=seq, too_long="refuse")


def test_a_row_without_a_field_is_said(section) -> None:
    Path(section.path).write_text('{"prompt": "q", "chosen": "a"}\n')
    with pytest.raises(ValueError, match=r"has no field 'rejected'.*data\.rejected_field"):
        prepared_of(section)


def conversation(*turns: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    return [{"role": roles[n % 2], "content": turn} for n, turn in enumerate(turns)]


@pytest.mark.parametrize(
    "row",
    [
        {
            "chosen": conversation("Hi", "Ho", "Hm?", "Yes it is"),
            "rejected": conversation("Hi", "Ho", "Hm?", "no"),
        },
        {
            "prompt": conversation("Hi", "Ho", "Hm?"),
            "chosen": [{"role": "assistant", "content": "Yes it is"}],
            "rejected": "no",
        },
    ],
    ids=["whole conversations", "ends of one"],
)
def test_conversations_are_compared_by_their_last_turn(row, tmp_path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row | {"n": n}) + "\n" for n in range(3)))
    section = ChatPreference(path=str(path), cache_dir=str(tmp_path), val_fraction=0.0)
    prepared = prepare_tokens(section, Bytes(), build=build_section)
    store, tokenizer = prepared.train, prepared.tokenizer
    assert (store.together, len(store.offsets)) == (2, 7)
    for side, answer in ((0, "Yes it is"), (1, "no")):
        start, stop = store.offsets[side : side + 2]
        ids, marks = store.read(start, stop), store.counted.read(start, stop)
        counted = (marks & 1).astype(bool)
        assert tokenizer.decode(ids[counted].tolist()).strip().startswith(answer)
        assert tokenizer.decode(ids[~counted].tolist()).count("Ho") == 1


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"chosen": conversation("Hi", "Ho")}, "it has no text and no list under 'rejected'"),
        ({"chosen": "Ho", "rejected": "no"}, "what is under 'chosen' is no answer"),
        ({"chosen": conversation("Hi"), "rejected": "no"}, "what is under 'chosen' is no answer"),
    ],
)
def test_rows_that_compare_nothing_are_said(row, said, tmp_path) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps(row) + "\n")
    section = ChatPreference(path=str(path), cache_dir=str(tmp_path))
    with pytest.raises(ValueError, match=said):
        prepare_tokens(section, Bytes(), build=build_section)
