"""Compared examples that are read while training: the rows of prepared data in the same order, on
any number of ranks and loader processes, and from any place on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section
from stream_helpers import closed

from forge.config.data.text import Streams
from forge.config.objectives.preference import (
    DPO,
    KTO,
    ChatLabelled,
    ChatPreference,
    Labelled,
    PreferencePairs,
)
from forge.config.tokenizers.tokenizer import Bytes
from forge.data.batches.examples import plan_examples
from forge.data.batches.loader import TrainLoader
from forge.data.batches.mixture import Mixture
from forge.data.batches.stream_rows import Packing
from forge.data.batches.streams import Streamed
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.data.tokens.store import TokenStore

SEQ = 96
KINDS: dict[str, Any] = {
    "preference": PreferencePairs,
    "chat_preference": ChatPreference,
    "labelled": Labelled,
    "chat_labelled": ChatLabelled,
}
WORDS = ["the", "whale", "is", "white", "a", "ship", "sails"]
ONE_PART: dict[str, Any] = {"stream_parts": 1, "shuffle_buffer": 1}
Step = dict[str, Any]


def row(kind: str, number: int) -> dict[str, Any]:
    """A prompt, that of the row before of every third row, and answers; some sides are longer than
    a row of a batch, some prompts too, and some rows are the same.
    """
    number %= 43
    draw = random.Random(number)
    asked = " ".join(random.Random(number - (number % 3 == 2)).choices(WORDS, k=1 + number % 5))
    asked = " ".join([asked] * 20) if number % 11 == 7 else asked
    first, second = (" ".join(draw.choices(WORDS, k=draw.randint(1, 25))) for _ in range(2))
    if kind.startswith("chat") and number % 2:
        said: Any = [[{"role": "assistant", "content": text}] for text in (first, second)]
        prompt: Any = [{"role": "user", "content": asked}]
    else:
        said, prompt = (first, second), asked
    if kind.endswith("labelled"):
        return {"prompt": asked, "completion": first, "label": number % 4 > 1}
    return {"prompt": prompt, "chosen": said[0], "rejected": said[1]}


def written(path: Path, kind: str, *files: Sequence[int]) -> Path:
    path.mkdir(exist_ok=True)
    for file, numbers in enumerate(files or [range(80)]):
        lines = [json.dumps(row(kind, number)) for number in numbers]
        (path / f"{file}.jsonl").write_text("\n".join(lines))
    return path


def prepared(path: Path, kind: str, **options: Any) -> Prepared:
    common: dict[str, Any] = {"path": str(path), "cache_dir": f"{path.parent}/cache"}
    common |= {"val_fraction": 0.0}
    return prepare_tokens(KINDS[kind](**(common | options)), Bytes(), build=build_section)


def streamed(path: Path, kind: str, too_long: str = "truncate", **options: Any) -> Streamed:
    text = prepared(path, kind, **({"hf_streaming": True, "stream_parts": 4} | options)).train
    assert isinstance(text, Streamed)
    return replace(text, packing=Packing("none", too_long))


def loaders(
    text: Any, kind: str, ranks: int = 1, *, batch: int = 12, workers: int = 0, multiple: int = 8
) -> list[TrainLoader]:
    """Of all ranks; a step has 12 examples, whatever the ranks."""
    section = KTO() if kind.endswith("labelled") else DPO()
    objective = build_section(section, path="objective")
    options: Any = {"seq_len": SEQ, "seed": 5, "shuffle": False, "multiple": multiple}
    options |= {"batch_size": batch // ranks, "grad_accum_steps": 12 // batch}
    options |= {"num_ranks": ranks, "num_workers": workers}
    return [TrainLoader(text, objective, rank=rank, **options) for rank in range(ranks)]


def read(found: list[TrainLoader], steps: int) -> list[Step]:
    """Each example of the ranks, in order, with the counts of its step."""
    made = []
    for _ in range(steps):
        parts = [next(loader) for loader in found]
        counts = {(part.n_targets, part.n_tokens) for part in parts}
        assert counts == {(12, parts[0].n_tokens)}  # examples
        samples: list[Step] = []
        for batches in zip(*(part.batches for part in parts), strict=True):
            for batch in batches:
                assert len(batch["tokens"]) % 2 == 0
                rows = zip(*(tensor.tolist() for tensor in batch.values()), strict=True)
                samples += [dict(zip(batch, each, strict=True)) for each in rows]
        assert len(samples) == 24
        made += [sample | {"counts": counts} for sample in samples]
    return made


def unpadded(rows: list[Step]) -> list[Step]:
    """Without the places after the text: rows end with the longest of their own micro-batch."""
    for one in rows:
        end = max(place for place, target in enumerate(one["targets"]) if target >= 0) + 1
        assert not any(one["tokens"][end:])
        one["tokens"], one["targets"] = one["tokens"][:end], one["targets"][:end]
    return rows


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("too_long", ["truncate", "drop"])
def test_rows_are_those_of_prepared_data_in_the_same_order(
    tmp_path: Path, kind: str, too_long: str
) -> None:
    """Both documents, what is learnt of them and labels, in a second epoch too."""
    path = written(tmp_path / "rows", kind, range(50), range(50, 90))
    whole = prepared(path, kind).train
    assert isinstance(whole, TokenStore)
    planned = plan_examples(whole, seq_len=SEQ, too_long=too_long)
    assert planned.left_out
    assert (planned.cut_off > 0) == (too_long == "truncate")
    text = Mixture(stores={"": whole}, plans={"": planned})
    stream, steps = streamed(path, kind, too_long, **ONE_PART), 2 * len(planned) // 12
    for multiple in (0, 8):
        wanted = read(loaders(text, kind, multiple=multiple), steps)
        assert read(loaders(stream, kind, multiple=multiple), steps) == wanted
    if kind.endswith("labelled"):
        assert {one["liked"] for one in wanted} == {True, False}


def test_responses_are_mismatched_in_each_file_and_row_group(tmp_path: Path) -> None:
    """A prompt with responses to another one, whatever the order of reading: of a Parquet file of
    three row groups those of three files.
    """
    import pandas

    rows = [row("labelled", number) for number in range(60)]
    for number, folder in enumerate(("files", "groups")):
        (tmp_path / folder).mkdir()
        for first in (0, 20, 40)[: 3 - 2 * number]:
            part = pandas.DataFrame(rows if number else rows[first : first + 20])
            part.to_parquet(tmp_path / folder / f"{first}.parquet", row_group_size=20)
    options: dict[str, Any] = {"stream_parts": 3, "shuffle_buffer": 1}
    files, groups = (
        streamed(tmp_path / name, "labelled", **options) for name in ("files", "groups")
    )
    assert len(files.parts) == len(groups.parts) == 3

    def examples(text: Streamed) -> set[tuple[bytes, ...]]:
        """Of the first 32 of each part, so that each is read in whole."""
        rows = [
            bytes(t % 256 for t in one["tokens"])
            for one in unpadded(read(loaders(text, "labelled"), 8))
        ]
        return {(*rows[first : first + 2],) for first in range(0, len(rows), 2)}

    wanted = examples(files)
    assert len(wanted) > 30
    assert examples(groups) == wanted


@pytest.fixture(scope="module", params=["chat_preference", "labelled"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, kind: str) -> Streamed:
    """In 4 parts, in shuffled blocks of 7."""
    files = [random.Random(file).sample(range(24), 24) for file in range(4)]
    path = written(tmp_path_factory.mktemp("parts") / "rows", kind, *files)
    found = streamed(path, kind, shuffle_buffer=7)
    assert len(found.parts) == 4
    return found


@pytest.fixture(scope="module")
def expected(text: Streamed, kind: str) -> list[Step]:
    """Read by one rank without loader processes."""
    return unpadded(read(loaders(text, kind), 30))


@pytest.mark.parametrize(
    ("ranks", "batch", "workers"), [(2, 12, 0), (3, 12, 0), (2, 4, 0), (1, 4, 1), (2, 12, 2)]
)
def test_rows_are_the_same_on_any_ranks_and_loader_processes(
    text: Streamed, kind: str, expected: list[Step], ranks: int, batch: int, workers: int
) -> None:
    found = loaders(text, kind, ranks, batch=batch, workers=workers)
    assert unpadded(read(found, 4)) == expected[:96]
    closed(found)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_goes_on_anywhere_on_any_number_of_ranks(
    text: Streamed, kind: str, expected: list[Step], seed: int
) -> None:
    """Three times after each other, from the state of checkpoints; in a later epoch too."""
    draw, state, done = random.Random(seed), None, 0
    for _ in range(4):
        ranks = draw.choice([1, 2, 3, 4, 6])
        batch = draw.choice([b for b in (1, 2, 3, 4, 6, 12) if b % ranks == 0])
        found = loaders(text, kind, ranks, batch=batch)
        for loader in found if state else ():
            loader.load_state_dict(state)  # type: ignore[arg-type]
        steps = draw.randint(4, 7)
        assert unpadded(read(found, steps)) == expected[24 * done : 24 * (done + steps)]
        done += steps
        state = json.loads(json.dumps(closed(found)))
    assert state is not None
    assert any(int(at.split()[0]) for at in state["streams"][""].values())


@pytest.mark.parametrize("kind", ["preference", "chat_labelled"])
def test_held_out_examples_are_whole_and_not_trained_on(tmp_path: Path, kind: str) -> None:
    """They are some of the prepared examples, and a rank trains on all others."""
    path = written(tmp_path / "rows", kind, range(80))  # some twice
    whole = prepared(path, kind).train
    assert isinstance(whole, TokenStore)
    options: Any = {"hf_streaming": True, "stream_parts": 1, "shuffle_buffer": 5}
    found = prepared(path, kind, val_documents=4, val_from_first=40, **options)

    def examples(store: TokenStore) -> list[tuple[Any, ...]]:
        assert store.counted is not None
        plan = plan_examples(store, seq_len=600, too_long="refuse")
        return [
            tuple(
                (tuple(store.read(*piece).tolist()), tuple(store.counted.read(*piece).tolist()))
                for piece in plan.pieces_of(number)
            )
            for number in range(len(plan))
        ]

    assert found.val.together == 2
    assert np.diff(found.val.offsets).min() > 1
    held, everything = examples(found.val), examples(whole)
    assert len({side[0] for side in held}) == 4
    assert set(held) < set(everything)
    assert isinstance(found.train, Streamed)
    train = replace(found.train, packing=Packing("none"))
    objective = build_section(KTO() if kind == "chat_labelled" else DPO(), path="objective")
    left = len(everything) - sum(one[0] in {side[0] for side in held} for one in everything)
    loader = TrainLoader(train, objective, seq_len=600, seed=1, batch_size=left)
    tokens = [
        bytes(t for t in row if t < 256).strip(b"\0")
        for row in next(loader).batches[0]["tokens"].tolist()
    ]
    trained = set(tokens[::2])
    assert not trained & {bytes(t for t in side[0][0] if t < 256) for side in held}
    assert len(trained) == len({one[0] for one in everything}) - 4


@pytest.mark.parametrize("kind", list(KINDS))
def test_bad_rows_are_left_out_or_named(tmp_path: Path, kind: str) -> None:
    """As many of each file as data.max_bad_rows says; rows after them are the same."""
    good = written(tmp_path / "good", kind)
    lines = (good / "0.jsonl").read_text().splitlines()
    path = tmp_path / "bad"
    path.mkdir()
    bad = json.loads(lines[0])
    bad |= {"label": None} if "label" in bad else {"chosen": None}
    lines[5:5] = [json.dumps(bad)] * 2
    (path / "0.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"0\.jsonl (row|line) 6"):
        prepared(path, kind)
    with pytest.raises(ValueError, match=r"0\.jsonl row 6"):
        read(loaders(streamed(path, kind, **ONE_PART), kind), 2)
    options: Any = ONE_PART | {"on_bad_row": "skip"}
    with pytest.raises(ValueError, match=r"max_bad_rows = 1: 2 rows cannot be read"):
        read(loaders(streamed(path, kind, max_bad_rows=1, **options), kind), 2)
    found = loaders(streamed(path, kind, **options), kind)
    wanted = loaders(streamed(good, kind, **ONE_PART), kind)
    assert read(found, 2) == read(wanted, 2)
    again = loaders(streamed(path, kind, **options), kind)
    again[0].load_state_dict(closed(found))
    assert read(again, 2) == read(wanted, 2)


def test_faults_of_all_rows_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "rows", "preference")
    (path / "0.jsonl").write_text(
        json.dumps({"prompt": "a", "chosen": "b" * 200, "rejected": "c"}) + "\n"
    )
    for too_long, said in (
        ("refuse", r"an example of .* has 202 tokens, .* Set train\.seq_len=201, or"),
        ("drop", r"data\.too_long=drop: every example of a part of .* is left out"),
    ):
        with pytest.raises(ValueError, match=said):
            read(loaders(streamed(path, "preference", too_long), "preference"), 1)
    with pytest.raises(ValueError, match=r"data\.chosen_field = best: .* no such column"):
        streamed(path, "preference", chosen_field="best")
    (path / "0.jsonl").write_text(2 * (json.dumps(row("labelled", 1)) + "\n"))
    for kind in ("labelled", "chat_labelled"):
        with pytest.raises(ValueError, match=r"all rows up to .*0\.jsonl row 2 have one prompt"):
            read(loaders(streamed(path, kind), kind), 1)


def test_each_kind_has_the_options_of_streams() -> None:
    assert all(issubclass(section, Streams) for section in KINDS.values())
