"""Conversations and pairs that are read while training: the rows of prepared data in the same
order, on any number of ranks and loader processes, and from any place on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_helpers import build_section
from stream_helpers import EOS, Text, closed

from forge.config.data.chats import Alpaca, Chat, ShareGPT
from forge.config.data.text import Pairs
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.batches.loader import TrainLoader
from forge.data.batches.mixture import Mixture
from forge.data.batches.packing import plan_samples
from forge.data.batches.stream_rows import Packing
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.data.tokens.store import COUNTS, TokenStore

SEQ = 96
KINDS = {"chat": Chat, "sharegpt": ShareGPT, "alpaca": Alpaca, "pairs": Pairs}
NEXT_FIT = Packing("next_fit", "truncate")
WORDS = ["the", "whale", "is", "white", "a", "ship", "sails"]
Step = dict[str, Any]


def row(kind: str, number: int) -> dict[str, Any]:
    """A question and one or two answers; some are longer than a row, some are the same."""
    draw = random.Random(number % 37)
    asked, said = (" ".join(draw.choices(WORDS, k=draw.randint(1, n))) for n in (5, 25))
    if kind == "pairs":
        return {"prompt": asked, "response": said}
    if kind == "alpaca":
        return {"instruction": asked, "input": "", "output": said}
    turns = [("user", asked), ("assistant", said)] + [("user", "and"), ("assistant", "so")] * (
        number % 2
    )
    if kind == "sharegpt":
        return {"conversations": [{"from": role, "value": text} for role, text in turns]}
    return {"messages": [{"role": role, "content": text} for role, text in turns]}


def written(path: Path, kind: str, *files: Sequence[int]) -> Path:
    path.mkdir(exist_ok=True)
    for file, numbers in enumerate(files or [range(60)]):
        lines = [json.dumps(row(kind, number)) for number in numbers]
        (path / f"{file}.jsonl").write_text("\n".join(lines))
    return path


def prepared(path: Path, kind: str, **options: Any) -> Prepared:
    common: dict[str, Any] = {"path": str(path), "cache_dir": f"{path.parent}/cache"}
    common |= {"val_fraction": 0.0}
    return prepare_tokens(KINDS[kind](**(common | options)), Bytes(), build=build_section)


def streamed(path: Path, kind: str, packing: Packing = NEXT_FIT, **options: Any) -> Streamed:
    text = prepared(path, kind, **({"hf_streaming": True, "stream_parts": 4} | options)).train
    assert isinstance(text, Streamed)
    return replace(text, packing=packing)


def loaders(
    text: Any, ranks: int = 1, *, batch: int = 12, workers: int = 0, multiple: int = 0
) -> list[TrainLoader]:
    """Of all ranks; a step has 12 samples, whatever the ranks."""
    options: Any = {"seq_len": SEQ, "seed": 5, "end_of_text": EOS, "shuffle": False}
    options |= {"batch_size": batch // ranks, "grad_accum_steps": 12 // batch}
    options |= {"num_ranks": ranks, "num_workers": workers, "multiple": multiple}
    return [TrainLoader(text, Text(), rank=rank, **options) for rank in range(ranks)]  # type: ignore


def read(found: list[TrainLoader], steps: int) -> list[Step]:
    """Each sample of the ranks, in order, with the counts of its step."""
    made = []
    for _ in range(steps):
        parts = [next(loader) for loader in found]
        counts = {(part.n_targets, part.n_tokens) for part in parts}
        assert len(counts) == 1
        samples: list[Step] = []
        for batches in zip(*(part.batches for part in parts), strict=True):
            for batch in batches:
                rows = zip(*(tensor.tolist() for tensor in batch.values()), strict=True)
                samples += [dict(zip(batch, each, strict=True)) for each in rows]
        targets = sum(target >= 0 for sample in samples for target in sample["targets"])
        assert targets == next(iter(counts))[0]
        made += [sample | {"counts": counts} for sample in samples]
    return made


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("policy", ["none", "next_fit", "concat_then_split"])
@pytest.mark.parametrize("too_long", ["truncate", "split", "drop"])
def test_rows_are_those_of_prepared_data_in_the_same_order(
    tmp_path: Path, kind: str, policy: str, too_long: str
) -> None:
    """What is learnt of them too, in a second epoch too; the plan is made of the whole corpus."""
    path = written(tmp_path / "rows", kind)
    whole = prepared(path, kind).train
    assert isinstance(whole, TokenStore)
    if policy == "concat_then_split":
        if too_long != "split":
            return
        text, steps = Mixture.of(whole), (len(whole) - 1) // SEQ // 12
    else:
        how: Any = {"seq_len": SEQ, "max_segments": 0, "too_long": too_long, "policy": policy}
        planned = plan_samples(whole, end_of_text=EOS, **how)
        assert planned.left_out if too_long == "drop" else len(planned) > 20
        text, steps = Mixture(stores={"": whole}, plans={"": planned}), 2 * len(planned) // 12
    assert steps > 1
    options: Any = {"stream_parts": 1, "shuffle_buffer": 1}
    stream = streamed(path, kind, Packing(policy, too_long), **options)
    for multiple in (0, 8) if policy == "none" else (0,):
        wanted = read(loaders(text, multiple=multiple), steps)
        assert read(loaders(stream, multiple=multiple), steps) == wanted
    assert any(0 < sum(t >= 0 for t in one["targets"]) < SEQ for one in wanted)


def test_at_most_so_many_documents_share_a_row(tmp_path: Path) -> None:
    path = written(tmp_path / "rows", "pairs")
    whole = prepared(path, "pairs").train
    assert isinstance(whole, TokenStore)
    how: Any = {"seq_len": SEQ, "max_segments": 2, "too_long": "drop", "policy": "next_fit"}
    text = Mixture(stores={"": whole}, plans={"": plan_samples(whole, end_of_text=EOS, **how)})
    packing = Packing("next_fit", "drop", 2)
    stream = streamed(path, "pairs", packing, stream_parts=1, shuffle_buffer=1)
    assert read(loaders(stream), 3) == read(loaders(text), 3)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    """In 4 parts, in shuffled blocks of 7."""
    files = [random.Random(file).sample(range(24), 24) for file in range(4)]
    path = written(tmp_path_factory.mktemp("parts") / "rows", "chat", *files)
    found = streamed(path, "chat", Packing("next_fit", "split"), shuffle_buffer=7)
    assert len(found.parts) == 4
    return found


_EXPECTED: list[Step] = []


def expected(text: Streamed) -> list[Step]:
    """What one rank reads without loader processes."""
    if not _EXPECTED:
        _EXPECTED.extend(read(loaders(text), 30))
    return _EXPECTED


@pytest.mark.parametrize(
    ("ranks", "batch", "workers"), [(2, 12, 0), (3, 12, 0), (2, 4, 0), (1, 4, 1), (2, 12, 2)]
)
def test_rows_are_the_same_on_any_ranks_and_loader_processes(
    text: Streamed, ranks: int, batch: int, workers: int
) -> None:
    found = loaders(text, ranks, batch=batch, workers=workers)
    assert read(found, 4) == expected(text)[:48]
    closed(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_goes_on_anywhere_on_any_number_of_ranks(text: Streamed, seed: int) -> None:
    """Three times after each other, from what checkpoints keep; in a later epoch too, and inside a
    document of several rows.
    """
    draw, state, done = random.Random(seed), None, 0
    for _ in range(4):
        ranks = draw.choice([1, 2, 3, 4, 6])
        batch = draw.choice([b for b in (1, 2, 3, 4, 6, 12) if b % ranks == 0])
        found = loaders(text, ranks, batch=batch)
        for loader in found if state else ():
            loader.load_state_dict(state)  # type: ignore[arg-type]
        steps = draw.randint(4, 7)
        assert read(found, steps) == expected(text)[12 * done : 12 * (done + steps)]
        done += steps
        state = json.loads(json.dumps(closed(found)))
    assert state is not None
    assert any(int(at.split()[0]) for at in state["streams"][""].values())


def test_what_is_held_out_has_marks_and_is_not_trained_on(tmp_path: Path) -> None:
    path = written(tmp_path / "rows", "chat", range(74))  # 37 twice
    options: Any = {"hf_streaming": True, "stream_parts": 1, "shuffle_buffer": 5}
    found = prepared(path, "chat", val_documents=4, val_from_first=20, **options)
    assert found.val.counted is not None
    marks = found.val.counted.read(0, len(found.val)) & COUNTS
    assert 0 < marks.sum() < len(marks)
    how: Any = {"seq_len": 400, "max_segments": 0, "policy": "none"}
    held = {
        tuple(found.val.read(*found_piece).tolist())
        for found_piece in plan_samples(found.val, end_of_text=EOS, **how).pieces.tolist()
    }
    assert len(held) == 4
    assert isinstance(found.train, Streamed)
    train = replace(found.train, packing=Packing("none"))
    part = TrainLoader(train, Text(), seq_len=400, seed=1, batch_size=80, end_of_text=EOS)  # type: ignore
    tokens = {tuple(row) for row in next(part).batches[0]["tokens"].tolist()}
    read_texts = {bytes(t for t in row if t < 256) for row in tokens}
    for one in held:
        assert bytes(token for token in one if token < 256) not in read_texts
    assert "Assistant" in str(found.tokenizer.stated["chat_template"])  # saved for its chats


def test_messages_of_different_fields_are_those_of_the_file(tmp_path: Path) -> None:
    """Also where the library gives no columns of one type: calls of tools with other arguments."""
    path = tmp_path / "rows"
    path.mkdir()
    calls: list[dict[str, Any]] = [{"x": 1}, {"y": ["a"]}, {"x": "b", "z": {"k": 2}}]
    lines = []
    for call in calls:
        said = {"role": "assistant", "content": None}
        said["tool_calls"] = [{"type": "function", "function": {"name": "f", "arguments": call}}]
        lines.append(json.dumps({"messages": [{"role": "user", "content": "do"}, said]}))
    (path / "0.jsonl").write_text("\n".join(lines))
    shown = "{{ message.content or message.tool_calls[0].function.arguments | tojson }}"
    turn = (
        "{% if message.role == 'user' %}{{ message.content }}\n{% else %}{% generation %}" + shown
    )
    template = "{% for message in messages %}" + turn
    template += "{{ message.tool_calls }}{% endgeneration %}{% endif %}{% endfor %}"
    options: Any = {"chat_template": template}
    whole = prepared(path, "chat", **options).train
    assert isinstance(whole, TokenStore)
    how: Any = {"seq_len": SEQ, "max_segments": 0, "too_long": "split", "policy": "none"}
    text = Mixture(stores={"": whole}, plans={"": plan_samples(whole, end_of_text=EOS, **how)})
    options |= {"stream_parts": 1, "shuffle_buffer": 1}
    stream = streamed(path, "chat", Packing("none"), **options)
    assert read(loaders(stream), 1) == read(loaders(text), 1)


def test_bad_rows_are_left_out_or_named(tmp_path: Path) -> None:
    """As many of each file as data.max_bad_rows says; rows after them are the same."""
    for kind, bad in (("chat", {"messages": [{"role": "user"}]}), ("pairs", {"prompt": "a"})):
        good = written(tmp_path / f"good-{kind}", kind)
        lines = (good / "0.jsonl").read_text().splitlines()
        path = tmp_path / f"bad-{kind}"
        path.mkdir()
        lines[5:5] = [json.dumps(bad)] * 2
        (path / "0.jsonl").write_text("\n".join(lines))
        options: Any = {"stream_parts": 1, "shuffle_buffer": 1}
        with pytest.raises(ValueError, match=r"0\.jsonl row 6"):
            read(loaders(streamed(path, kind, **options)), 2)
        options |= {"on_bad_row": "skip"}
        with pytest.raises(ValueError, match=r"max_bad_rows = 1: 2 rows cannot be read"):
            read(loaders(streamed(path, kind, max_bad_rows=1, **options)), 2)
        found = loaders(streamed(path, kind, **options))
        wanted = loaders(streamed(good, kind, stream_parts=1, shuffle_buffer=1))
        assert read(found, 2) == read(wanted, 2)
        again = loaders(streamed(path, kind, **options))
        again[0].load_state_dict(closed(found))
        assert read(again, 2) == read(wanted, 2)


def test_what_cannot_be_trained_on_is_said(tmp_path: Path) -> None:
    path = written(tmp_path / "rows", "pairs")
    for packing, said in (
        (Packing("none", "refuse"), "a document of .* more than train.seq_len"),
        (Packing("none", "drop"), "every document of a part of .* is left out"),
    ):
        numbers = (number for number in range(99) if len(row("pairs", number)["response"]) > SEQ)
        rows = "\n".join(json.dumps(row("pairs", number)) for number in numbers)
        (path / "0.jsonl").write_text(rows)
        with pytest.raises(ValueError, match=said):
            read(loaders(streamed(path, "pairs", packing)), 2)
    with pytest.raises(ValueError, match=r"data\.response_field = answer: .* no such column"):
        read(loaders(streamed(path, "pairs", response_field="answer")), 1)
    (path / "0.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "Hi"}]}))
    with pytest.raises(ValueError, match=r"0\.jsonl row 1 has no turn of the assistant"):
        read(loaders(streamed(path, "chat")), 1)
