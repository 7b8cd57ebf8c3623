"""Token shards of others: their bytes are written here by hand, and read back as they are."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_helpers import build_section

from forge.config.data.text import Shards, Synthetic, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.data.batches.loader import count_samples
from forge.data.preparing.cached import Prepared, prepare_tokens, with_sets
from forge.data.tokens.shards import ShardWriter
from forge.data.tokens.store import TokenStore

IDS = [65, 66, 256, 0, 255, 7, 90, 90, 256, 1]


def megatron(path: Path, lengths: list[int], code: int = 8, **changed: Any) -> None:
    """As Megatron-LM's _IndexWriter writes it: every value spelled out."""
    form = {8: "H", 4: "i", 5: "q"}[code]
    path.write_bytes(struct.pack(f"<{sum(lengths)}{form}", *IDS[: sum(lengths)]))
    size = struct.calcsize(form)
    offsets = changed.get("offsets", [sum(lengths[:n]) * size for n in range(len(lengths))])
    head = b"MMIDIDX\x00\x00" + struct.pack("<Q", changed.get("version", 1)) + bytes([code])
    head += struct.pack("<QQ", len(lengths), len(lengths) + 1)
    head += struct.pack(f"<{len(lengths)}i", *lengths) + struct.pack(f"<{len(lengths)}q", *offsets)
    head += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    path.with_suffix(".idx").write_bytes(head[: changed.get("cut")])


def llm_c(path: Path, ids: list[int], magic: int = 20240520, version: int = 1, n: int = -1) -> None:
    numbers = [magic, version, len(ids) if n < 0 else n] + [0] * 253
    form = "I" if magic == 20240801 else "H"
    path.write_bytes(struct.pack("<256i", *numbers) + struct.pack(f"<{len(ids)}{form}", *ids))


def sidecar(path: Path, ids: list[int], name: str) -> None:
    path.write_bytes(struct.pack(f"<{len(ids)}I", *ids))
    path.with_name(name).write_text('{"dtype": "uint32"}')


def of_forge(path: Path, ids: list[int]) -> None:
    writer = ShardWriter(path.parent / "d", vocab_size=300, shard_tokens=4)
    writer.append(np.array(ids))
    writer.close(n_bytes=1, n_documents=1)


KINDS: dict[str, tuple[Any, dict[str, str]]] = {
    "numpy_u2.npy": (lambda path: np.save(path, np.array(IDS, "uint16")), {}),
    "numpy_i8.npy": (lambda path: np.save(path, np.array(IDS, "int64")), {}),
    "big_endian.npy": (lambda path: np.save(path, np.array(IDS, ">i4")), {}),
    "gpt2.bin": (lambda path: llm_c(path, IDS), {}),
    "llama3.bin": (lambda path: llm_c(path, IDS, magic=20240801, version=7), {}),
    "mega.bin": (lambda path: megatron(path, [3, 5, 2]), {}),
    "mega_i4.bin": (lambda path: megatron(path, [3, 5, 2], code=4), {}),
    "beside.bin": (lambda path: sidecar(path, IDS, "beside.bin.json"), {}),
    "stem.bin": (lambda path: sidecar(path, IDS, "stem.json"), {}),
    "olmo.npy": (lambda path: path.write_bytes(struct.pack("<10I", *IDS)), {"dtype": "uint32"}),
    "bare.bin": (lambda path: path.write_bytes(struct.pack("<10H", *IDS)), {"dtype": "uint16"}),
    "raw.tok": (
        lambda path: path.write_bytes(struct.pack("<10i", *IDS)),
        {"dtype": "int32", "file_pattern": "*.tok"},
    ),
}


def opened(path: Path | str, section: Any = None, **options: Any) -> Prepared:
    return prepare_tokens(
        Shards(**({"path": str(path), "val_fraction": 0.2} | options)),
        section or Bytes(),
        build=build_section,
    )


def all_of(prepared: Prepared) -> list[int]:
    return [*ids(prepared.train), *ids(prepared.val)]


def ids(store: TokenStore) -> list[int]:
    return store.read(0, len(store)).tolist()


def refusal(path: Path | str, section: Any = None, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        opened(path, section, **options)
    return str(caught.value).replace(str(path), "DIR")


@pytest.mark.parametrize("name", KINDS)
def test_every_layout_is_read_in_place(tmp_path: Path, name: str) -> None:
    write, options = KINDS[name]
    write(tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    prepared = opened(tmp_path, **options)
    assert all_of(prepared) == IDS
    assert (ids(prepared.train), ids(prepared.val)) == (IDS[:8], IDS[8:])
    assert ids(opened(tmp_path / name, **options).val) == IDS[8:], "the file itself"
    again = pickle.loads(pickle.dumps(prepared.train))
    assert again.read(2, 5).tolist() == IDS[2:5]
    assert again.fingerprint == prepared.train.fingerprint
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}, "nothing is written"


def test_files_follow_each_other_by_name_and_all_kinds_together(tmp_path: Path) -> None:
    llm_c(tmp_path / "b.bin", [4, 5, 6])
    np.save(tmp_path / "a.npy", np.array([1, 2, 3], "uint32"))
    sidecar(tmp_path / "c.bin", [7, 8, 9, 10], "c.json")
    (tmp_path / "README.md").write_text("what these are")
    prepared = opened(tmp_path)
    assert all_of(prepared) == list(range(1, 11))
    for start in range(8):
        for stop in range(start + 1, 9):
            assert prepared.train.read(start, stop).tolist() == list(range(start + 1, stop + 1))
    assert prepared.manifest["files"] == 3
    assert all_of(opened(tmp_path, file_pattern="[ab].*")) == list(range(1, 7))


def test_what_forge_wrote_is_read_by_its_index(tmp_path: Path) -> None:
    of_forge(tmp_path / "x", IDS)
    assert all_of(opened(tmp_path / "d")) == IDS
    assert all_of(opened(tmp_path / "d", file_pattern="0000[01].bin")) == IDS[:8]
    assert all_of(opened(tmp_path / "d", dtype="uint16")) == IDS
    assert refusal(tmp_path / "d", dtype="int32") == (
        "data.path: DIR has tokens of uint16, and data.dtype=int32. "
        "Leave data.dtype out: its index.json says it."
    )
    (tmp_path / "d" / "00001.bin").write_bytes(b"abc")
    said = "data.path = DIR: d/00001.bin has 3 bytes instead of 8. Prepare it again."
    assert refusal(tmp_path / "d") == said
    said = refusal(tmp_path / "d", file_pattern="00001.bin")
    assert said == (
        "data.path: DIR/00001.bin has 3 bytes, which are not whole tokens of uint16. "
        "Write or copy it again."
    )
    os_truncated = (tmp_path / "d" / "00000.bin").read_bytes()[:4]
    (tmp_path / "d" / "00000.bin").write_bytes(os_truncated)
    said = "data.path: DIR/00000.bin has 4 bytes instead of the 8 of 4 tokens. "
    assert refusal(tmp_path / "d", file_pattern="00000.bin") == said + "Write or copy it again."


AGAIN = "Write or copy it again."
REFUSED: dict[str, tuple[Any, dict[str, str], str]] = {
    "x.bin": (
        lambda path: path.write_bytes(b"\1\0" * 10),
        {},
        "does not say what type its tokens have, nor does a file beside. "
        'Say it: data.dtype=uint16, or {"dtype": "uint16"} in x.bin.json.',
    ),
    "olmo.npy": (
        lambda path: path.write_bytes(b"\1\0" * 10),
        {},
        "does not say what type its tokens have, nor does a file beside. "
        'Say it: data.dtype=uint16, or {"dtype": "uint16"} in olmo.npy.json.',
    ),
    "odd.bin": (
        lambda path: path.write_bytes(b"123"),
        {"dtype": "uint16"},
        f"has 3 bytes, which are not whole tokens of uint16. {AGAIN}",
    ),
    "empty.bin": (lambda path: path.touch(), {}, "is empty. Leave it out, or write it again."),
    "torn.npy": (
        lambda path: (np.save(path, np.arange(99)), path.write_bytes(path.read_bytes()[:200])),
        {},
        f"has 200 bytes instead of the 920 of 99 tokens. {AGAIN}",
    ),
    "torn_head.npy": (
        lambda path: (np.save(path, np.arange(99)), path.write_bytes(path.read_bytes()[:20])),
        {},
        "has a broken NumPy header (EOF: reading array header, expected 118 bytes got 10). "
        + AGAIN,
    ),
    "floats.npy": (
        lambda path: np.save(path, np.ones(9, "float32")),
        {},
        "is an array [9] of float32, and tokens are one row of integers. "
        "Save np.concatenate of the rows, as uint16 or uint32.",
    ),
    "rows.npy": (
        lambda path: np.save(path, np.ones((3, 3), "uint16")),
        {},
        "is an array [3, 3] of uint16, and tokens are one row of integers. "
        "Save np.concatenate of the rows, as uint16 or uint32.",
    ),
    "other.npy": (
        lambda path: np.save(path, np.ones(9, "uint32")),
        {"dtype": "uint16"},
        "has tokens of uint32, and data.dtype=uint16. "
        "Leave data.dtype out: the file, or one beside it, says it.",
    ),
    "torn_llm_c.bin": (
        lambda path: llm_c(path, IDS, n=11),
        {},
        f"has 1,044 bytes instead of the 1,046 of 11 tokens. {AGAIN}",
    ),
    "newer_llm_c.bin": (
        lambda path: llm_c(path, IDS, version=3),
        {},
        "has the header of an llm.c file, 20240520, but its version is 3. "
        "Write it with llm.c's write_datafile.",
    ),
    "none.bin": (
        lambda path: llm_c(path, []),
        {},
        "has no tokens. Leave it out, or write it again.",
    ),
    "torn_mega.bin": (
        lambda path: (megatron(path, [3, 5, 2]), path.write_bytes(b"\1\0" * 9)),
        {},
        f"has 18 bytes instead of the 20 of 10 tokens. {AGAIN}",
    ),
    "sidecar.bin": (
        lambda path: (
            path.write_bytes(b"\1\0"),
            path.with_name("sidecar.json").write_text('{"dtype": "float16"}'),
        ),
        {},
        "says dtype 'float16', and tokens are integers. Correct it.",
    ),
}
INDEXES: dict[str, tuple[dict[str, Any], str]] = {
    "cut": ({"cut": 60}, f"ends before its 3 sequences do. {AGAIN}"),
    "no_index": (
        {"cut": 5},
        "is no index of Megatron's memory-mapped kind. Leave it and its .bin out.",
    ),
    "version": (
        {"version": 2},
        "has version 2 and type 8, and tokens are integers of version 1. "
        "Preprocess the text again.",
    ),
    "gaps": (
        {"offsets": [0, 8, 16]},
        "has sequences that do not follow each other in the .bin. Merge or preprocess it again.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_shard_is_one_clear_error(tmp_path: Path, name: str) -> None:
    write, options, said = REFUSED[name]
    write(tmp_path / name)
    shown = name if name != "sidecar.bin" else "sidecar.json"
    assert refusal(tmp_path, **options) == f"data.path: DIR/{shown} {said}"


@pytest.mark.parametrize("name", INDEXES)
def test_a_bad_index_of_megatron_is_one_clear_error(tmp_path: Path, name: str) -> None:
    changed, said = INDEXES[name]
    megatron(tmp_path / "x.bin", [3, 5, 2], **changed)
    assert refusal(tmp_path) == f"data.path: DIR/x.idx {said}"


def test_no_shards_too_few_tokens_and_shorter_than_a_sample(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        "data.path = DIR: no shards in it that match *.npy or *.bin. Give a directory of token "
        "shards, and with data.file_pattern what they are called."
    )
    np.save(tmp_path / "a.npy", np.arange(3))
    said = "data.path = DIR: 3 tokens are too few to hold some out for validation."
    assert refusal(tmp_path) == f"{said} Give more shards."
    np.save(tmp_path / "a.npy", np.arange(20))
    with pytest.raises(ValueError, match=r"train.seq_len = 64: the training split has 16 tokens"):
        count_samples(opened(tmp_path).train, 64)


def test_ids_that_the_tokenizer_does_not_have(tmp_path: Path) -> None:
    """Also those that no sample of a large shard shows, once they are read."""
    fix = "Choose the tokenizer that the shards were made with; and check data.dtype."
    what = "has the token {}, and the tokenizer has ids from 0 to 256."
    np.save(tmp_path / "a.npy", np.array([1, 257] * 5, "uint16"))
    assert refusal(tmp_path) == f"data.path: DIR/a.npy {what.format(257)} {fix}"
    np.save(tmp_path / "a.npy", np.array([1, -1] * 5, "int32"))
    assert refusal(tmp_path) == f"data.path: DIR/a.npy {what.format(-1)} {fix}"
    large = np.zeros(40_000_000, "uint16")
    large[1_000_003] = 300
    np.save(tmp_path / "a.npy", large)
    train = opened(tmp_path).train
    assert train.read(1_000_004, 1_000_040).max() == 0
    with pytest.raises(ValueError, match=rf"data.path: {tmp_path} {what.format(300)} {fix}"):
        train.read(1_000_000, 1_000_040)


def test_a_set_of_shards_is_evaluated_whole(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(IDS, "uint16"))
    prepared = opened(tmp_path)
    more = {"other": Shards(path=str(tmp_path), val_fraction=1)}
    assert ids(with_sets(prepared, more, build=build_section, progress=print).sets["other"]) == IDS


def test_a_tokenizer_that_learns_has_nothing_to_learn_from(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(IDS, "uint16"))
    assert refusal(tmp_path, BPE()) == (
        "tokenizer: it is trained on text, and data holds tokens. Name the one that they are of: "
        "tokenizer=file tokenizer.path=my/tokenizer.json."
    )


def test_a_cache_entry_is_read_with_its_own_tokenizer_alone(tmp_path: Path) -> None:
    """Its layout is that of forge.prepare: splits, an index each, the tokenizer."""
    (tmp_path / "text").mkdir()
    for number in range(60):
        (tmp_path / "text" / f"{number}.txt").write_text(f"document {number} " * 20)
    data = Text(path=str(tmp_path / "text"), cache_dir=str(tmp_path / "cache"), val_fraction=0.2)
    made = prepare_tokens(data, BPE(vocab_size=300), build=build_section)
    entry = Path(made.manifest["cache"])
    own = TokenizerFile(path=str(entry / "tokenizer" / "tokenizer.json"))
    read = opened(entry, own)
    assert ids(read.train) == ids(made.train)
    assert ids(read.val) == ids(made.val)
    assert read.manifest["splits"]["train"]["sha256"] == made.train.fingerprint
    whole = prepare_tokens(Shards(path=f"{entry}/val", val_fraction=1), own, build=build_section)
    assert ids(whole.val) == ids(made.val)
    assert refusal(entry) == (
        "data.path = DIR/train: these shards were made with another tokenizer. Choose theirs: "
        "tokenizer=file tokenizer.path=DIR/tokenizer."
    )
    assert refusal(entry, own, val_fraction=1) == (
        "data.path = DIR: it has the splits of forge.prepare. Name one of them, DIR/val."
    )
    index = json.loads((entry / "train" / "index.json").read_text())
    assert index["n_tokens"] == len(read.train)


def test_random_tokens_are_a_function_of_seed_and_place() -> None:
    def made(**options: Any) -> TokenStore:
        section = Synthetic(**({"tokens": 1 << 40, "val_fraction": 0.5} | options))
        return prepare_tokens(section, Bytes(), build=build_section).train

    store = made()
    assert len(store) == 1 << 39
    whole = store.read(0, 3 * 4096 + 5)
    for start, stop in ((0, 1), (4095, 4097), (4096, 8192), (100, 12_000)):
        assert store.read(start, stop).tolist() == whole[start:stop].tolist()
    drawn = np.random.Generator(np.random.Philox(key=[0, 2])).integers(0, 257, 4096, dtype="uint32")
    assert whole[8192:12288].tolist() == drawn.tolist()
    counts = np.bincount(store.read(1 << 38, (1 << 38) + 257 * 1000), minlength=257)
    assert len(counts) == 257
    assert abs(counts - 1000).max() < 6 * 1000**0.5
    assert made(seed=1).read(0, 99).tolist() != whole[:99].tolist()
    assert made(seed=1).fingerprint != store.fingerprint == made().fingerprint
