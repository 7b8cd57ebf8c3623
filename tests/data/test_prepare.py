"""Prepared data: right the first time, reused, rebuilt when damaged, made once by many."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_helpers import build_section, make_prose

from forge.config.data.text import Text
from forge.config.tokenizers.tokenizer import BPE
from forge.config.tokenizers.tokenizer_files import TokenizerFile
from forge.data.preparing import cached as preparing
from forge.data.preparing.cached import Prepared, prepare_tokens
from forge.data.text import reading

DOCUMENTS = 60


@pytest.fixture
def data(tmp_path: Path) -> Text:
    path = tmp_path / "docs.jsonl"
    lines = (json.dumps({"text": make_prose(4, seed)}) + "\n" for seed in range(DOCUMENTS))
    path.write_text("".join(lines))
    return Text(path=str(path), cache_dir=str(tmp_path / "cache"), val_fraction=0.2)


SECTION = BPE(vocab_size=300)


def entry(data: Text) -> Path:
    (found,) = Path(data.cache_dir or "", "data").glob("[!.]*")
    return found


def prepared_of(data: Text, section: Any = SECTION, **options: Any) -> Prepared:
    return prepare_tokens(data, section, **({"build": build_section} | options))


def decoded(prepared: Prepared, split: str) -> str:
    store = getattr(prepared, split)
    return prepared.tokenizer.decode(store.read(0, len(store)).tolist())


def no_build(section: Any, *, path: str, **runtime: Any) -> Any:
    assert not runtime, "built again"
    return build_section(section, path=path)


def test_stores_hold_every_document_once(data) -> None:
    prepared = prepared_of(data)
    parts = {name: decoded(prepared, name).split("<|endoftext|>") for name in ("train", "val")}
    assert all(part.pop() == "" for part in parts.values())
    written = [make_prose(4, seed) for seed in range(DOCUMENTS)]
    assert sorted(parts["train"] + parts["val"]) == sorted(written)
    assert parts["train"] == [text for text in written if text in parts["train"]]
    for name, documents in parts.items():
        index = getattr(prepared, name).index
        assert index.n_documents == len(documents) > 3
        assert index.n_bytes == sum(len(text.encode()) for text in documents)
    manifest = prepared.manifest
    assert (manifest["source"], manifest["files"]) == (data.path, 1)
    assert manifest["tokenizer"]["fingerprint"] == prepared.tokenizer.fingerprint
    assert manifest["splits"]["val"]["sha256"] == prepared.val.fingerprint
    assert prepared_of(data, build=no_build).manifest == manifest, "read from the cache"


def test_a_cut_document_ends_once_in_each_split(tmp_path) -> None:
    text = make_prose(3000)
    (tmp_path / "one.txt").write_text(text)
    data = Text(path=str(tmp_path / "one.txt"), cache_dir=str(tmp_path / "cache"), val_fraction=0.2)
    prepared = prepared_of(data)
    train, val = decoded(prepared, "train"), decoded(prepared, "val")
    for split in (train, val):
        assert split.endswith("\n<|endoftext|>")
        assert split.count("<|endoftext|>") == 1
    lines = [split.removesuffix("<|endoftext|>").splitlines() for split in (train, val)]
    assert sorted(lines[0] + lines[1]) == sorted(text.splitlines())


def test_batches_of_text_make_no_difference(data, monkeypatch, tmp_path) -> None:
    whole = prepared_of(data)
    monkeypatch.setattr("forge.data.preparing.encode.BATCH_BYTES", 500)
    data.cache_dir = str(tmp_path / "other")
    said: list[tuple[str, float]] = []
    small = prepared_of(data, progress=lambda *each: said.append(each))
    assert small.train.fingerprint == whole.train.fingerprint
    assert small.val.fingerprint == whole.val.fingerprint
    stages, shares = zip(*said, strict=True)
    assert list(dict.fromkeys(stages)) == ["read the corpus", "make the tokenizer", "tokenise"]
    assert list(shares[2:]) == sorted(shares[2:])
    assert len(shares) > 20
    assert shares[-1] == 1.0


def test_each_content_has_its_entry(data, tmp_path) -> None:
    def caches(data: Text, section: Any = SECTION) -> str:
        return prepared_of(data, section).manifest["cache"]

    first = caches(data)
    renamed = tmp_path / "renamed.jsonl"
    os.rename(data.path, renamed)
    data.path = str(renamed)
    assert caches(data) == first
    others = {first, caches(data, BPE(vocab_size=301))}
    data.val_fraction = 0.3
    others.add(caches(data))
    with renamed.open("a") as file:
        file.write('{"text": "one more"}\n')
    others.add(caches(data))
    assert len(others) == 4


def test_a_tokenizer_file_counts_by_content(data, tmp_path) -> None:
    trained = prepared_of(data)
    trained.tokenizer.save(tmp_path / "a")
    trained.tokenizer.save(tmp_path / "b")
    first = prepared_of(data, TokenizerFile(path=str(tmp_path / "a/tokenizer.json")))
    same = prepared_of(data, TokenizerFile(path=str(tmp_path / "b/tokenizer.json")), build=no_build)
    assert first.manifest["cache"] == same.manifest["cache"] != trained.manifest["cache"]
    assert first.train.fingerprint == trained.train.fingerprint
    with pytest.raises(ValueError, match=r"^tokenizer\.path = nowhere: no such file"):
        prepared_of(data, TokenizerFile(path="nowhere"))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    os.truncate(path, 40)


def edit(path: Path) -> None:
    path.write_text(path.read_text().replace("<|endoftext|>", "</s>"))


DAMAGES: list[tuple[str, Callable[[Path], Any], str]] = [
    ("train/00000.bin", flip, "does not have the content that was written"),
    ("val/00000.bin", shorten, "has 40 bytes instead of"),
    ("val/00000.bin", os.remove, "is missing"),
    ("train/index.json", os.remove, "is missing"),
    ("tokenizer/tokenizer.json", flip, "does not have the content that was written"),
    ("manifest.json", shorten, "cannot be read ("),
    ("manifest.json", edit, "does not have the content that was written"),
    ("manifest.json", os.remove, "is missing"),
]


@pytest.mark.parametrize(("name", "damage", "reason"), DAMAGES)
def test_damage_is_found_said_once_and_repaired(data, caplog, name, damage, reason) -> None:
    first = prepared_of(data)
    tokens = first.train.fingerprint
    assert not caplog.records
    damage(entry(data) / name)
    again = prepared_of(data)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= 30]
    what = f"prepared data in {entry(data)} is damaged and is made again"
    assert warning.startswith(f"{what}: {name} {reason}")
    assert again.train.fingerprint == tokens
    again.train.verify()
    caplog.clear()
    prepared_of(data, build=no_build)
    assert not caplog.records
    names = [path.name for path in entry(data).parent.iterdir()]
    assert sorted(names) == [f".{entry(data).name}.lock", entry(data).name]


def test_a_killed_builder_leaves_nothing_in_the_way(data) -> None:
    program = f"""if True:
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from data_helpers import build_section
        from forge.config.data.text import Text
        from forge.config.tokenizers.tokenizer import BPE
        from forge.data.preparing import cached, encode
        encode.BATCH_BYTES = 1000
        def progress(stage, share):
            if stage == "tokenise" and share > 0.5:
                print("half", flush=True)
                time.sleep(60)
        data = Text(path={data.path!r}, cache_dir={data.cache_dir!r}, val_fraction=0.2)
        cached.prepare_tokens(data, BPE(vocab_size=300), build=build_section, progress=progress)
    """
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    folder = Path(data.cache_dir or "", "data")
    assert [path.name for path in folder.iterdir() if "tmp" in path.name], "the child wrote nothing"
    prepared = prepared_of(data)
    prepared.train.verify()
    assert not [path.name for path in folder.iterdir() if "tmp" in path.name]


def _prepare_and_tell(data: Text, results: Any, barrier: Any) -> None:
    built = []

    def build(section: Any, *, path: str, **runtime: Any) -> Any:
        if runtime:
            built.append(section)
            time.sleep(0.3)
        return build_section(section, path=path, **runtime)

    barrier.wait()
    prepared = prepared_of(data, build=build)
    results.put((len(built), prepared.train.fingerprint))


def test_two_processes_at_once_build_once(data) -> None:
    context = multiprocessing.get_context("spawn")
    results, barrier = context.Queue(), context.Barrier(2)
    args = (data, results, barrier)
    children = [context.Process(target=_prepare_and_tell, args=args) for _ in range(2)]
    for child in children:
        child.start()
    got = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert sorted(built for built, _ in got) == [0, 1]
    assert got[0][1] == got[1][1]


def test_messages_about_the_cache(data, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    good, data.cache_dir = data.cache_dir, str(tmp_path / "file")
    hint = "Make room or set data.cache_dir (or $FORGE_CACHE) to a directory you may write to."
    with pytest.raises(ValueError) as caught:
        prepared_of(data)
    what = "cannot write prepared data there (Not a directory)"
    assert str(caught.value) == f"data.cache_dir = {tmp_path}/file: {what}. {hint}"

    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    data.cache_dir = good
    monkeypatch.setattr("forge.data.tokens.shards.ShardWriter.append", full)
    with pytest.raises(ValueError) as caught:
        prepared_of(data)
    what = "cannot write prepared data there (No space left on device)"
    assert str(caught.value) == f"data.cache_dir = {good}: {what}. {hint}"
    assert [path.name[-5:] for path in Path(good or "", "data").iterdir()] == [".lock"]


def test_an_error_elsewhere_is_not_blamed_on_the_cache(data, tmp_path) -> None:
    def failing(section: Any, *, path: str, **runtime: Any) -> Any:
        return open(tmp_path / "of-the-user") if runtime else build_section(section, path=path)

    with pytest.raises(FileNotFoundError):
        prepared_of(data, build=failing)


def test_a_file_that_may_not_be_read_does_not_hide_the_other_bad_ones(
    tmp_path, monkeypatch
) -> None:
    def denied(path: Path) -> Any:
        if path.name == "a.txt":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path)

    opened = reading.open_bytes
    monkeypatch.setattr(reading, "open_bytes", denied)
    monkeypatch.setattr("forge.data.text.fingerprint.hash_file", denied)
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(b"\xff")
    with pytest.raises(ValueError) as caught:
        prepared_of(Text(path=str(tmp_path), cache_dir=str(tmp_path / "cache")))
    assert str(caught.value).splitlines()[:4] == [
        "data.path: 2 of 2 files cannot be read:",
        f"  cannot read {tmp_path}/a.txt (Permission denied)",
        "  -> Check that it is complete and that you may read it.",
        f"  {tmp_path}/b.txt is not UTF-8 text (invalid start byte)",
    ]


def test_where_the_cache_is(data, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FORGE_CACHE", raising=False)
    assert preparing.cache_root(None) == tmp_path / "home" / ".cache" / "forge"
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path / "env"))
    assert preparing.cache_root("here") == Path.cwd() / "here"
    data.cache_dir = None
    cache = prepared_of(data).manifest["cache"]
    assert cache.startswith(str(tmp_path / "env" / "data"))


def test_other_text_is_the_validation_split_and_all_of_the_text_is_trained_on(data, tmp_path):
    (tmp_path / "val.txt").write_text(make_prose(20, 99))
    data.validation = {"path": str(tmp_path / "val.txt")}
    prepared = prepared_of(data)
    assert decoded(prepared, "val") == make_prose(20, 99) + "<|endoftext|>"
    written = {make_prose(4, seed) for seed in range(DOCUMENTS)}
    assert set(decoded(prepared, "train").split("<|endoftext|>")) == written | {""}
    (tmp_path / "val.txt").write_text("")
    with pytest.raises(ValueError, match=r"^data\.validation: data\.path = .*val\.txt: no text"):
        prepared_of(data)


def test_a_run_without_a_validation_split_has_an_empty_one(data):
    data.val_fraction = 0.0
    prepared = prepared_of(data)
    assert len(prepared.val) == 0
    assert decoded(prepared, "train").count("<|endoftext|>") == DOCUMENTS
    assert len(prepared_of(data, build=no_build).val) == 0, "read from the cache"
