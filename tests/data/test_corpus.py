"""Which files are read and how; every message about a corpus that cannot be."""

from __future__ import annotations

import gzip
import json
import re
import sysconfig
from pathlib import Path
from typing import Any

import pandas
import pytest

from forge.config.data import PythonSource, Text
from forge.data import fingerprint as fingerprinting
from forge.data.corpus import Corpus, python_source, text_files
from forge.data.split import split_corpus


def texts(corpus: Corpus) -> list[str]:
    return ["".join(document.blocks) for document in corpus.documents()]


def refusal(path: Path | str, **options: str) -> str:
    with pytest.raises(ValueError) as caught:
        texts(text_files(Text(path=str(path), **options)))
    return str(caught.value)


def test_python_source_is_the_library_without_tests() -> None:
    corpus = python_source(PythonSource())
    root = Path(sysconfig.get_paths()["stdlib"])
    names = {path.relative_to(root).as_posix() for path in corpus.files}
    assert {"ast.py", "json/decoder.py", "asyncio/tasks.py"} <= names
    assert not [
        name
        for name in names
        if re.match(r"(test|idlelib|lib2to3|site-packages)/|.*(__pycache__|/tests/)", name)
    ]
    assert len(corpus.files) == len(set(corpus.files)) > 400
    documents = dict(zip(corpus.files, texts(corpus), strict=False))
    assert documents[corpus.files[0]] == corpus.files[0].read_bytes().decode()


def test_python_source_order_is_that_of_names() -> None:
    files = python_source(PythonSource()).files
    by_folder: dict[Path, list[str]] = {}
    for path in files:
        by_folder.setdefault(path.parent, []).append(path.name)
    assert all(names == sorted(names) for names in by_folder.values())


def test_python_files_are_read_in_the_encoding_they_declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_bytes("# coding: latin-1\nname = 'é'\n".encode("latin-1"))
    (tmp_path / "b.py").write_bytes(b"broken = '\xff'\n")
    (tmp_path / "c.py").write_bytes(b"# coding: klingon\n")
    (tmp_path / "d.py").write_text("x = 'ü'\n", encoding="utf-8")
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert texts(python_source(PythonSource())) == ["# coding: latin-1\nname = 'é'\n", "x = 'ü'\n"]


def test_python_without_source_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(ValueError) as caught:
        python_source(PythonSource())
    assert str(caught.value) == (
        f"data: no Python source under {tmp_path}; this Python ships without it. Use data=text data.path=... with text of your own."
    )


def test_one_file_a_directory_and_globs(tmp_path: Path) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    (tmp_path / ".git").mkdir()
    for name in ("b.txt", "a.md", "sub/c.txt", "sub/deep/d.txt", ".hidden", ".git/config"):
        (tmp_path / name).write_text(name)
    assert texts(text_files(Text(path=str(tmp_path / "b.txt")))) == ["b.txt"]
    assert texts(text_files(Text(path=str(tmp_path)))) == [
        "a.md",
        "b.txt",
        "sub/c.txt",
        "sub/deep/d.txt",
    ]
    assert texts(text_files(Text(path=str(tmp_path / "*.txt")))) == ["b.txt"]
    assert texts(text_files(Text(path=str(tmp_path / "**" / "*.txt")))) == [
        "b.txt",
        "sub/c.txt",
        "sub/deep/d.txt",
    ]


def test_a_name_with_glob_characters_is_first_a_name(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("exact")
    (tmp_path / "a1.txt").write_text("glob")
    assert texts(text_files(Text(path=str(tmp_path / "a[1].txt")))) == ["exact"]


def test_json_lines_plain_and_packed(tmp_path: Path) -> None:
    lines = json.dumps({"body": "first\nline"}) + "\n\n" + json.dumps({"body": "zweite ü"}) + "\n"
    (tmp_path / "x.jsonl").write_text(lines, encoding="utf-8")
    with gzip.open(tmp_path / "y.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(lines)
    for name in ("x.jsonl", "y.jsonl.gz"):
        assert texts(text_files(Text(path=str(tmp_path / name), text_field="body"))) == [
            "first\nline",
            "zweite ü",
        ]


ROWS = [
    {"id": 1, "body": 'first\nline, with "quotes"'},
    {"id": 2, "body": "zweite ü 𝄞 [1]\t}"},
    {"id": 3, "body": "x" * 200_000},
]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """A file of the kind that its name says, by the libraries that people write such files with."""
    frame, name = pandas.DataFrame(rows), path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        frame.to_parquet(path, row_group_size=2)
    elif name.endswith((".csv", ".tsv")):
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in name else ",")
    else:
        text = (
            json.dumps(rows, indent=1)
            if name.startswith("array")
            else "".join(json.dumps(row) + "\n" for row in rows)
        )
        (gzip.open if path.suffix == ".gz" else open)(path, "wt", encoding="utf-8-sig").write(text)


@pytest.mark.parametrize("block", [7, 1 << 20])
@pytest.mark.parametrize(
    "name",
    [
        "x.csv",
        "x.tsv",
        "x.csv.gz",
        "x.parquet",
        "array.json",
        "array.json.gz",
        "lines.json",
        "lines.json.gz",
        "x.ndjson",
        "x.jsonl.gz",
    ],
)
def test_files_of_rows(
    tmp_path: Path, name: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.data.reading.BLOCK_BYTES", block)
    monkeypatch.setattr("forge.data.rows.ROWS_AT_ONCE", 2)
    rows = ROWS if block > 7 else ROWS[:2]
    write_rows(tmp_path / name, rows)
    corpus = text_files(Text(path=str(tmp_path / name), text_field="body"))
    assert texts(corpus) == [row["body"] for row in rows]
    assert refusal(tmp_path / name).endswith(
        " has no field 'text' (its fields: id, body). Name the one that holds the text with data.text_field."
    )


def test_a_json_array_of_texts_and_other_json(tmp_path: Path) -> None:
    """A single object is a row; none is trained on as raw text."""
    (tmp_path / "a.json").write_text('\n[ "one", "two\\u00fc" ,\n"three"]\n')
    (tmp_path / "b.json").write_text('{"text": "x",\n "list": [1]}\n')
    (tmp_path / "c.json").write_text('{"text": "y"}\n')
    (tmp_path / "d.json").write_text('{"data": [{"text": "z"}]}\n')
    assert texts(text_files(Text(path=str(tmp_path / "a.json")))) == ["one", "twoü", "three"]
    assert texts(text_files(Text(path=str(tmp_path / "[bc].json")))) == ["x", "y"]
    assert " has no field 'text' (its fields: data). Name the one" in refusal(tmp_path / "d.json")


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_columns_that_something_else_than_commas_separates(tmp_path: Path, mark: str) -> None:
    (tmp_path / "x.csv").write_text(
        f'id{mark}"text"\r\n1{mark}"a, b\nc"\r\n2{mark}d\r\n', newline=""
    )
    assert texts(text_files(Text(path=str(tmp_path / "x.csv")))) == ["a, b\nc", "d"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "x.json",
            b'["a", 3]',
            "{} element 2 is int, not text. An element is a text, or an object with a field that holds it.",
        ),
        (
            "x.json",
            b'[{"text": "a"}, {"text": null}]',
            "{} element 2: field 'text' is null, not text. Choose another with data.text_field.",
        ),
        (
            "x.json",
            b'["a", nope, "' + b"b" * 50 + b'"]',
            "{} element 2 is not JSON (Expecting value). Mend the file.",
        ),
        (
            "x.json",
            b'["a", "b',
            "{} element 2 is not JSON (Unterminated string starting at). Check that the file is complete.",
        ),
        (
            "x.json",
            b'["a", "b"',
            "{} element 2 is not JSON (it ends before the array does). Check that the file is complete.",
        ),
        (
            "x.json",
            b'["\xff"]',
            "{} is not UTF-8 text (invalid start byte). Convert the file (iconv -t utf-8).",
        ),
        (
            "x.csv",
            b"text,n\na,1\n\xff,2\n",
            "{} is not UTF-8 text (invalid start byte). Convert the file (iconv -t utf-8).",
        ),
        ("x.csv", b"n,text\n1,a\n2\n", "{} line 3 ends before its field 'text'. Mend the file."),
        (
            "x.csv",
            b'text\n"a\n',
            "{} line 2 is not CSV (unexpected end of data). Mend the file; a text with quotes or line ends is in quotes, and its own "
            "are doubled.",
        ),
        (
            "x.parquet.gz",
            b"",
            "{} is Parquet inside of gzip. Unpack it (gunzip); Parquet is packed by itself.",
        ),
        (
            "x.json",
            b'{"a": 1',
            "{} is not JSON (Expecting ',' delimiter at line 1 column 8). Mend the file: a .json has an array, an "
            "object, or an object a line.",
        ),
        (
            "x.tar.gz",
            b"\x1f\x8b",
            "{} is packed in a way that is not read here. Unpack it, or pack it with gzip.",
        ),
        (
            "x.jsonl.zst",
            b"\x28\xb5",
            "{} is packed in a way that is not read here. Unpack it, or pack it with gzip.",
        ),
        (
            "x.png",
            b"\x89PNG\0",
            "{} is not text (it has NUL bytes). Leave it out of data.path (a glob such as 'texts/*.txt' takes a part of a folder).",
        ),
    ],
)
def test_messages_about_other_kinds_of_files(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    assert refusal(tmp_path / name) == f"data.path: {message.format(tmp_path / name)}"


def test_message_about_broken_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and no more")
    assert re.fullmatch(
        rf"data.path: cannot read {path} \(Parquet magic bytes.*\)\. Check that it is complete\.",
        refusal(path),
        re.DOTALL,
    )
    pandas.DataFrame({"text": [1, 2]}).to_parquet(path)
    assert (
        refusal(path)
        == f"data.path: {path} row 1: field 'text' is int, not text. Choose another with data.text_field."
    )


def test_all_bad_files_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forge.data.reading.SHOWN", 4)
    (tmp_path / "fine.txt").write_text("fine")
    for name, content in {
        "a.txt": b"\xff",
        "b.txt": b"\xff",
        "c.jsonl": b"[]",
        "d.txt.gz": b"no",
        "e.txt": b"\xff",
    }.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as caught:
        split_corpus(text_files(Text(path=str(tmp_path))), 0.1)
    assert str(caught.value) == (
        "data.path: 5 of 6 files cannot be read:\n"
        f"  {tmp_path}/a.txt is not UTF-8 text (invalid start byte near byte 0)\n"
        f"  {tmp_path}/b.txt is not UTF-8 text (invalid start byte near byte 0)\n"
        "  -> Convert it (iconv -t utf-8), or leave it out of data.path (a glob such as 'texts/*.txt' takes a part of a folder).\n"
        f"  {tmp_path}/c.jsonl line 1 is not a JSON object\n"
        '  -> Every line must look like {"text": ...}.\n'
        f"  cannot read {tmp_path}/d.txt.gz (Not a gzipped file (b'no'))\n"
        "  -> Check that it is complete and that you may read it.\n"
        "  ... and 1 more"
    )


def test_text_is_read_in_blocks_and_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.data.reading.BLOCK_BYTES", 3)
    (tmp_path / "x.txt").write_bytes("\ufeffäöü€𝄞 and\r\nmore".encode())
    (document,) = text_files(Text(path=str(tmp_path / "x.txt"))).documents()
    blocks = list(document.blocks)
    assert len(blocks) > 5
    assert "".join(blocks) == "äöü€𝄞 and\r\nmore"


def test_fingerprint_follows_content_not_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("one")
    (tmp_path / "c.txt").write_text("two")
    (tmp_path / "c.jsonl").write_text("two")

    def of(name: str, **options: str) -> str:
        return text_files(Text(path=str(tmp_path / name), **options)).fingerprint()

    assert of("a.txt") == of("b.txt")
    assert (
        len({of("a.txt"), of("c.txt"), of("c.jsonl"), of("a.txt", text_field="body"), of("*.txt")})
        == 5
    )


def test_fingerprint_of_a_large_corpus_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_messages_about_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    assert refusal("") == (
        "data.path is empty. Give a file, a directory or a glob: data.path=my.txt, data.path='texts/**/*.md'."
    )
    assert refusal("nope.txt") == (
        f"data.path = nope.txt: no such file or directory, seen from {tmp_path}. Give a file, a directory or a glob."
    )
    assert refusal("*.txt") == (
        f"data.path = *.txt: no file matches this glob, seen from {tmp_path}. ** reaches into folders: 'texts/**/*.txt'."
    )
    assert (
        refusal("empty")
        == "data.path = empty: this directory holds no files. Give one that does, or a file or a glob."
    )


def test_message_about_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"abc\xffdef")
    assert refusal(path) == (
        f"data.path: {path} is not UTF-8 text (invalid start byte near byte 3). "
        "Convert it (iconv -t utf-8), or leave it out of data.path (a glob such as 'texts/*.txt' takes a part of a folder)."
    )
    path.write_bytes("abc€".encode()[:-1])
    assert "is not UTF-8 text (unexpected end of data" in refusal(path)


def test_message_about_a_torn_archive(tmp_path: Path) -> None:
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"some text, " * 1000)[:-20])
    assert refusal(path) == (
        f"data.path: cannot read {path} (Compressed file ended before the end-of-stream marker was reached). "
        "Check that it is complete and that you may read it."
    )
    path.write_bytes(b"not packed")
    assert refusal(path).startswith(f"data.path: cannot read {path} (Not a gzipped file")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            b'{"text": "a"',
            "is not JSON (Expecting ',' delimiter at column 13). Every line must be one JSON object.",
        ),
        (b'["a"]', 'is not a JSON object. Every line must look like {"text": ...}.'),
        (
            b'{"body": 1, "id": 2}',
            "has no field 'text' (its fields: body, id). Name the one that holds the text with data.text_field.",
        ),
        (b'{"text": 3}', "field 'text' is int, not text. Choose another with data.text_field."),
        (
            b'{"text": "\xff"}',
            "is not UTF-8 text (invalid start byte at byte 10). Convert the file (iconv -t utf-8).",
        ),
        (
            b'{"text": "a\\ud800"}',
            "has half of a surrogate pair at character 1, which is not text. Fix or drop it.",
        ),
    ],
)
def test_messages_about_a_line_of_json(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b"\n")
    assert re.fullmatch(
        re.escape(f"data.path: {path} line 3") + ":? " + re.escape(message), refusal(path)
    )
