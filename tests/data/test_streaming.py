"""Text that is read while it trains: the same samples on any number of ranks and loader processes,
which a plain reading of the files confirms, and from any place on.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
from data_helpers import build_section, make_prose

from forge.config.data import HuggingFace
from forge.config.mixture import Phase
from forge.config.tokenizer import Bytes
from forge.data.hub_stream import divided
from forge.data.loader import TrainLoader
from forge.data.mixture import Mixture, MixtureOrder
from forge.data.preparation import prepare_shards
from forge.data.prepare import Prepared, prepare
from forge.data.shards import IndexedStore, ShardWriter
from forge.data.streams import Streamed, joined
from forge.objectives.next_token import NextToken

SEQ, EOS = 16, 256
N_FILES, N_ROWS = 3, 40


class Text(NextToken):
    def __init__(self) -> None:
        pass


def prose(number: int) -> str:
    """A document of 5 to 70 characters; some are empty, some are the same."""
    number = number if number % 11 else 0
    draw = random.Random(number)
    return "" if number % 17 == 5 else make_prose(2, number)[: draw.randint(5, 70)]


TEXTS = [[prose(N_ROWS * file + row) for row in range(N_ROWS)] for file in range(N_FILES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parquet in row groups of 10."""
    made = tmp_path_factory.mktemp("corpus")
    for number, texts in enumerate(TEXTS):
        frame = pandas.DataFrame({"id": range(len(texts)), "text": texts})
        frame.to_parquet(made / f"{number}.parquet", row_group_size=10)
    return made


def streamed(path: Path, **options: Any) -> Prepared:
    common: dict[str, Any] = {"path": str(path), "cache_dir": f"{path.parent}/cache"}
    common |= {"hf_streaming": True, "shuffle_buffer": 7}
    section = HuggingFace(**(common | options))
    return prepare(section, Bytes(), build=build_section)


@pytest.fixture(scope="module")
def text(folder: Path) -> Streamed:
    """In 4 parts of 3 row groups."""
    found = streamed(folder, stream_parts=4).train
    assert isinstance(found, Streamed)
    assert len(found.parts) == 4
    return found


def loaders(text: Any, ranks: int, *, batch: int = 12, workers: int = 0) -> list[TrainLoader]:
    """Of all ranks; a step has 12 samples, whatever the ranks."""
    return [
        TrainLoader(
            text,
            Text(),  # type: ignore[abstract]
            seq_len=SEQ,
            seed=5,
            batch_size=batch // ranks,
            grad_accum_steps=12 // batch,
            num_ranks=ranks,
            rank=rank,
            num_workers=workers,
        )
        for rank in range(ranks)
    ]


def rows(found: list[TrainLoader], steps: int) -> list[list[int]]:
    """The tokens of each sample, in order."""
    made = []
    for _ in range(steps):
        parts = [next(loader) for loader in found]
        for batches in zip(*(part.batches for part in parts), strict=True):
            made += [row for batch in batches for row in batch["tokens"].tolist()]
    return made


def closed(found: list[TrainLoader]) -> dict[str, Any]:
    """The state that a checkpoint has, of loaders that have ended."""
    for loader in found:
        loader.close()
    return joined([loader.state_dict() for loader in found])


def ids(text: str) -> list[int]:
    return [*text.encode(), EOS]


def kept(prepared: Prepared, texts: list[str]) -> list[str]:
    """Those that are trained on, by what the validation split has."""
    held = prepared.val.read(0, len(prepared.val)).tolist()
    ends = [-1, *(at for at, token in enumerate(held) if token == EOS)]
    of_val = {tuple(held[a + 1 : b + 1]) for a, b in pairwise(ends)}
    return [text for text in texts if text and tuple(ids(text)) not in of_val]


def test_without_shuffling_tokens_are_those_of_the_files_one_behind_the_other(folder: Path) -> None:
    prepared = streamed(folder, stream_parts=1, shuffle_buffer=1)
    documents = kept(prepared, [text for file in TEXTS for text in file])
    assert 0 < len(documents) < sum(bool(text) for file in TEXTS for text in file)
    epoch = [token for text in documents for token in ids(text)]
    tokens = epoch * 3
    found = rows(loaders(prepared.train, 1), 2 * len(epoch) // SEQ // 12)
    assert len(found) * SEQ > 1.5 * len(epoch)
    assert found == [tokens[at : at + SEQ] for at in range(0, len(found) * SEQ, SEQ)]


def test_an_epoch_of_a_part_has_its_documents_once_in_shuffled_blocks(folder: Path) -> None:
    """Every part is read in blocks of 7 documents of its row groups, in another order each time."""
    prepared = streamed(folder, stream_parts=4)
    text = prepared.train
    assert isinstance(text, Streamed)
    units = [file[at : at + 10] for file in TEXTS for at in range(0, N_ROWS, 10)]
    samples = rows(loaders(text, 1), 60)
    assert sorted(unit for part in text.parts for unit in part) == list(range(12))
    for number, part in enumerate(text.parts):
        wanted = [kept(prepared, units[unit]) for unit in part]
        size = sum(len(ids(one)) for unit in wanted for one in unit)
        tokens = [token for sample in samples[number::4] for token in sample]
        assert len(tokens) > 2 * size
        epochs = [documents(tokens[at : at + size]) for at in (0, size)]
        assert epochs[0] != epochs[1]
        for epoch in epochs:
            assert sorted(epoch) == sorted(one for unit in wanted for one in unit)
            # row groups follow each other in some order, and a block is 7 documents of that
            orders = [[one for unit in order for one in unit] for order in permutations(wanted)]
            assert epoch not in orders
            assert any(blocks(epoch) == blocks(order) for order in orders)


def blocks(texts: list[str]) -> list[list[str]]:
    return [sorted(texts[at : at + 7]) for at in range(0, len(texts), 7)]


def documents(tokens: list[int]) -> list[str]:
    assert tokens[-1] == EOS
    found: list[bytearray] = [bytearray()]
    for token in tokens:
        if token == EOS:
            found.append(bytearray())
        else:
            found[-1].append(token)
    return [one.decode() for one in found[:-1]]


@pytest.mark.parametrize(
    ("ranks", "batch", "workers"),
    [
        (1, 12, 0),
        (2, 12, 0),
        (3, 12, 0),
        (4, 12, 0),
        (6, 6, 0),
        (2, 4, 0),
        (1, 4, 1),
        (3, 12, 2),
        (2, 6, 3),
    ],
)
def test_samples_are_the_same_on_any_ranks_and_loader_processes(
    text: Streamed, ranks: int, batch: int, workers: int
) -> None:
    found = loaders(text, ranks, batch=batch, workers=workers)
    assert rows(found, 4) == expected(text, 4)
    closed(found)


_EXPECTED: list[list[int]] = []


def expected(text: Streamed, steps: int) -> list[list[int]]:
    """What one rank reads without loader processes."""
    if not _EXPECTED:
        _EXPECTED.extend(rows(loaders(text, 1), 40))
    return _EXPECTED[: 12 * steps]


def test_seven_ranks_read_what_one_does(text: Streamed) -> None:
    def of(ranks: int) -> list[list[int]]:
        made = [
            TrainLoader(
                text,
                Text(),
                seq_len=SEQ,
                seed=5,
                batch_size=14 // ranks,
                num_ranks=ranks,
                rank=rank,  # type: ignore[abstract]
            )
            for rank in range(ranks)
        ]
        return rows(made, 5)

    assert of(7) == of(1)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_goes_on_anywhere_on_any_number_of_ranks(text: Streamed, seed: int) -> None:
    """Three times after each other, from what checkpoints keep; in a later epoch too."""
    draw, state, done = random.Random(seed), None, 0
    for _ in range(4):
        ranks = draw.choice([1, 2, 3, 4, 6])
        batch = draw.choice([b for b in (1, 2, 3, 4, 6, 12) if b % ranks == 0])
        found = loaders(text, ranks, batch=batch, workers=2 if draw.random() < 0.15 else 0)
        for loader in found if state else ():
            loader.load_state_dict(state)  # type: ignore[arg-type]
        steps = draw.randint(1, 10)
        assert rows(found, steps) == expected(text, 40)[12 * done : 12 * (done + steps)]
        done += steps
        state = closed(found)
        assert state["samples"] == 12 * done


def test_an_old_position_is_read_forward_from(text: Streamed) -> None:
    """Also none at all: what a position says is only where to begin."""
    found = loaders(text, 1)
    rows(found, 9)
    state = closed(found)
    old = dict(state["streams"][""])
    rows(found, 6)
    state = closed(found)
    for at in (old, {"1": old["1"]}, {}):
        again = loaders(text, 1)
        again[0].load_state_dict(state | {"streams": {"": at}})
        assert rows(again, 2) == expected(text, 40)[12 * 15 : 12 * 17]


def test_a_rank_reads_only_the_parts_of_its_samples(text: Streamed) -> None:
    """Where the parts are a multiple of what all read at a time; then no row is read twice."""
    found = loaders(text, 4, batch=4)
    rows(found, 5)
    known = [set(loader.state_dict()["streams"][""]) for loader in found]
    assert known == [{"0"}, {"1"}, {"2"}, {"3"}]


def test_a_mixture_draws_from_a_stream_as_from_any_source(text: Streamed, tmp_path: Path) -> None:
    """In every sample the source that the order names, and of the stream its next."""
    writer = ShardWriter(tmp_path / "a", vocab_size=1 << 16)
    writer.append(np.arange(1000, 1401))
    writer.close(n_bytes=0, n_documents=0)
    phases = (Phase(weights=(0.6, 0.4)), Phase(start_step=3, weights=(0.1, 0.9)))
    mixture = Mixture(stores={"shards": IndexedStore(tmp_path / "a"), "text": text}, phases=phases)
    whole = rows(loaders(mixture, 1), 12)
    order = MixtureOrder([25, None], [(0, (0.6, 0.4)), (36, (0.1, 0.9))], seed=5)
    stream = iter(rows_of_stream(text, "5/1"))
    for sample, row in enumerate(whole):
        source, number = order.find(sample)
        if source:
            assert row == next(stream)
        else:
            assert row == [*range(1000 + SEQ * number, 1000 + SEQ * (number + 1))]
    for ranks, workers in ((2, 0), (3, 2)):
        found = loaders(mixture, ranks, workers=workers)
        assert rows(found, 5) == whole[:60]
        state = closed(found)
        again = loaders(mixture, 6 // ranks)
        for loader in again:
            loader.load_state_dict(state)
        assert rows(again, 7) == whole[60:]
        assert again[0].realised()["text"] == sum(row[0] < 1000 for row in whole)


def rows_of_stream(text: Streamed, seed: str) -> list[list[int]]:
    loader = TrainLoader(text, Text(), seq_len=SEQ, seed=seed, batch_size=12)  # type: ignore
    return rows([loader], 12)


def test_documents_are_kept_apart_and_counted_on_every_rank(text: Streamed) -> None:
    """Each rank counts the targets of all, for which it reads their samples too."""
    counts, whole = [], expected(text, 3)
    for ranks in (1, 3):
        found = [
            TrainLoader(
                text,
                Text(),
                seq_len=SEQ,
                seed=5,
                batch_size=12 // ranks,
                num_ranks=ranks,
                rank=rank,
                end_of_text=EOS,  # type: ignore[abstract]
            )
            for rank in range(ranks)
        ]
        for step in range(3):
            parts = [next(loader) for loader in found]
            tokens = [row for part in parts for row in part.batches[0]["tokens"].tolist()]
            assert tokens == whole[12 * step : 12 * step + 12]
            targets = sum(int((part.batches[0]["targets"] >= 0).sum()) for part in parts)
            assert {part.n_targets for part in parts} == {targets}
            counts.append(targets)
    assert counts[:3] == counts[3:]


def test_units_are_divided_into_parts_of_nearly_equal_size() -> None:
    assert divided([5] * 12, 4) == ((0, 4, 8), (1, 5, 9), (2, 6, 10), (3, 7, 11))
    assert divided([10, 1], 8) == ((0, 1),)  # else the small file would be read ten times as often
    draw = random.Random(0)
    sizes = [draw.randint(50, 150) for _ in range(200)]
    parts = divided(sizes, 16)
    assert len(parts) == 16
    assert sorted(unit for part in parts for unit in part) == list(range(200))
    held = [sum(sizes[unit] for unit in part) for part in parts]
    assert max(held) <= 1.25 * min(held)


@pytest.mark.parametrize("ends", [True, False])
def test_documents_of_a_stream_begin_as_others_do(folder: Path, ends: bool) -> None:
    """Those that are held out too: the first is found whole behind each beginning."""
    begin = 257
    section = Bytes(add_bos=True, add_eos=ends)
    where: dict[str, Any] = {"path": str(folder), "cache_dir": f"{folder.parent}/cache"}
    found = prepare(
        HuggingFace(**where, hf_streaming=True, stream_parts=1), section, build=build_section
    )
    known = {tuple(text.encode()) + (EOS,) * ends for texts in TEXTS for text in texts}
    tokens = found.val.read(0, len(found.val)).tolist()
    loader = TrainLoader(
        found.train,
        Text(),  # type: ignore[abstract]
        seq_len=SEQ,
        seed=5,
        batch_size=1,
        grad_accum_steps=1,
    )
    for _ in range(40):
        tokens += next(loader).batches[0]["tokens"][0].tolist()
    loader.close()
    places = [place for place, token in enumerate(tokens) if token == begin]
    assert tokens[0] == begin
    whole = [tuple(tokens[a + 1 : b]) for a, b in pairwise(places)]
    assert sum(each in known for each in whole) >= len(whole) - 1, "one is cut between the two"
    assert len(whole) > 10


def lines(path: Path, texts: list[Any], field: str = "text") -> None:
    content = "".join(json.dumps({field: text}) + "\n" for text in texts).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def forms(tmp_path: Path) -> Path:
    """The same 120 rows in each form."""
    texts = [text for file in TEXTS for text in file]
    lines(tmp_path / "rows.jsonl", texts)
    lines(tmp_path / "rows.jsonl.gz", texts)
    pandas.DataFrame({"text": texts}).to_parquet(tmp_path / "rows.parquet")
    pandas.DataFrame({"text": texts}).to_csv(tmp_path / "rows.csv", index=False)
    whole = datasets.Dataset.from_dict({"text": texts})
    whole.save_to_disk(str(tmp_path / "saved"))
    (tmp_path / "lines.txt").write_text("".join(text.replace("\n", " ") + "\n" for text in texts))
    return tmp_path


def test_every_form_gives_the_same_samples(forms: Path) -> None:
    """Also to a process that the text is sent to."""
    found = {}
    names = ("rows.jsonl", "row?.jsonl", "rows.jsonl.gz", "*.jsonl.gz", "rows.parquet", "saved")
    for name in (*names, "lines.txt"):
        text = streamed(forms / name, stream_parts=1, val_fraction=0.0).train
        found[name] = rows(loaders(text, 1), 10)
        assert rows(loaders(pickle.loads(pickle.dumps(text)), 1), 10) == found[name]
    spaces = [[32 if token == 10 else token for token in row] for row in found["rows.jsonl"]]
    assert found.pop("lines.txt") == spaces
    assert all(each == found["rows.jsonl"] for each in found.values())


def test_what_is_held_out_is_never_trained_on(folder: Path) -> None:
    """A share or a number of the first documents, or none; the same ones whatever else is chosen,
    and equal ones that come later are left out too.
    """
    texts = [text for file in TEXTS for text in file if text]
    for options, least in ({"val_fraction": 0.2}, 3), ({"val_documents": 4}, 4):
        prepared = streamed(folder, stream_parts=2, val_from_first=40, **options)
        held = documents(prepared.val.read(0, len(prepared.val)).tolist())
        assert len(held) >= least
        assert set(held) <= set(texts[:40])
        read = {document for number in (0, 1) for document in part_of(prepared, number, texts)}
        assert read == set(texts) - set(held)
    assert any(texts.count(text) > 1 for text in texts)
    none = streamed(folder, val_fraction=0.0)
    assert len(none.val) == 0
    assert isinstance(none.train, Streamed)
    assert not none.train.held_out


def part_of(prepared: Prepared, number: int, texts: list[str]) -> list[str]:
    """The documents of an epoch of a part."""
    text = prepared.train
    assert isinstance(text, Streamed)
    units = [file[at : at + 10] for file in TEXTS for at in range(0, N_ROWS, 10)]
    wanted = [one for unit in text.parts[number] for one in kept(prepared, units[unit])]
    size = sum(len(ids(one)) for one in wanted)
    samples = rows(loaders(text, 1), size // SEQ * 2 // 12 + 2)
    found = documents([token for sample in samples[number::2] for token in sample][:size])
    assert sorted(found) == sorted(wanted)
    return found


def test_validation_on_other_text(folder: Path, tmp_path: Path) -> None:
    lines(tmp_path / "val.jsonl", ["a whale", "a ship"])
    prepared = streamed(folder, validation={"path": str(tmp_path / "val.jsonl")})
    assert documents(prepared.val.read(0, len(prepared.val)).tolist()) == ["a whale", "a ship"]
    texts = [text for file in TEXTS for text in file if text]
    assert isinstance(prepared.train, Streamed)
    assert not prepared.train.held_out
    assert prepared.manifest["validation"]["splits"]["val"]["documents"] == 2
    assert len(texts) > 100


def refusal(path: Path, steps: int = 30, **options: Any) -> str:
    """What is said when it is prepared, or read."""
    with pytest.raises(ValueError) as caught:
        rows(loaders(streamed(path, **({"stream_parts": 1} | options)).train, 1), steps)
    return str(caught.value).replace(str(path.parent), "DIR")


def test_refusals(tmp_path: Path, forms: Path) -> None:
    saved = forms / "rows.parquet"
    assert refusal(saved, hf_dataset_text_field="body") == (
        "data.hf_dataset_text_field = body: DIR/rows.parquet has no such column (its columns: "
        "text). Name one of them."
    )
    assert refusal(forms / "lines.txt", hf_dataset_text_field="body") == (
        "data.hf_dataset_text_field = body: DIR/lines.txt has no such column (its columns: "
        "text). Name one of them."
    )
    lines(tmp_path / "null.jsonl", ["some text"] * 5 + [None, "more"])
    assert refusal(tmp_path / "null.jsonl") == (
        "data.path: DIR/null.jsonl row 6: field 'text' is null, not text. "
        "Choose another with data.hf_dataset_text_field."
    )
    pandas.DataFrame({"text": range(9)}).to_parquet(tmp_path / "int.parquet")
    assert refusal(tmp_path / "int.parquet") == (
        "data.path: DIR/int.parquet row 1: field 'text' is int, not text. "
        "Choose another with data.hf_dataset_text_field."
    )
    lines(tmp_path / "empty.jsonl", ["", "", ""])
    assert refusal(tmp_path / "empty.jsonl") == (
        "data: there is no text in DIR/empty.jsonl. Give some to train on."
    )
    assert refusal(tmp_path / "empty.jsonl", val_fraction=0.0) == (
        "data: there is no text in DIR/empty.jsonl. Give more text."
    )
    lines(tmp_path / "one.jsonl", ["one", "one"])
    assert refusal(tmp_path / "one.jsonl") == (
        "data: DIR/one.jsonl has one document, too little to hold some out for validation. "
        "Give more text; or other text to validate on, data.validation."
    )
    assert refusal(tmp_path / "one.jsonl", val_fraction=0.0) == (
        "train.seq_len = 16: DIR/one.jsonl has 8 tokens, less than one sample of seq_len + 1. "
        "Set train.seq_len=7 or less, or give more text."
    )
    assert refusal(saved, val_documents=500) == (
        "data.val_documents = 500: the first 114 have 104 different ones, and some must be left to "
        "train on. Hold out fewer, or look at more with data.val_from_first."
    )
    short = pandas.DataFrame({"text": ["a", "b", "c", "d"]})
    short.to_parquet(tmp_path / "short.parquet", row_group_size=2)
    assert refusal(tmp_path / "short.parquet", stream_parts=2, val_fraction=0.0) == (
        "train.seq_len = 16: part 1 of 2 of DIR/short.parquet has 4 tokens, less than one sample "
        "of seq_len + 1. Set data.stream_parts=1, or train.seq_len=3 or less, or give more text."
    )
    assert refusal(saved, hf_dataset_split="train[:10%]").startswith("data.path = DIR/rows.parquet")


def test_what_breaks_while_it_trains_is_named(folder: Path, forms: Path) -> None:
    """Files that end too early, or are gone, after the row that was read last."""
    gone = forms / "gone"
    gone.mkdir()
    for number in (0, 1):
        (gone / f"{number}.parquet").write_bytes((folder / f"{number}.parquet").read_bytes())
    text = streamed(gone, stream_parts=1, shuffle_buffer=1, val_from_first=20).train
    content = (gone / "1.parquet").read_bytes()
    (gone / "1.parquet").write_bytes(content[:-100])
    with pytest.raises(
        ValueError, match=r"^data: cannot read \S*/gone/1\.parquet after row 0 \("
    ) as e:
        rows(loaders(text, 1), 30)
    assert str(e.value).endswith("). Check that it is complete.")
    (gone / "1.parquet").unlink()
    with pytest.raises(ValueError, match=r"^data: cannot read \S*/gone/1\.parquet after row 0 \("):
        rows(loaders(text, 1, workers=1), 30)
    packed = (forms / "rows.jsonl.gz").read_bytes()
    (forms / "rows.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    assert refusal(forms / "rows.jsonl.gz") == (
        "data.path = DIR/rows.jsonl.gz: Compressed file ended before the end-of-stream marker was "
        "reached. Check its name, data.hf_dataset_config and data.hf_dataset_split."
    )


def test_a_stream_is_not_prepared(folder: Path, tmp_path: Path) -> None:
    section = HuggingFace(path=str(folder), hf_streaming=True, cache_dir=str(tmp_path))
    with pytest.raises(ValueError) as caught:
        prepare_shards(tmp_path / "out", section, Bytes(), build=build_section, processes=1)
    assert str(caught.value) == (
        "data.hf_streaming=true: a stream is read while it trains, and not prepared. Leave it out "
        "to prepare the text."
    )
