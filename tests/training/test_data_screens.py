"""What users see of each thing that can be wrong with data when a run starts, or later.

`FORGE_WRITE_SCREENS=1 pytest tests/training/test_data_screens.py` writes the screen again.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers.tiny import TWO_LAYERS

from forge import cli, worker
from forge.data.tokens.shards import ShardWriter
from forge.objectives.next_token import NextToken
from forge.rundir import directory
from forge.rundir.files import read_json

SCREEN = Path(__file__).with_name("data_screen.txt")
SHARDS = "data=shards tokenizer=bytes data.path"


def write(folder: Path) -> dict[str, str]:
    """What is wrong, and the overrides that read it."""
    rows = "\n".join(json.dumps({"text": f"row {n} of many"}) for n in range(200))
    (folder / "row.jsonl").write_text(rows + '\n{"text": 3}\n')
    (folder / "cut.jsonl").write_text(rows + '\n{"text": "ro')
    packed = gzip.compress(rows.encode())
    (folder / "cut.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    (folder / "latin.txt").write_bytes("naïve".encode("latin-1") * 100)
    (folder / "empty.txt").write_text("")
    (folder / "short.txt").write_text("a\nb\n" * 200)
    np.save(folder / "cut.npy", np.arange(1000, dtype=np.uint16) % 256)
    (folder / "cut.npy").write_bytes((folder / "cut.npy").read_bytes()[:-100])
    np.save(folder / "wrong.npy", np.arange(1000, dtype=np.uint16))
    (folder / "bare.bin").write_bytes(bytes(2000))
    table = pa.table({"text": [f"row {n} of many" for n in range(400)]})
    pq.write_table(table, folder / "whole.parquet", row_group_size=100)
    content = bytearray((folder / "whole.parquet").read_bytes())
    content[len(content) // 2 : len(content) // 2 + 200] = bytes(200)
    (folder / "torn.parquet").write_bytes(content)
    text = f"data=text data.path={folder}"
    return {
        "a row without text": f"{text}/row.jsonl",
        "a row that is cut short": f"{text}/cut.jsonl",
        "a file that is cut short": f"{text}/cut.jsonl.gz",
        "text that is not UTF-8": f"{text}/latin.txt",
        "an empty text": f"{text}/empty.txt",
        "an empty source of a mixture": f"data=mix +data.sources.a.path={folder}/empty.txt "
        f"+data.sources.b.path={folder}/short.txt",
        "a text shorter than a sequence": f"{text}/short.txt tokenizer=bytes train.seq_len=1024 "
        "model.max_seq_len=1024",
        "a shard that is cut short": f"{SHARDS}={folder}/cut.npy",
        "tokens that the tokenizer does not have": f"{SHARDS}={folder}/wrong.npy",
        "a shard of an unknown type": f"{SHARDS}={folder}/bare.bin",
        "a torn Parquet file": f"{text}/torn.parquet",
    }


def show(name: str, errors: str, tmp: Path) -> None:
    """What was printed is the part of the screen that has this name."""
    text = re.sub(
        r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_tiny_\w{8}", "RUN", errors.replace(str(tmp), "TMP")
    )
    parts = SCREEN.read_text(encoding="utf-8").split("# ")[1:]
    shown = dict(part.split("\n", 1) for part in parts)
    if "FORGE_WRITE_SCREENS" in os.environ:
        shown[name] = f"{text.strip()}\n\n"
        SCREEN.write_text("".join(f"# {one}\n{said}" for one, said in shown.items()))
    assert shown[name].strip() == text.strip()


def test_bad_data_is_named_when_a_run_starts(tmp_path, capsys) -> None:
    for name, overrides in write(tmp_path).items():
        without = "tokenizer." if "tokenizer=bytes" in overrides else "nothing"
        model = [one for one in TWO_LAYERS if not one.startswith(without)]
        place = [f"run.root={tmp_path / 'runs'}", "run.inline=true"]
        composition, resolution = cli.resolved([*model, *place, *overrides.split()])
        run = directory.create(resolution, overrides=composition.overrides)[0]
        capsys.readouterr()
        assert worker.main([str(run)]) == 2, name
        show(name, capsys.readouterr().err, tmp_path)


def test_a_disk_that_is_full_is_named(new_run, tmp_path, capsys, monkeypatch) -> None:
    def full(self: ShardWriter, tokens: np.ndarray) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ShardWriter, "append", full)
    (tmp_path / "a.txt").write_text("the white whale of the sea\n" * 100)
    run = new_run(f"data=text data.path={tmp_path}/a.txt data.cache_dir={tmp_path}/cache")
    capsys.readouterr()
    assert worker.main([str(run)]) == 2
    show("a disk that is full", capsys.readouterr().err, tmp_path)
    assert not list((tmp_path / "cache" / "data").glob("*/*")), "nothing half made is left"


def test_a_loader_process_that_dies_is_named_and_the_run_goes_on(
    new_run, tmp_path, capsys, monkeypatch
) -> None:
    def die(self: NextToken, samples: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    run = new_run("data.num_workers=1 train.max_steps=4 checkpoint.interval=2")
    collate = NextToken.collate
    monkeypatch.setattr(NextToken, "collate", die)
    capsys.readouterr()
    assert worker.main([str(run)]) == 2
    show("a loader process that dies", capsys.readouterr().err, tmp_path)
    monkeypatch.setattr(NextToken, "collate", collate)
    assert worker.main([str(run)]) == 0
    assert read_json(run / "result.json")["step"] == 4
