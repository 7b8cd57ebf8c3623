"""forge.prepare against datasets.map with the same tokenizer on the same file: tokens a second from
the shell to the end, and the memory of a corpus and of one eight times as large.

    python benchmarks/speed/prepare.py > benchmarks/results/prepare.md

The first file has the sources of the Python standard library, one a row; the other those of the
installed packages, up to eight times as much, none of it twice. forge reads it three times (hash,
split, tokens) and writes shards with offsets and counts; datasets reads it into Arrow and writes
Arrow.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import datasets
import tokenizers

from forge.config.data.text import PythonSource
from forge.data.text.corpus import python_source
from forge.data.text.reading import Document, read_python

MAP = """
import sys, datasets, tokenizers
file, tokenizer, cache, processes = sys.argv[1:]
known = tokenizers.Tokenizer.from_file(tokenizer)
def encode(rows):
    return {"ids": [e.ids for e in known.encode_batch(rows["text"], add_special_tokens=False)]}
rows = datasets.load_dataset("json", data_files=file, split="train", cache_dir=cache)
rows.map(encode, batched=True, num_proc=int(processes), remove_columns=["text"])
"""
TIMES = 3


def measured(command: list[str], folder: str) -> tuple[float, float]:
    """(seconds, MiB of the largest process) of a command."""
    program = (
        "import resource, subprocess, sys, time; begin = time.time();"
        "subprocess.run(sys.argv[1:], check=True, stdout=2);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss;"
        "print(time.time() - begin, used / 1024)"
    )
    environment = {**os.environ, "FORGE_CACHE": f"{folder}/cache", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, *command],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    seconds, used = done.stdout.split()[-2:]
    return float(seconds), float(used)


def forge(out: str, file: Path, tokenizer: str, processes: int) -> list[str]:
    words = [sys.executable, "-m", "forge.prepare", out, "--processes", str(processes)]
    return [*words, "data=text", f"data.path={file}", *tokenizer.split(), "run.device=cpu"]


def text_of(document: Document) -> str:
    assert isinstance(document, Iterator)
    return "".join(document)


def write(file: Path) -> None:
    with file.open("w") as output:
        for document in python_source(PythonSource()).documents():
            output.write(json.dumps({"text": text_of(document)}) + "\n")


def write_packages(file: Path, size: int) -> None:
    """Rows of at least `size` bytes, or all there are."""
    known: set[str] = set()
    with file.open("w") as output:
        for path in sorted(Path(datasets.__file__).resolve().parents[1].rglob("*.py")):
            if output.tell() >= size:
                return
            text = "".join(map(text_of, read_python(path)))
            if text.strip() and text not in known:
                known.add(text)
                output.write(json.dumps({"text": text}) + "\n")


def tokens_of(out: Path) -> int:
    manifest = json.loads((out / "manifest.json").read_text())["manifest"]
    return sum(split["tokens"] for split in manifest["splits"].values())


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    versions = f"datasets {datasets.__version__}, tokenizers {tokenizers.__version__}"
    print(f"`python {' '.join(sys.argv)}`, {versions}, {cores} cores.\n")
    print("| what | text | seconds | tokens a second | largest process |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        one, eight = Path(folder, "one.jsonl"), Path(folder, "eight.jsonl")
        write(one)
        write_packages(eight, 8 * one.stat().st_size)
        trained = forge(f"{folder}/trained", one, "tokenizer.vocab_size=4096", cores)
        measured(trained, folder)
        own = f"tokenizer=file tokenizer.path={folder}/trained/tokenizer/tokenizer.json"

        def rows(file: Path) -> None:
            """A line for each way; they take turns, so that whatever else runs slows all."""
            taken: dict[str, list[tuple[float, float]]] = {}
            for turn in range(TIMES):
                out = f"{folder}/{file.stem}_{turn}"
                words = [str(file), own.rpartition("=")[2], f"{out}_map", str(cores)]
                ways = {
                    f"forge.prepare, {cores} processes": forge(out, file, own, cores),
                    "forge.prepare, one process": forge(f"{out}_1", file, own, 1),
                    f"datasets.map, num_proc={cores}": [sys.executable, "-c", MAP, *words],
                }
                for name, command in ways.items():
                    taken.setdefault(name, []).append(measured(command, folder))
            tokens = tokens_of(Path(folder, f"{file.stem}_0"))
            for name, found in taken.items():
                seconds = statistics.median(each for each, _ in found)
                size = f"{file.stat().st_size / 1e6:.1f} MB"
                speed = f"{tokens / seconds / 1e6:.2f} M"
                used = max(mib for _, mib in found)
                print(f"| {name} | {size} | {seconds:.1f} | {speed} | {used:.0f} MiB |", flush=True)

        rows(one)
        rows(eight)
    load = os.getloadavg()[1]
    print(f"\nLoad of the machine in the last five minutes, with all that ran beside: {load:.1f}.")


if __name__ == "__main__":
    main()
