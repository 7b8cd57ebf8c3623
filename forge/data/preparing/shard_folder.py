"""Text to a directory of token shards: in parallel, and resumable after a kill.

The corpus is cut into parts by its content alone. Each part is tokenised by one of several
processes to a folder of OUT/.parts, renamed to its final name once complete; the same command makes
the missing parts. At the end the files of the parts become the shards of OUT.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forge.config.data.text import Data, HeldOut
from forge.config.tokenizers.tokenizer import Tokenizer as TokenizerSection
from forge.config.tokenizers.tokenizer_stated import TEMPLATE
from forge.data.preparing.cached import Build, fingerprint_of, identity_of, tokenizer_entry
from forge.data.preparing.encode import OFFSET, SPLITS, split_facts
from forge.data.preparing.minhash import near_duplicates
from forge.data.preparing.parts import (
    LEFT_OUT,
    TOKENIZER,
    Tally,
    corpus_parts,
    encode_part,
    sign,
    texts_of,
)
from forge.data.preparing.tokenising_processes import processes_for
from forge.data.sources.hub_stream import StreamSource
from forge.data.text.bad_rows import check_kept
from forge.data.text.corpus import Corpus
from forge.data.text.fingerprint import hash_file
from forge.data.text.mixed import Mixed
from forge.data.text.split import Split, TrainingText, split_corpus
from forge.data.tokenizers.tokenizer import CONFIG_FILE, TOKENIZER_FILE, Tokenizer
from forge.data.tokens.cache import cache_root, one_builder
from forge.data.tokens.manifest import MANIFEST_FILE, read_manifest, write_manifest
from forge.data.tokens.shards import (
    COUNTED,
    DOCUMENTS,
    FORMAT,
    INDEX_FILE,
    BrokenStore,
    Index,
    Shard,
    read_index,
    write_index,
)
from forge.data.tokens.tokens import TokenSource
from forge.rundir.files import read_json, write_json
from forge.rundir.provenance import versions

PARTS, PLAN, SIGNATURES = ".parts", "plan.json", "signatures"
SIGNED_AT_ONCE = 1 << 22  # characters
LEAST_PART, LARGEST_PART, PARTS_AT_LEAST = 1 << 20, 1 << 26, 64
Progress = Callable[[str, int, int, int], None]
"""(stage, bytes of text done, of how many, tokens made)."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """Inputs of a preparation. identity: every input of the shards."""

    out: Path
    corpus: Corpus
    held_out: HeldOut
    tokenizer: TokenizerSection
    deduplicate: bool
    minhash: float | None
    repetition_filter: bool
    identity: dict[str, Any]

    @property
    def parts(self) -> Path:
        return self.out / PARTS


def prepare_shards(
    out: Path,
    data: Data,
    tokenizer: TokenizerSection,
    *,
    build: Build,
    processes: int,
    deduplicate: bool = False,
    minhash: float | None = None,
    repetition_filter: bool = False,
    progress: Progress = lambda stage, done, total, tokens: None,
) -> dict[str, Any]:
    """Make OUT, or continue a partial one. Returns its manifest.

    processes: 1 = the calling process alone, with the threads of the tokenizers library.
    deduplicate, minhash (least similarity), repetition_filter: documents to leave out. ValueError:
    no text, bad text, no tokenizer, OUT holds other files or cannot be written.
    """
    corpus = _running_text(build(data, path="data"), data)
    tokenizer = replace(tokenizer, **data.borders(tokenizer))  # saved with the shards
    progress("read the corpus", 0, 0, 0)
    memo = cache_root(data.cache_dir) / "fingerprints"
    identity = {
        "format": FORMAT,
        "corpus": fingerprint_of(corpus, memo),
        "held_out": data.held_out.identity,
        "tokenizer": identity_of(tokenizer),
        "deduplicate": deduplicate,
        "minhash": minhash,
        "repetition_filter": repetition_filter,
    }
    if corpus.render is not None:
        identity["template"] = corpus.render.source(tokenizer)
    order = Order(
        out=out,
        corpus=corpus,
        held_out=data.held_out,
        tokenizer=tokenizer,
        deduplicate=deduplicate,
        minhash=minhash,
        repetition_filter=repetition_filter,
        identity=identity,
    )
    with _writable(out), one_builder(out):
        if (out / MANIFEST_FILE).exists():
            manifest = _complete(order)
            check_kept(data, manifest)
            return manifest
        split = _planned(order, build, progress)
        tally = Tally()
        near = _near_duplicates(order, split, processes, progress)
        _make_parts(order, split, near, tally, processes, progress)
        return _finish(order, split, tally)


def _running_text(corpus: Corpus | TokenSource | StreamSource | Mixed, data: Data) -> Corpus:
    """The corpus, of a kind that shards are made of. Raises ValueError for any other."""
    if isinstance(corpus, StreamSource):
        fault = "a stream is read while it trains, and not prepared"
        raise ValueError(f"data.hf_streaming=true: {fault}. Leave it out to prepare the text.")
    if isinstance(corpus, Mixed):
        fault = "shards are of one corpus, and this mixes several"
        raise ValueError(f"data: {fault}. Prepare each by itself; data=mix mixes shards too.")
    if isinstance(corpus, TokenSource):
        raise ValueError("data: these are tokens already. Train on them as they are.")
    if corpus.together:
        fault = "shards are of running text, and these are examples, which are kept apart"
        raise ValueError(f"data: {fault}. Train on them as they are, which prepares them.")
    if data.validation:
        fault = "this prepares one text, and data.validation is another"
        raise ValueError(f"data.validation: {fault}. Prepare each, with data.val_fraction=0.")
    return corpus


@contextmanager
def _writable(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fault = f"cannot write there ({error.strerror or error})"
        hint = "Make room or name another directory; the same command continues with what is made"
        raise ValueError(f"{out}: {fault}. {hint}.") from error
    except BrokenProcessPool as error:
        fault = "a process that tokenises was ended, most often because memory ran out"
        hint = "The same command continues, with --processes fewer at a time"
        raise ValueError(f"{out}: {fault}. {hint}.") from error


def _complete(order: Order) -> dict[str, Any]:
    try:
        manifest = read_manifest(order.out)
    except BrokenStore as error:
        raise ValueError(f"{order.out}: {error}. Remove it, or name another directory.") from error
    _same(order, manifest["identity"])
    return manifest


def _same(order: Order, identity: dict[str, Any]) -> None:
    order_identity = order.identity
    names = sorted(
        name
        for name in order_identity
        if (order_identity[name] or None) != (identity.get(name) or None)
    )
    if names:
        fault = f"it was made with another {', '.join(names)}"
        raise ValueError(f"{order.out}: {fault}. Remove it, or name another directory.")


def _planned(order: Order, build: Build, progress: Progress) -> Split:
    """The division of the corpus, and a tokenizer in OUT/.parts: from an earlier start, or made
    now.
    """
    plan_file = order.parts / PLAN
    if plan_file.exists():
        plan = read_json(plan_file)
        _same(order, plan["identity"])
        return Split(corpus=order.corpus, **plan["split"])
    if order.out.exists() and any(path.name != PARTS for path in order.out.iterdir()):
        fault = "it has files that forge.prepare did not make"
        raise ValueError(f"{order.out}: {fault}. Name another directory.")
    shutil.rmtree(order.parts, ignore_errors=True)
    order.parts.mkdir(parents=True)
    split = split_corpus(order.corpus, order.held_out)
    progress("make the tokenizer", 0, split.n_bytes, 0)
    text = TrainingText(splits=(split,))
    tokenizer: Tokenizer = build(order.tokenizer, path="tokenizer", text=text)
    if "template" in order.identity:
        tokenizer.stated[TEMPLATE] = order.identity["template"]
    tokenizer.save(order.parts / TOKENIZER)
    division = {
        name: getattr(split, name) for name in ("unit", "threshold", "n_bytes", "held_files")
    }
    write_json(plan_file, {"identity": order.identity, "split": division})
    return split


def _near_duplicates(
    order: Order, split: Split, processes: int, progress: Progress
) -> np.ndarray | None:
    """Mask of documents similar to an earlier one; signatures of an earlier start are reused."""
    if order.minhash is None:
        return None
    folder = order.parts / SIGNATURES
    folder.mkdir(exist_ok=True)
    running: list[Future[int]] = []
    names: list[str] = []
    with processes_for(processes) as pool:
        for texts in _batches(texts_of(split)):
            number = len(names)
            names.append(f"{number:05d}.npy")
            progress("compare documents", 0, split.n_bytes, 0)
            if (folder / names[-1]).exists():
                continue
            if pool is None:
                sign(texts, number, folder)
                continue
            running.append(pool.submit(sign, texts, number, folder))
            if len(running) > 2 * processes:
                running.pop(0).result()
        for future in running:
            future.result()
    return near_duplicates([np.load(folder / n, mmap_mode="r") for n in names], order.minhash)


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts in batches of some MiB: the same division every time."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text) + 1
        if size >= SIGNED_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _make_parts(
    order: Order,
    split: Split,
    near: np.ndarray | None,
    tally: Tally,
    processes: int,
    progress: Progress,
) -> None:
    """Make every missing part. A few parts are in memory at a time, for any size of corpus."""
    size = min(max(split.n_bytes // PARTS_AT_LEAST, LEAST_PART), LARGEST_PART)
    parts = corpus_parts(
        split,
        part_bytes=size,
        deduplicate=order.deduplicate,
        tally=tally,
        near=near,
        whole=order.repetition_filter,
    )
    encode: Any = {"masked": order.corpus.masked, "no_repetition": order.repetition_filter}
    encode["render"] = order.corpus.render
    done = tokens = 0
    running: dict[Future[int], int] = {}

    def collect(finished: Iterator[Future[int]] | set[Future[int]]) -> None:
        nonlocal done, tokens
        for future in finished:
            tokens += future.result()
            done += running.pop(future)
            progress("tokenise", done, split.n_bytes, tokens)

    progress("tokenise", 0, split.n_bytes, 0)
    with processes_for(processes) as pool:
        for part in parts:
            if (order.parts / f"{part.number:05d}").is_dir():
                done += part.n_bytes
                progress("continue", done, split.n_bytes, tokens)
            elif pool is None:
                tokens += encode_part(part, order.parts, **encode)
                done += part.n_bytes
                progress("tokenise", done, split.n_bytes, tokens)
            else:
                future = pool.submit(encode_part, part, order.parts, **encode)
                running[future] = part.n_bytes
                if len(running) > 2 * processes:
                    collect(wait(running, return_when=FIRST_COMPLETED).done)
        collect(wait(running).done)
    if done < split.n_bytes:  # text left out counts as done
        progress("tokenise", split.n_bytes, split.n_bytes, tokens)


def _finish(order: Order, split: Split, tally: Tally) -> dict[str, Any]:
    """Move the files of the parts to the shards of OUT; an interrupted move is continued."""
    out, masked = order.out, order.corpus.masked
    folders = sorted(path for path in order.parts.iterdir() if path.name.isdecimal())
    for counts in (read_json(folder / LEFT_OUT) for folder in folders):
        tally.repetitive += counts["repetitive"]
        tally.repetitive_bytes += counts["repetitive_bytes"]
    tokenizer = Tokenizer.load(order.parts / TOKENIZER)
    tokenizer.save(out / TOKENIZER)
    indices = {}
    for name in SPLITS:
        if masked:
            _gather(folders, f"{name}/{COUNTED}", out)
        index = _gather(folders, name, out)
        _offsets([folder / name for folder in folders], out / name / DOCUMENTS)
        indices[name] = replace(index, tokenizer=tokenizer.fingerprint, documents=DOCUMENTS)
        write_index(out / name, indices[name])
    files = [f"{TOKENIZER}/{name}" for name in (TOKENIZER_FILE, CONFIG_FILE)]
    files += [f"{name}/{INDEX_FILE}" for name in SPLITS]
    files += [f"{name}/{COUNTED}/{INDEX_FILE}" for name in SPLITS if masked]
    manifest = {
        "identity": order.identity,
        "bytes": split.n_bytes,
        "split_unit": split.unit,
        "tokenizer": tokenizer_entry(tokenizer),
        "read": asdict(tally),
        "splits": {
            name: facts | {"offsets_sha256": hash_file(out / name / DOCUMENTS)}
            for name, facts in split_facts(out, indices).items()
        },
        "source": order.corpus.source,
        "files": len(order.corpus.files),
        "tokenizers_version": versions()["tokenizers"],
        "sha256": {name: hash_file(out / name) for name in files},
        **order.corpus.bad_rows.manifest(),
    }
    write_manifest(out, manifest)
    shutil.rmtree(order.parts)
    return manifest


def _gather(folders: Sequence[Path], name: str, out: Path) -> Index:
    """Move the shards of the parts to OUT/NAME, numbered by part."""
    (out / name).mkdir(parents=True, exist_ok=True)
    shards: list[Shard] = []
    indices = [read_index(folder / name) for folder in folders]
    for folder, index in zip(folders, indices, strict=True):
        for shard in index.shards:
            moved = f"{folder.name}.bin"
            with suppress(FileNotFoundError):  # moved before a kill
                (folder / name / shard.file).replace(out / name / moved)
            shards.append(replace(shard, file=moved))
    gathered = Index(
        dtype=indices[0].dtype,
        n_tokens=sum(index.n_tokens for index in indices),
        n_bytes=sum(index.n_bytes for index in indices),
        n_documents=sum(index.n_documents for index in indices),
        shards=tuple(shards),
    )
    write_index(out / name, gathered)
    return gathered


def _offsets(folders: Sequence[Path], file: Path) -> None:
    """Write the start of each document and the end of the last: int64 in one file."""
    start = 0
    with open(file, "wb") as output:
        np.zeros(1, OFFSET).tofile(output)
        for folder in folders:
            (np.fromfile(folder / DOCUMENTS, OFFSET) + start).tofile(output)
            start += read_index(folder).n_tokens
