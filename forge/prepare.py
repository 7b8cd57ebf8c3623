"""`python -m forge.prepare OUT [overrides]`: text to token shards for data=shards.

Examples:
    python -m forge.prepare shards data=text data.path=my.txt
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge import cli
from forge.compose.trust import in_project
from forge.config.data.text import BEST_FIT_CROP
from forge.config.numbers import counted, duration, time_span
from forge.config.problems import COMMAND_LINE, ConfigError, refusal

if TYPE_CHECKING:
    from forge.config.root import Config

DESCRIPTION = "Text of any data kind to a directory of token shards, which data=shards reads."
EVERY = 10.0  # seconds between lines, where there is no terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Make OUT, or continue with OUT, and print the summary; 2 for a refused request."""
    arguments = cli.parser("forge.prepare OUT", DESCRIPTION)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    add = arguments.add_argument
    many = f"processes that tokenise (default {cores}: one a core)"
    add("--processes", type=int, default=cores, metavar="N", help=many)
    once = "leave out documents that came before, word for word"
    add("--deduplicate", action="store_true", help=once)
    alike = "leave out documents that share so much with an earlier one: 0.8 = 80 %% of five words"
    add("--minhash", type=float, metavar="SHARE", help=alike)
    over = "leave out documents that repeat up to 13 tokens 32 times in a row, as OLMo does"
    add("--repetition-filter", action="store_true", help=over)
    add("--validate", action="store_true", help="read all of OUT and say what is wrong with it")
    options = cli.parse(arguments, argv)
    if options.help:
        return cli.help("forge.prepare OUT", arguments, options)
    return cli.refuse(lambda: _verb(options))


def _verb(options: argparse.Namespace) -> int:
    outputs = [word for word in options.overrides if "=" not in word and not word.startswith("~")]
    if len(outputs) != 1:
        message = f"one directory is made, and {counted(len(outputs), 'is', 'are')} named."
        hint = "python -m forge.prepare my/tokens data=text data.path=my.txt"
        raise refusal("OUT", message, hint, COMMAND_LINE)
    out = cli.local_path("OUT", outputs[0]).expanduser().absolute()
    overrides = [word for word in options.overrides if word != outputs[0]]
    if options.processes < 1:
        raise refusal("--processes", "at least one process tokenises.", "--processes 1")
    if options.minhash is not None and not 0 < options.minhash <= 1:
        message = "documents are alike from 0, in nothing, to 1, in all."
        raise refusal("--minhash", message, "--minhash 0.8")
    try:
        if options.validate:
            return _validate(out)
        return _prepare(out, overrides, options)
    except ConfigError:  # printed by cli.refuse
        raise
    except ValueError as error:
        print(cli.printable(str(error)), file=sys.stderr)
        return 2


def _prepare(out: Path, overrides: Sequence[str], options: argparse.Namespace) -> int:
    config = cli.resolved(in_project(overrides), options.config_dir)[1].config
    from forge.build import build
    from forge.data.preparing.shard_folder import prepare_shards

    meter = _Meter()
    manifest = prepare_shards(
        out,
        config.data,
        config.tokenizer,
        build=partial(build, trust=config.run.trust),
        processes=options.processes,
        deduplicate=options.deduplicate,
        minhash=options.minhash,
        repetition_filter=options.repetition_filter,
        progress=meter,
    )
    meter.end()
    print(_summary(out, manifest))
    if config.data.packing == BEST_FIT_CROP:
        print(f"  {_cropped(out, config)}")
    return 0


def _cropped(out: Path, config: Config) -> str:
    """Plan the sequences of training, which a run on OUT reads from the cache, and say how many
    tokens are cropped off.
    """
    from forge.data.batches.plans import kept_plan
    from forge.data.tokenizers.tokenizer import Tokenizer
    from forge.data.tokens.cache import cache_root
    from forge.data.tokens.shards import IndexedStore
    from forge.training.data import packed_how

    options = packed_how(config, Tokenizer.load(out / "tokenizer"))
    assert options is not None
    plan = kept_plan(cache_root(config.data.cache_dir), IndexedStore(out / "train"), **options)
    return f"packed {len(plan):,} sequences of {config.train.seq_len:,}; {plan.said_cropped()}"


def _validate(out: Path) -> int:
    from forge.data.preparing.soundness import find_damage
    from forge.data.tokens.manifest import read_manifest

    meter = _Meter()
    faults = find_damage(out, progress=meter)
    meter.end()
    if faults:
        lines = [f"{out}: {counted(len(faults), 'fault')}", *(f"  {fault}" for fault in faults)]
        hint = "  -> remove it and prepare it again"
        print(cli.printable("\n".join([*lines, hint])), file=sys.stderr)
        return 2
    print(_summary(out, read_manifest(out)))
    print("all of it is as it was written")
    return 0


LEFT_OUT = {
    ("empty document", ""): ("empty", ""),
    ("document that came before", "documents that came before"): (
        "duplicates",
        "duplicate_bytes",
    ),
    ("document like an earlier one", "documents like an earlier one"): (
        "near_duplicates",
        "near_duplicate_bytes",
    ),
    ("document that repeats itself", "documents that repeat themselves"): (
        "repetitive",
        "repetitive_bytes",
    ),
    ("file without text", "files without text"): ("files_without_text", ""),
}
"""Singular and plural of text left out, and its counts in a manifest: number and bytes."""


def _summary(out: Path, manifest: dict[str, Any]) -> str:
    read = manifest["read"]
    rows = [f"{out}, of {manifest['source']}"]
    rows.append(
        f"  read   {counted(read['documents'], 'document')} of {counted(manifest['files'], 'file')}"
    )
    for name, split in manifest["splits"].items():
        documents = counted(split["documents"], "document")
        rows.append(
            f"  {name:<5}  {split['tokens']:,} tokens, {documents}, {split['bytes']:,} bytes"
        )
    omissions = ", ".join(
        counted(read[number], *noun) + (f" ({read[size]:,} bytes)" if size else "")
        for noun, (number, size) in LEFT_OUT.items()
        if read.get(number)
    )
    if bad := manifest.get("bad_rows"):
        unread = f"{counted(bad['number'], 'row')} that cannot be read ({bad['first'][0]})"
        omissions = ", ".join(filter(None, (omissions, unread)))
    rows.append(f"  left out: {omissions or 'nothing'}")
    from forge.data.tokenizers.tokenizer import Tokenizer

    folder = out / "tokenizer"
    rows.append(
        f"  train on it: data=shards data.path={out} {Tokenizer.load(folder).typed(folder)}"
    )
    return "\n".join(rows)


class _Meter:
    """Progress and time left of the preparation: a single changing line, or a line every 10 s."""

    def __init__(self) -> None:
        self.shows = sys.stderr.isatty()
        self.said = ""
        self.began: float | None = None
        self.at_first = 0
        self.next = 0.0

    def __call__(self, stage: str, done: int, of: int, tokens: int) -> None:
        now = time.monotonic()
        if stage == "continue":
            self.at_first = done
        if stage != "tokenise" or not done:
            self._show(
                f"{stage}: {done / of:.0%} is there" if stage == "continue" else stage, stage
            )
            self.began = now
            return
        began = self.began or now
        seconds, todo = now - began, of - done
        rate = (done - self.at_first) / max(seconds, 1e-9)
        speed = f"{tokens / max(seconds, 1e-9) / 1e6:.2f}M tokens a second"
        text = f"tokenise: {done / of:.1%}, {tokens:,} tokens, {speed}"
        text += f", {time_span(todo / rate)} left" if todo and rate else f", {duration(seconds)}"
        if self.shows or now >= self.next or not todo:
            self.next = now + EVERY
            self._show(text, text)

    def _show(self, text: str, once: str) -> None:
        if once == self.said:
            return
        self.said = once
        if self.shows:
            print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.shows:
            print(file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
