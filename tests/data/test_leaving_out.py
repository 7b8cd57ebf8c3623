"""Near-duplicates and repetition: by brute force, the same bytes however it came about, counted."""

from __future__ import annotations

import random
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import files, make_prose, shards_of, tokens, written

from forge import prepare as verb
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.data.preparing import shard_folder as preparation
from forge.data.preparing.minhash import FUNCTIONS, bands_of, near_duplicates, signatures
from forge.data.preparing.repetition import repetitive
from forge.data.preparing.soundness import find_damage


def jaccard(one: str, other: str) -> float:
    """Of their runs of five words, by sets of tuples."""
    sets = []
    for text in (one, other):
        words = re.findall(r"\w+", text.lower())
        sets.append({tuple(words[at : at + 5]) for at in range(max(len(words) - 4, 1))})
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def words(count: int, draw: random.Random) -> list[str]:
    return [f"w{draw.randrange(10_000)}" for _ in range(count)]


def edited(text: list[str], changes: int, draw: random.Random) -> list[str]:
    changed = list(text)
    for place in draw.sample(range(len(text)), changes):
        changed[place] = f"x{draw.randrange(10_000)}"
    return changed


def test_values_in_common_estimate_what_is_in_common() -> None:
    draw = random.Random(1)
    differences = []
    for changes in (0, 2, 5, 10, 20, 40):
        for _ in range(20):
            one = words(300, draw)
            texts = [" ".join(one), " ".join(edited(one, changes, draw)).upper()]
            exact = jaccard(*texts)
            found = signatures(texts)
            differences.append((found[0] == found[1]).mean() - exact)
            assert abs(differences[-1]) <= 4.5 * (exact * (1 - exact) / FUNCTIONS) ** 0.5
    assert abs(np.mean(differences)) < 0.01


@pytest.mark.parametrize("threshold", [0.5, 0.75, 0.9])
def test_those_left_out_are_those_of_brute_force(threshold: float) -> None:
    """Of texts of which no pair is near the threshold, in parts of any size."""
    draw = random.Random(2)
    few, many = int(10 * (1 - threshold)), int(130 * (1 - threshold)) + 30
    texts = [" ".join(words(200, draw)) for _ in range(40)]
    for _ in range(120):
        from_one = draw.choice(texts).split()
        texts.append(" ".join(edited(from_one, draw.choice([few, many]), draw)))
    texts += ["", " \n", "one", "one", "!!!", "!!!", "日本語の文章です", "日本語の文章です"]
    draw.shuffle(texts)
    alike = {pair: jaccard(texts[pair[0]], texts[pair[1]]) for pair in combinations(range(168), 2)}
    kept: list[int] = []
    for number, text in enumerate(texts):
        similar = (alike[other, number] >= threshold for other in kept if texts[other].strip())
        if not text.strip() or not any(similar):
            kept.append(number)
    clear = [abs(value - threshold) > 0.12 or value == 1 for value in alike.values()]
    assert np.mean(clear) > 0.99
    expected = np.ones(len(texts), dtype=bool)
    expected[kept] = False
    made = signatures(texts)
    found = near_duplicates([made], threshold)
    doubtful = {b for (a, b), value in alike.items() if 0 < abs(value - threshold) <= 0.12}
    assert {*np.flatnonzero(found != expected)} <= doubtful
    assert expected.sum() > 20
    cut = near_duplicates([made[:7], made[7:8], made[8:]], threshold)
    assert np.array_equal(cut, found)


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.8, 0.95, 1.0])
def test_bands_find_what_is_alike(threshold: float) -> None:
    bands, rows = bands_of(threshold)
    assert bands * rows <= FUNCTIONS
    assert 1 - (1 - threshold**rows) ** bands >= 0.99
    if rows < FUNCTIONS:
        others = FUNCTIONS // (rows + 1)
        assert 1 - (1 - threshold ** (rows + 1)) ** others < 0.99, "no more candidates than needed"


def runs(tokens: list[int]) -> bool:
    """Whether any n-gram of at most 13 tokens comes 32 times in a row."""
    return any(
        tokens[at : at + n] * 32 == tokens[at : at + 32 * n]
        for n in range(1, 14)
        for at in range(len(tokens) - 32 * n + 1)
    )


def test_repetition_is_that_of_brute_force() -> None:
    draw = random.Random(3)
    documents = []
    for _ in range(120):
        n, times = draw.randint(1, 15), draw.choice([3, 31, 32, 33, 40])
        ngram = [draw.randrange(50) for _ in range(n)]
        around = [[draw.randrange(50) for _ in range(draw.randrange(30))] for _ in range(2)]
        documents.append([*around[0], *ngram * times, *ngram[: draw.randrange(n)], *around[1]])
    documents += [[], [7] * 20, [7] * 20, [7] * 31, [7] * 32, [8, 9] * 16, [8, 9] * 16, [1]]
    ends = np.cumsum([len(each) for each in documents])
    found = repetitive(np.concatenate([np.array(each, np.uint32) for each in documents]), ends)
    assert found.tolist() == [runs(each) for each in documents]
    assert 20 < found.sum() < 100


DOCUMENTS = [make_prose(4, seed) for seed in range(60)]
NEAR = [f"{DOCUMENTS[3]} and a little more", DOCUMENTS[11].upper()]
LOOPS = ["ab " * 40 + make_prose(2, 77), make_prose(2, 78) + "=" * 32]
TEXTS = [*DOCUMENTS[:20], NEAR[0], LOOPS[0], *DOCUMENTS[20:], NEAR[1], "", LOOPS[1]]
TEXTS += [DOCUMENTS[5], make_prose(900, 99), "=" * 31]
ALL: dict[str, Any] = {"minhash": 0.6, "repetition_filter": True}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "LEAST_PART", 1 << 10)
    monkeypatch.setattr(preparation, "SIGNED_AT_ONCE", 1 << 12)


def made(out: Path, data: Any, section: Any = None, **options: Any) -> dict[str, Any]:
    return shards_of(out, data, section or Bytes(), **options)


def test_what_is_left_is_what_a_text_without_it_gives(tmp_path: Path) -> None:
    data = written(tmp_path / "x.jsonl", TEXTS)
    manifest = made(tmp_path / "out", data, deduplicate=True, **ALL)
    out = [*NEAR, *LOOPS, DOCUMENTS[5]]
    kept = [text for number, text in enumerate(TEXTS) if text not in out or number == 5]
    assert len(kept) == len(TEXTS) - 5
    read = manifest["read"]
    assert read == {
        "documents": len(TEXTS),
        "empty": 1,
        "duplicates": 1,
        "duplicate_bytes": len(DOCUMENTS[5]),
        "near_duplicates": 2,
        "near_duplicate_bytes": sum(map(len, NEAR)),
        "repetitive": 2,
        "repetitive_bytes": sum(map(len, LOOPS)),
        "files_without_text": 0,
    }
    assert find_damage(tmp_path / "out") == []
    seen = []
    for split in ("train", "val"):
        ids = np.array(tokens(tmp_path / "out", split))
        ends = np.flatnonzero(ids == 256)
        starts = [0, *(ends[:-1] + 1)]
        texts = [bytes(ids[a:b].tolist()).decode() for a, b in zip(starts, ends, strict=True)]
        whole = [text for text in texts if text in kept]
        assert whole == [text for text in kept if text in whole], "in order"
        assert len(whole) >= len(texts) - 1, "the long one is divided"
        seen += whole
    assert {*kept} - {*seen} == {"", make_prose(900, 99)}


def test_the_same_bytes_with_any_number_of_processes(tmp_path: Path) -> None:
    data, section = written(tmp_path / "x.jsonl", TEXTS), BPE(vocab_size=300)
    made(tmp_path / "one", data, section, **ALL)
    made(tmp_path / "two", data, section, **ALL, processes=2)
    assert files(tmp_path / "one") == files(tmp_path / "two")


@pytest.mark.parametrize(("name", "at"), [("sign", 4), ("encode_part", 5), ("_gather", 2)])
def test_what_was_made_before_an_end_is_gone_on_with(
    tmp_path: Path, name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path / "x.jsonl", TEXTS)
    made(tmp_path / "undisturbed", data, **ALL)
    real, calls = getattr(preparation, name), []

    def ending(*given: Any, **options: Any) -> Any:
        calls.append(given)
        if len(calls) == at:
            raise KeyboardInterrupt
        return real(*given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(preparation, name, ending)
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "out", data, **ALL)
    signed = sorted((tmp_path / "out/.parts/signatures").glob("0*.npy"))
    before = [path.stat().st_mtime_ns for path in signed]
    if name == "sign":
        assert len(signed) == at - 1
        monkeypatch.setattr(preparation, "sign", ending)
    made(tmp_path / "out", data, **ALL)
    assert files(tmp_path / "out") == files(tmp_path / "undisturbed")
    assert len(before) >= at - 1 or name != "sign"
    if name == "sign":
        numbers = [number for _, number, _ in calls]
        assert numbers == list(range(at)) + list(range(at - 1, len(numbers) - 1))


def test_the_verb_says_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = written(tmp_path / "x.jsonl", TEXTS)
    command = [str(tmp_path / "out"), "--processes", "1", "data=text", f"data.path={data.path}"]
    command += [f"data.cache_dir={data.cache_dir}", "tokenizer=bytes", "run.device=cpu"]
    for share in ("0", "1.5", "-1"):
        assert verb.main([*command, f"--minhash={share}"]) == 2
        said = capsys.readouterr().err
        assert "documents are alike from 0, in nothing, to 1, in all." in said
    assert verb.main([*command, "--minhash", "0.6", "--repetition-filter"]) == 0
    shown = capsys.readouterr()
    size = len(DOCUMENTS[5]) + sum(map(len, NEAR))
    said = f"1 empty document, 3 documents like an earlier one ({size:,} bytes), "
    said += f"2 documents that repeat themselves ({sum(map(len, LOOPS)):,} bytes)"
    assert f"  left out: {said}\n" in shown.out
    assert "compare documents" in shown.err
    assert verb.main(command) == 2
    said = f"{tmp_path}/out: it was made with another minhash, repetition_filter. Remove it"
    assert said in capsys.readouterr().err
