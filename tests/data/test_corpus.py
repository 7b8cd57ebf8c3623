"""Which files are read and how; every message about a corpus that cannot be."""

from __future__ import annotations

import gzip
import json
import re
import sysconfig
from pathlib import Path
from typing import Any

import pandas
import pyarrow
import pytest

from forge.config.data.text import HeldOut, PythonSource, Text
from forge.data.text import fingerprint as fingerprinting
from forge.data.text.corpus import Corpus, python_source, text_files
from forge.data.text.split import split_corpus


def texts(corpus: Corpus) -> list[str]:
    return ["".join(document) for document in corpus.documents()]


def read(path: Path | str, **options: str) -> list[str]:
    return texts(text_files(Text(path=str(path), **options)))


def refusal(path: Path | str) -> str:
    with pytest.raises(ValueError) as caught:
        read(path)
    return str(caught.value)


def test_python_source_is_the_library_without_tests() -> None:
    corpus, root = python_source(PythonSource()), Path(sysconfig.get_paths()["stdlib"])
    names = [path.relative_to(root).as_posix() for path in corpus.files]
    assert {"ast.py", "json/decoder.py", "asyncio/tasks.py"} <= set(names)
    left_out = r"(test|idlelib|lib2to3|site-packages)/|.*(__pycache__|/tests/)"
    assert not [name for name in names if re.match(left_out, name)]
    assert len(names) == len(set(names)) > 400
    assert texts(corpus)[0] == corpus.files[0].read_bytes().decode()
    by_folder: dict[Path, list[str]] = {}
    for path in corpus.files:
        by_folder.setdefault(path.parent, []).append(path.name)
    assert all(inside == sorted(inside) for inside in by_folder.values())


def test_python_files_are_read_in_the_encoding_they_declare(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(ValueError) as caught:
        python_source(PythonSource())
    assert str(caught.value) == (
        f"data: no Python source under {tmp_path}; this Python ships without it. "
        "Use data=text data.path=... with text of your own."
    )
    (tmp_path / "a.py").write_bytes("# coding: latin-1\nname = 'é'\n".encode("latin-1"))
    (tmp_path / "b.py").write_bytes(b"broken = '\xff'\n")
    (tmp_path / "c.py").write_bytes(b"# coding: klingon\n")
    (tmp_path / "d.py").write_text("x = 'ü'\n", encoding="utf-8")
    assert texts(python_source(PythonSource())) == ["# coding: latin-1\nname = 'é'\n", "x = 'ü'\n"]


def test_one_file_a_directory_and_globs(tmp_path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    below = ["sub/c.txt", "sub/deep/d.txt"]
    for name in ("b.txt", "a.md", *below, ".hidden", ".git/config", "a[1].txt"):
        (tmp_path / name).write_text(name)
    assert read(tmp_path / "b.txt") == ["b.txt"]
    assert read(tmp_path) == ["a.md", "a[1].txt", "b.txt", *below]
    assert read(tmp_path / "*.txt") == ["a[1].txt", "b.txt"]
    assert read(tmp_path / "**" / "*.txt") == ["a[1].txt", "b.txt", *below]
    assert read(tmp_path / "a[1].txt") == ["a[1].txt"], "first a name, then a glob"


ROWS = [
    {"id": 1, "body": 'first\nline, with "quotes"'},
    {"id": 2, "body": "zweite ü 𝄞 [1]\t}"},
    {"id": 3, "body": "x" * 200_000},
]
KINDS = "x.csv x.tsv x.csv.gz x.parquet array.json array.json.gz lines.json x.ndjson x.jsonl.gz "
KINDS += "x.csv.zst array.json.zst x.jsonl.zst"


def zstd(content: bytes) -> bytes:
    """Two frames, as tools that pack in parallel write them."""
    half = len(content) // 2
    frames = (pyarrow.compress(part, "zstd") for part in (content[:half], content[half:]))
    return b"".join(frame.to_pybytes() for frame in frames)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """A file of the kind that its name says, by the libraries that people write such files with."""
    if path.suffix == ".zst":
        write_rows(plain := path.with_suffix(""), rows)
        path.write_bytes(zstd(plain.read_bytes()))
        plain.unlink()
        return
    frame, name = pandas.DataFrame(rows), path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        frame.to_parquet(path, row_group_size=2)
    elif name.endswith((".csv", ".tsv")):
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    else:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        text = json.dumps(rows, indent=1) if name.startswith("array") else lines
        (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8-sig").write(text)


@pytest.mark.parametrize("block", [7, 1 << 20])
@pytest.mark.parametrize("name", KINDS.split())
def test_files_of_rows(tmp_path, name, block, monkeypatch) -> None:
    monkeypatch.setattr("forge.data.text.reading.BLOCK_BYTES", block)
    monkeypatch.setattr("forge.data.text.rows.ROWS_AT_ONCE", 2)
    rows = ROWS if block > 7 else ROWS[:2]
    write_rows(tmp_path / name, rows)
    assert read(tmp_path / name, text_field="body") == [row["body"] for row in rows]
    assert " has no field 'text' (its fields: id, body). Name the one" in refusal(tmp_path / name)


def test_a_json_array_of_texts_and_other_json(tmp_path) -> None:
    """A single object is a row; none is trained on as raw text."""
    (tmp_path / "a.json").write_text('\n[ "one", "two\\u00fc" ,\n"three"]\n')
    (tmp_path / "b.json").write_text('{"text": "x",\n "list": [1]}\n')
    (tmp_path / "c.json").write_text('{"text": "y"}\n')
    assert read(tmp_path) == ["one", "twoü", "three", "x", "y"]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_columns_that_something_else_than_commas_separates(tmp_path, mark) -> None:
    rows = f'id{mark}"text"\r\n1{mark}"a, b\nc"\r\n2{mark}d\r\n'
    (tmp_path / "x.csv").write_text(rows, newline="")
    assert read(tmp_path / "x.csv") == ["a, b\nc", "d"]


BAD = {
    "a.txt": b"abc\xffdef",
    "b.txt": "abc€".encode()[:-1],
    "c.txt.gz": gzip.compress(b"some text, " * 1000)[:-20],
    "d.txt.gz": b"not packed",
    "e.png": b"\x89PNG\0",
    "f.tar.gz": b"\x1f\x8b",
    "g.jsonl.xz": b"\x28\xb5",
    "g1.txt.zst": zstd(b"some text, " * 1000)[:-3],
    "g2.txt.zst": b"not packed",
    "h1.json": b'["a", 3]',
    "h2.json": b'[{"text": "a"}, {"text": null}]',
    "h3.json": b'["a", nope, "' + b"b" * 50 + b'"]',
    "h4.json": b'["a", "b',
    "h5.json": b'["a", "b"',
    "h6.json": b'["\xff"]',
    "h7.json": b'{"a": 1',
    "h8.json": b'{"data": [{"text": "z"}]}\n',
    "i1.csv": b"text,n\na,1\n\xff,2\n",
    "i2.csv": b"n,text\n1,a\n2\n",
    "i3.csv": b'text\n"a\n',
    "j1.jsonl": b'{"text": "fine"}\n\n{"text": "a"\n',
    "j2.jsonl": b'["a"]',
    "j3.jsonl": b'{"body": 1, "id": 2}',
    "j4.jsonl": b'{"text": 3}',
    "j5.jsonl": b'{"text": "\xff"}',
    "j6.jsonl": b'{"text": "a\\ud800"}',
    "k.parquet.gz": b"",
    "k.parquet.zst": b"",
    "l.txt": b"\xff",
}
SCREEN = """\
data.path: 29 of 30 files cannot be read:
  DIR/a.txt is not UTF-8 text (invalid start byte)
  DIR/b.txt is not UTF-8 text (unexpected end of data)
  DIR/h6.json is not UTF-8 text (invalid start byte)
  DIR/i1.csv is not UTF-8 text (invalid start byte)
  DIR/j5.jsonl line 1 is not UTF-8 text (invalid start byte)
  DIR/j6.jsonl line 1 is not UTF-8 text (surrogates not allowed)
  -> Convert it (iconv -t utf-8), or leave it out of data.path (a glob such as 'texts/*.txt' \
takes a part of a folder).
  cannot read DIR/c.txt.gz (Compressed file ended before the end-of-stream marker was reached)
  cannot read DIR/d.txt.gz (Not a gzipped file (b'no'))
  cannot read DIR/g1.txt.zst (Truncated compressed stream)
  cannot read DIR/g2.txt.zst (ZSTD decompress failed: Unknown frame descriptor)
  -> Check that it is complete and that you may read it.
  DIR/e.png is not text (it has NUL bytes)
  -> Leave it out of data.path (a glob such as 'texts/*.txt' takes a part of a folder).
  DIR/f.tar.gz is packed in a way that is not read here
  DIR/g.jsonl.xz is packed in a way that is not read here
  -> Unpack it, or pack it with gzip or zstd.
  DIR/h1.json element 2 is int, not text
  -> An element is a text, or an object with a field that holds it.
  DIR/h2.json element 2: field 'text' is null, not text
  DIR/j4.jsonl line 1: field 'text' is int, not text
  -> Choose another with data.text_field.
  DIR/h3.json element 2 is not JSON (Expecting value)
  DIR/h4.json element 2 is not JSON (Unterminated string starting at)
  DIR/h5.json element 2 is not JSON (it ends before the array does)
  -> Mend the file, and check that it is complete.
  DIR/h7.json is not JSON (Expecting ',' delimiter at line 1 column 8)
  -> Mend the file: a .json has an array, an object, or an object a line.
  DIR/h8.json element 1 has no field 'text' (its fields: data)
  DIR/j3.jsonl line 1 has no field 'text' (its fields: body, id)
  -> Name the one that holds the text with data.text_field.
  DIR/i2.csv line 3 ends before its field 'text'
  -> Mend the file.
  DIR/i3.csv line 2 is no row of a table (unexpected end of data)
  -> Mend the file; a text with quotes or line ends is in quotes, and its own are doubled.
  DIR/j1.jsonl line 3 is not JSON (Expecting ',' delimiter at column 13)
  -> Every line must be one JSON object.
  DIR/j2.jsonl line 1 is not a JSON object
  -> Every line must look like {"text": ...}.
  DIR/k.parquet.gz is Parquet inside of gzip
  -> Unpack it (gunzip); Parquet is packed by itself.
  DIR/k.parquet.zst is Parquet inside of zstd
  -> Unpack it (unzstd); Parquet is packed by itself.
  ... and 1 more
"""


def test_all_bad_files_are_named_at_once(tmp_path, monkeypatch) -> None:
    """Those with the same advice together."""
    monkeypatch.setattr("forge.data.text.reading.SHOWN", len(BAD) - 1)
    for name, content in {"fine.txt": b"fine", **BAD}.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as caught:
        split_corpus(text_files(Text(path=str(tmp_path))), HeldOut(0.1))
    assert str(caught.value).replace(str(tmp_path), "DIR") == SCREEN.rstrip()


def test_message_about_broken_parquet(tmp_path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and no more")
    what = rf"data.path: cannot read {path} \(Parquet magic bytes.*\)\. Check that it is complete\."
    assert re.fullmatch(what, refusal(path), re.DOTALL)
    pandas.DataFrame({"text": [1, 2]}).to_parquet(path)
    assert refusal(path).startswith(f"data.path: {path} row 1: field 'text' is int, not text.")


def test_text_is_read_in_blocks_and_comes_back_whole(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("forge.data.text.reading.BLOCK_BYTES", 3)
    (tmp_path / "x.txt").write_bytes("\ufeffäöü€𝄞 and\r\nmore".encode())
    (document,) = text_files(Text(path=str(tmp_path / "x.txt"))).documents()
    blocks = list(document)
    assert len(blocks) > 5
    assert "".join(blocks) == "äöü€𝄞 and\r\nmore"


def test_fingerprint_follows_content_not_names(tmp_path) -> None:
    for name in ("a.txt", "b.txt", "c.txt", "c.jsonl"):
        (tmp_path / name).write_text("two" if name.startswith("c") else "one")

    def of(name: str, **options: str) -> str:
        return text_files(Text(path=str(tmp_path / name), **options)).fingerprint()

    assert of("a.txt") == of("b.txt")
    other = {of("c.txt"), of("c.jsonl"), of("a.txt", text_field="body"), of("*.txt")}
    assert len(other | {of("a.txt")}) == 5


def test_fingerprint_of_a_large_corpus_is_remembered(tmp_path, monkeypatch) -> None:
    path, memo = tmp_path / "a.txt", tmp_path / "memo"
    path.write_text("one")
    corpus = text_files(Text(path=str(path)))
    monkeypatch.setattr(fingerprinting, "MEMO_FROM_BYTES", 1)
    expected = corpus.fingerprint()
    assert corpus.fingerprint(memo) == expected
    assert not memo.exists(), "the file is too fresh to be trusted by its time stamp"
    monkeypatch.setattr(fingerprinting, "SETTLED_SECONDS", 0.0)
    assert corpus.fingerprint(memo) == expected
    monkeypatch.setattr(fingerprinting, "hash_file", lambda path: pytest.fail("hashed again"))
    assert corpus.fingerprint(memo) == expected
    monkeypatch.undo()
    monkeypatch.setattr(fingerprinting, "MEMO_FROM_BYTES", 1)
    path.write_text("ONE!")
    assert corpus.fingerprint(memo) != expected


def test_messages_about_the_path(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    messages = {
        "": "data.path is empty. Give a file, a directory or a glob: data.path=my.txt, "
        "data.path='texts/**/*.md'.",
        "nope.txt": f"data.path = nope.txt: no such file or directory, seen from {tmp_path}. "
        "Give a file, a directory or a glob.",
        "*.txt": f"data.path = *.txt: no file matches this glob, seen from {tmp_path}. "
        "** reaches into folders: 'texts/**/*.txt'.",
        "empty": "data.path = empty: this directory holds no files. "
        "Give one that does, or a file or a glob.",
    }
    assert {path: refusal(path) for path in messages} == messages
