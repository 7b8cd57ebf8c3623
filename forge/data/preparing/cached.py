"""Config to tokens: read, divide, tokenise and cache a corpus, once per content."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from forge.config.data.chats import Chats
from forge.config.data.reading import held_out_section
from forge.config.data.text import Data, HeldOut, Synthetic
from forge.config.problems import ConfigError
from forge.config.tokenizers.tokenizer import ADDED
from forge.config.tokenizers.tokenizer import Tokenizer as TokenizerSection
from forge.config.tokenizers.tokenizer_files import Existing, Facts
from forge.config.tokenizers.tokenizer_stated import TEMPLATE
from forge.data.batches.mixture import Mixture
from forge.data.batches.streams import Streamed
from forge.data.preparing.encode import SPLITS, encode_splits, split_facts
from forge.data.preparing.held_out import hold_out
from forge.data.sources.hub_stream import StreamSource
from forge.data.text.bad_rows import check_kept
from forge.data.text.corpus import Corpus
from forge.data.text.fingerprint import hash_file, hash_json
from forge.data.text.mixed import Mixed
from forge.data.text.reading import BadFile
from forge.data.text.split import RandomText, TrainingText, split_corpus
from forge.data.tokenizers.render import Render
from forge.data.tokenizers.tokenizer import CONFIG_FILE, TOKENIZER_FILE, Tokenizer
from forge.data.tokens.cache import cache_root, explained, read_or_make
from forge.data.tokens.joined import Joined
from forge.data.tokens.manifest import read_manifest, write_manifest
from forge.data.tokens.shards import COUNTED, DOCUMENTS, FORMAT, INDEX_FILE, IndexedStore
from forge.data.tokens.store import TokenStore
from forge.data.tokens.tokens import NoText, TokenSource
from forge.rundir.provenance import versions

log = logging.getLogger(__name__)

TOKENIZER_FILES = (f"tokenizer/{TOKENIZER_FILE}", f"tokenizer/{CONFIG_FILE}")
Build = Callable[..., Any]
Progress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A tokenizer and the text in its tokens. sets: evaluation sets by name."""

    tokenizer: Tokenizer
    train: TokenStore | Streamed | Mixture
    val: TokenStore
    manifest: dict[str, Any]
    sets: dict[str, TokenStore] = field(default_factory=dict)

    @property
    def identity(self) -> dict[str, str]:
        """Fingerprints of tokenizer and training text, compared by a resumed run."""
        return {
            "tokenizer": self.manifest["tokenizer"]["fingerprint"],
            "train": self.manifest["splits"]["train"]["sha256"],
        }

    @property
    def evaluated(self) -> dict[str, TokenStore]:
        """The held-out split, under no name, and the sets; without empty ones."""
        return {name: store for name, store in {"": self.val, **self.sets}.items() if len(store)}


def prepare_tokens(
    data: Data,
    tokenizer: TokenizerSection | Tokenizer,
    *,
    build: Build,
    progress: Progress = lambda stage, share: None,
) -> Prepared:
    """The prepared data of a section and a tokenizer, from the cache or made now.

    build(section, path=..., **runtime) makes the corpus and, if needed, the tokenizer (text: a
    TrainingText). progress(stage, share): called with the share of a stage done. Any number of
    processes may call this at once: one does the work. ValueError, naming the key: no text, bad
    text, no tokenizer, or an unwritable cache.
    """
    if data.validation:
        return _validated_elsewhere(data, tokenizer, build, progress)
    corpus = _read(data, build)
    if isinstance(corpus, TokenSource):
        return _in_place(corpus, data, tokenizer, build)
    root = cache_root(data.cache_dir)
    if isinstance(corpus, Mixed):
        return _prepare_mixed(corpus, tokenizer, root, build=build, progress=progress)
    borders = data.borders(tokenizer)
    if isinstance(corpus, StreamSource):
        return _streamed(corpus, tokenizer, borders, root, build=build, progress=progress)
    with explained(root):
        identity = {
            "format": FORMAT,
            "corpus": fingerprint_of(corpus, root / "fingerprints"),
            "held_out": data.held_out.identity,
            "tokenizer": identity_of(tokenizer),
        } | ({"borders": borders} if borders else {})
        if corpus.render is not None:
            identity["template"] = corpus.render.source(tokenizer)
        entry = root / "data" / f"{corpus.name}-{hash_json(identity)[:16]}"
        make = partial(_make, corpus, identity, data, tokenizer, build, progress)
        prepared = read_or_make(entry, partial(_open, entry, corpus), make)
        check_kept(data, prepared.manifest)
        return prepared


def _read(data: Data, build: Build) -> Corpus | TokenSource | StreamSource | Mixed:
    """Build the corpus of a section. ValueError: a user's own reader returns another type."""
    corpus = build(data.reader, path=data.place)
    if isinstance(corpus, Corpus | TokenSource | StreamSource | Mixed):
        return corpus
    target = data.reader["_target_"] if isinstance(data.reader, dict) else data._target_
    fault = f"{target} gives a value of type {type(corpus).__name__}, and no corpus"
    hint = "Let it give a forge.api.Corpus, or a forge.api.TokenSource"
    raise ValueError(f"{fault}. {hint}.")


def _validated_elsewhere(
    data: Data, tokenizer: TokenizerSection | Tokenizer, build: Build, progress: Progress
) -> Prepared:
    """Prepare all of the text for training, and another text for validation."""
    training = replace(data, validation={}, val_fraction=0.0, val_documents=0)
    prepared = prepare_tokens(training, tokenizer, build=build, progress=progress)
    section = held_out_section(data, data.validation, "data.validation")
    with _named("data.validation"):
        other = prepare_tokens(section, prepared.tokenizer, build=build, progress=progress)
    extra = {"validation": other.manifest}
    return replace(prepared, val=other.val, manifest=prepared.manifest | extra)


def with_sets(
    prepared: Prepared, sections: Mapping[str, Data], *, build: Build, progress: Progress
) -> Prepared:
    """Add evaluation sets in the same tokens. ValueError, with the set: as `prepare_tokens`."""
    loaded = {}
    for name, section in sections.items():
        with _named(f"eval.sets.{name}"):
            loaded[name] = prepare_tokens(
                section, prepared.tokenizer, build=build, progress=progress
            )
    sets = {name: part.val for name, part in loaded.items()}
    extra = {"eval_sets": {name: part.manifest for name, part in loaded.items()}} if loaded else {}
    return replace(prepared, sets=prepared.sets | sets, manifest=prepared.manifest | extra)


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Put the key of an entry before its ValueError."""
    try:
        yield
    except ConfigError:  # names its key already
        raise
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _prepare_mixed(
    mixed: Mixed,
    tokenizer: TokenizerSection | Tokenizer,
    root: Path,
    *,
    build: Build,
    progress: Progress,
) -> Prepared:
    """Prepare each source separately in the tokens of one tokenizer; validation splits become
    sets.
    """
    if not isinstance(tokenizer, Tokenizer):
        with explained(root):
            tokenizer = _shared_tokenizer(mixed, tokenizer, root, build)
    chats = (part for part in mixed.sections.values() if isinstance(part, Chats))
    if len(templates := {Render.of(part).source(tokenizer) for part in chats}) == 1:
        tokenizer.stated[TEMPLATE] = templates.pop()  # saved with the model for its chats
    parts = {}
    for name, section in mixed.sections.items():
        with _named(f"data.sources.{name}"):
            parts[name] = prepare_tokens(section, tokenizer, build=build, progress=progress)
    stores: Any = {name: part.train for name, part in parts.items()}
    manifests = {name: part.manifest for name, part in parts.items()}
    trained = [manifest["splits"]["train"]["sha256"] for manifest in manifests.values()]
    vals: Any = {name: part.val for name, part in parts.items()}
    return Prepared(
        tokenizer=tokenizer,
        train=Mixture(stores=stores, phases=mixed.phases),
        val=Joined(tuple(vals.values())),
        manifest={
            "sources": manifests,
            "tokenizer": next(iter(manifests.values()))["tokenizer"],
            "splits": {"train": {"sha256": hash_json(trained)}},
        },
        sets={name: val for name, val in vals.items() if len(val)},
    )


def _shared_tokenizer(
    mixed: Mixed, section: TokenizerSection, root: Path, build: Build
) -> Tokenizer:
    """A tokenizer of the text of all sources, from the cache or made now."""
    corpora: dict[str, Corpus] = {}
    identity: dict[str, Any] = {"format": FORMAT, "tokenizer": identity_of(section), "corpora": []}
    for name, part in mixed.sections.items():
        if part.tokenized or part.streamed:
            continue
        with _named(f"data.sources.{name}"):
            corpus = _read(part, build)
            if not isinstance(corpus, Corpus):  # a user's own reader of tokens
                continue
            corpora[name] = corpus
            digest = fingerprint_of(corpora[name], root / "fingerprints")
            identity["corpora"].append([digest, part.held_out.identity])
    entry = root / "tokenizers" / hash_json(identity)[:16]

    def make(directory: Path) -> None:
        splits = []
        for name, corpus in corpora.items():
            with _named(f"data.sources.{name}"):
                splits.append(split_corpus(corpus, mixed.sections[name].held_out))
        text = TrainingText(splits=tuple(splits)) if splits else NoText()
        build(section, path="tokenizer", text=text).save(directory / "tokenizer")
        files = {name: hash_file(directory / name) for name in TOKENIZER_FILES}
        write_manifest(directory, {"identity": identity, "sha256": files})

    def read() -> Tokenizer:
        read_manifest(entry)
        return Tokenizer.load(entry / "tokenizer")

    return read_or_make(entry, read, make)


def fingerprint_of(corpus: Corpus, memo: Path) -> str:
    """Hash of a corpus. ValueError, naming all files with a fault."""
    try:
        return corpus.fingerprint(memo=memo)
    except BadFile:
        split_corpus(corpus, HeldOut())  # names the other bad files too
        raise


def identity_of(section: TokenizerSection | Tokenizer) -> dict[str, Any]:
    """All inputs of a tokenizer besides the text: options, and the content of its file."""
    if isinstance(section, Tokenizer):
        return {"fingerprint": section.fingerprint}
    identity = asdict(section)
    for name in ADDED:
        if not identity[name]:  # as without the option, to keep the hash of older shards
            del identity[name]
    if section.has_own_target:
        identity["_target_"] = section.schema_name
    if isinstance(section, Existing):
        for name in ("path", "name", "revision"):
            identity.pop(name, None)
        if isinstance(facts := section.facts(), Facts) and facts.file is not None:
            identity["file"] = hash_file(facts.file)
            identity |= {"begins": section.begin_token(facts), "ends": section.end_token(facts)}
    elif "path" in identity:
        path = Path(identity["path"]).expanduser()
        identity["path"] = hash_file(path) if path.is_file() else None
    return identity


def _in_place(
    source: TokenSource, data: Data, section: TokenizerSection | Tokenizer, build: Build
) -> Prepared:
    """Prepare a source of tokens without copying."""
    text = RandomText() if isinstance(data, Synthetic) else NoText()
    tokenizer = _without_text(section, build, text)
    train, val = source.splits(tokenizer, data.held_out.share)
    stores = {"train": train, "val": val}
    manifest = {
        "tokenizer": tokenizer_entry(tokenizer),
        "splits": {
            name: {"tokens": len(store), "sha256": store.fingerprint}
            for name, store in stores.items()
        },
        "source": source.source,
        "files": source.n_files,
    }
    return Prepared(tokenizer=tokenizer, train=train, val=val, manifest=manifest)


def _without_text(
    section: TokenizerSection | Tokenizer, build: Build, text: NoText | RandomText
) -> Tokenizer:
    if isinstance(section, Tokenizer):
        return section
    return build(section, path="tokenizer", text=text)


def _streamed(
    source: StreamSource,
    section: TokenizerSection | Tokenizer,
    borders: Mapping[str, bool],
    root: Path,
    *,
    build: Build,
    progress: Progress,
) -> Prepared:
    """Prepare a stream, read during training; its validation split is cached."""
    tokenizer = _without_text(section, build, NoText())
    if source.render is not None and not isinstance(section, Tokenizer):
        tokenizer.stated[TEMPLATE] = source.render.source(tokenizer)  # saved with the model
    bordered = tokenizer.with_borders(**borders)
    val, digests, held_manifest = Joined(()), frozenset(), {}
    if source.section.held_out:
        val, digests, held_manifest = hold_out(source, bordered, root, progress)
    train = source.tokens(bordered, digests)
    manifest = {
        "tokenizer": tokenizer_entry(tokenizer),
        "splits": {
            "train": {"parts": len(source.parts), "sha256": train.fingerprint},
            "val": {"tokens": len(val), "sha256": val.fingerprint},
        },
        "held_out": held_manifest,
        "source": source.source,
        "units": len(source.units.names),
    }
    return Prepared(tokenizer=tokenizer, train=train, val=val, manifest=manifest)


def tokenizer_entry(tokenizer: Tokenizer) -> dict[str, Any]:
    """The entry of a tokenizer in a manifest."""
    names = ("fingerprint", "vocab_size", "eos_token", "bos_token", "add_bos", "add_eos")
    return {name: getattr(tokenizer, name) for name in names}


def _open(entry: Path, corpus: Corpus) -> Prepared:
    manifest = read_manifest(entry)
    stores = {name: IndexedStore(entry / name) for name in SPLITS}
    for store in stores.values():
        store.verify()
    tokenizer = Tokenizer.load(entry / "tokenizer")
    manifest |= {"source": corpus.source, "files": len(corpus.files), "cache": str(entry)}
    train, val = (stores[name] for name in ("train", "val"))
    return Prepared(tokenizer=tokenizer, train=train, val=val, manifest=manifest)


def _make(
    corpus: Corpus,
    identity: dict[str, Any],
    data: Data,
    section: TokenizerSection | Tokenizer,
    build: Build,
    progress: Progress,
    directory: Path,
) -> None:
    started = time.perf_counter()
    progress("read the corpus", 0.0)
    split = split_corpus(corpus, data.held_out)
    progress("make the tokenizer", 0.0)
    tokenizer: Tokenizer = (
        section
        if isinstance(section, Tokenizer)
        else build(section, path="tokenizer", text=TrainingText(splits=(split,)))
    )
    trained = time.perf_counter()
    if corpus.render is not None and not isinstance(section, Tokenizer):
        # Saved with the model for its chats.
        tokenizer.stated[TEMPLATE] = corpus.render.source(tokenizer)
    tokenizer.save(directory / "tokenizer")

    def on_bytes(done: int) -> None:
        progress("tokenise", done / split.n_bytes)

    bordered = tokenizer.with_borders(**identity.get("borders", {}))
    indices = encode_splits(split, bordered, directory, on_bytes=on_bytes)
    seconds = time.perf_counter() - trained
    n_tokens = sum(index.n_tokens for index in indices.values())
    text = f"{split.n_bytes / 1e6:.1f} MB, tokenizer in {trained - started:.1f} s"
    speed = f"{n_tokens:,} tokens in {seconds:.1f} s ({n_tokens / 1e6 / seconds:.2f} M/s)"
    log.info("prepared %s: %s, %s", corpus.source, text, speed)
    manifest = {
        "identity": identity,
        "bytes": split.n_bytes,
        "split_unit": split.unit,
        "tokenizer": tokenizer_entry(tokenizer),
        "splits": split_facts(directory, indices),
        "tokenizers_version": versions()["tokenizers"],
        "sha256": {name: hash_file(directory / name) for name in _files_to_check(corpus)},
        **corpus.bad_rows.manifest(),
    }
    write_manifest(directory, manifest)


def _files_to_check(corpus: Corpus) -> list[str]:
    """Files of an entry whose hashes are in its manifest; shards have their own."""
    folders = [Path(name) for name in SPLITS]
    folders += [folder / COUNTED for folder in folders if corpus.masked]
    files = [*TOKENIZER_FILES, *(str(folder / INDEX_FILE) for folder in folders)]
    return [*files, *(f"{name}/{DOCUMENTS}" for name in SPLITS if corpus.together)]
