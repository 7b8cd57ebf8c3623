"""The `data` group: sources, splits and loading of text."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from forge.config.field import Condition, Section, opt, section

BORDERS = ("add_bos", "add_eos")
TEXT_FIELD = "field or column of the text, in rows of JSON, CSV, Parquet or a dataset"
OF_BAD_ROWS = ("on_bad_row", "max_bad_rows")
BEST_FIT_CROP, BEST_FIT_PAD = BUFFERED = ("best_fit_crop", "best_fit_pad")
"""Policies of data.packing that choose among the documents of a buffer."""
CHOOSES = Condition(
    lambda config, ranks: config.data.packing in BUFFERED,
    "with data.packing=best_fit_crop or best_fit_pad",
)


@dataclass(frozen=True)
class HeldOut:
    """Part of a text kept for validation: a share, where 1 is the whole text, or a number of
    documents, or of the last files.
    """

    share: float = 0.0
    documents: int = 0
    files: int = 0

    def __bool__(self) -> bool:
        return bool(self.share or self.documents or self.files)

    @property
    def identity(self) -> dict[str, float]:
        """The part in words of a cache, without `files` where it is 0, as in older entries."""
        stated: dict[str, float] = {"share": self.share, "documents": self.documents}
        return stated | ({"files": self.files} if self.files else {})


@section
class Data(Section):
    """What every corpus has: a validation split, a cache and a loader."""

    # a fitting text to continue; empty = the beginning of a validation document
    prompt = ""
    examples = ""  # compared examples: "pairs" of responses, "labels"; "" = running text
    tokenized = False  # whether the corpus is tokens already: no tokenizer can learn from it
    mixes = False  # whether the section mixes several corpora
    place = "data"  # the config path of the reader
    marks_responses = False  # whether the data mark learnt tokens
    val_files = 0  # the last files that are held out
    streamed = False  # whether the corpus is read during training: its length is unknown
    _target_: str = MISSING
    val_fraction: float = opt(
        0.05, "share of documents held out for validation, chosen by a hash; 0 = none", ge=0, lt=1
    )
    val_documents: int = opt(
        0, "number of documents to hold out instead, those with the lowest hashes; 0 = off", ge=0
    )
    validation: dict[str, Any] = opt(
        {},
        "other text to validate on, with options of data: {path: val.jsonl}; the corpus is "
        "then trained on whole",
    )
    cache_dir: str | None = opt(
        None,
        "cache of tokenizers and shards; null = $FORGE_CACHE, else ~/.cache/forge",
        free=True,
        path=True,
    )
    num_workers: int = opt(4, "loader processes; 0 = load in the training process", ge=0, free=True)
    pin_memory: bool = opt(True, "page-locked batches, which copy faster to a GPU", free=True)
    prefetch_factor: int = opt(2, "batches each loader process keeps ready", ge=1, free=True)
    shuffle: bool = opt(
        True, "read samples in a new order each epoch; false = in the order of the corpus"
    )
    shuffle_seed: int | None = opt(None, "seed of that order; null = seed", ge=0)
    overfit_batches: int = opt(
        0, "train on the first N global batches over and over; 0 = off", ge=0
    )
    pack_sequences: bool = opt(
        False,
        "keep documents that share a sequence apart: attention, positions and targets end at "
        "their borders",
    )
    packing: str = opt(
        "concat_then_split",
        "concat_then_split: cut the text every seq_len tokens; first_fit, best_fit, next_fit:"
        " put whole documents into the first sequence with room, the fullest, or the current "
        "one; none: one document a sequence; best_fit_crop: fill each with the largest that fits, "
        "then with the beginning of the shortest, as nanochat; best_fit_pad: then with padding",
        choices=("concat_then_split", "first_fit", "best_fit", "next_fit", "none", *BUFFERED),
    )
    packing_buffer: int = opt(
        1000,
        "documents that best_fit_crop and best_fit_pad choose among",
        gt=0,
        acts_when=CHOOSES,
    )
    too_long: str = opt(
        "split",
        "documents longer than a sequence, where sequences hold whole documents: divide, cut "
        "off the end, leave out, or refuse",
        choices=("split", "truncate", "drop", "refuse"),
    )
    pad_to_multiple_of: int = opt(
        -1,
        "pad rows of a micro-batch to its longest, rounded up to a multiple of this (one "
        "document or example a row); 0 = to train.seq_len; -1 = 8, or seq_len / 4 with "
        "train.compile_model",
        ge=-1,
        free=True,
    )
    max_segments_per_seq: int = opt(
        -1, "documents that share a sequence at most; -1 or 0 = any number", ge=-1
    )

    @property
    def reader(self) -> Any:
        """The section or options the reader is built from."""
        return self

    @property
    def held_out(self) -> HeldOut:
        """The part of this text kept for validation."""
        if self.validation:
            return HeldOut()
        if self.val_files and self.val_fraction < 1:
            return HeldOut(files=self.val_files)
        return HeldOut(0.0 if self.val_documents else self.val_fraction, self.val_documents)

    def borders(self, tokenizer: Any) -> dict[str, bool]:
        """add_bos and add_eos, where documents begin or end otherwise than the tokenizer, or its
        section, states.
        """
        return {}

    @property
    def validates(self) -> bool:
        """Whether the data have a validation split."""
        return bool(self.validation or self.held_out)


SKIPS = Condition(
    lambda config, ranks: getattr(config.data, "on_bad_row", "") == "skip",
    "with data.on_bad_row=refuse",
)


@section
class Documents(Section):
    """What a corpus of text says of its documents, beside the options of `Data`."""

    forges_own = (*BORDERS, "val_files", *OF_BAD_ROWS)
    add_bos: bool | None = opt(
        None, "begin every document with tokenizer.bos_token; null = as tokenizer.add_bos"
    )
    add_eos: bool | None = opt(
        None, "end every document with tokenizer.eos_token; null = as tokenizer.add_eos"
    )

    def borders(self, tokenizer: Any) -> dict[str, bool]:
        options = {"add_bos": self.add_bos, "add_eos": self.add_eos}
        stated = {name: value for name, value in options.items() if value is not None}
        return {name: value for name, value in stated.items() if value != getattr(tokenizer, name)}


@section
class PythonSource(Documents, Data):
    """The source files of the Python standard library on this machine."""

    schema_name = "python"
    prompt = "def"
    _target_: str = "forge.data.text.corpus.python_source"


@section
class PythonDocs(Documents, Data):
    """English of the Python standard library on this machine: its help topics and docstrings."""

    schema_name = "python_docs"
    prompt = "The"
    _target_: str = "forge.data.text.corpus.python_docs"


@section
class Files(Data):
    """Base of corpora of files of your own."""

    path: str = opt(
        "",
        "file, directory or glob of .txt, .md, .py, .jsonl, .json, .csv, .tsv, .parquet, ...",
        path=True,
        not_swept="for one run over several files a directory that holds them, "
        "or a glob such as 'data.path=texts/*.txt'",
    )


@section
class Rows(Section):
    """What a corpus of rows says of those that cannot be read, beside the options of `Data`."""

    forges_own = OF_BAD_ROWS
    on_bad_row: str = opt(
        "refuse",
        "a row that cannot be read (no JSON, no such field, no text): refuse it, or skip and "
        "count it",
        choices=("refuse", "skip"),
    )
    max_bad_rows: int = opt(
        100,
        "most rows that data.on_bad_row=skip leaves out; beyond it the data are refused",
        ge=0,
        free=True,
        acts_when=SKIPS,
    )


@section
class ByFile(Section):
    """What a corpus that is read file by file says of its files, beside the options of `Data`."""

    val_files: int = opt(
        0,
        "hold out the last files instead, by name: 1 = the last shard, as nanochat does; 0 = off",
        ge=0,
    )


STREAM_OPTIONS = ("hf_streaming", "stream_parts", "shuffle_buffer", "val_from_first")
STREAMED = Condition(
    lambda config, ranks: config.data.hf_streaming, "without data.hf_streaming=true"
)


@section
class Streams(Section):
    """What rows that can be read while training say of it, beside the options of `Data`."""

    hf_streaming: bool = opt(
        False,
        "read, tokenise and cut during training, in the loader processes; nothing is prepared",
    )
    stream_parts: int = opt(
        64,
        "parts that a stream is read in side by side, at most as many as its files or row groups; "
        "each is read once where this is a multiple of micro-batch x ranks x loader processes, "
        "else by several processes",
        gt=0,
        acts_when=STREAMED,
    )
    shuffle_buffer: int = opt(
        1000,
        "documents that are shuffled at a time in each part of a stream; 1 = as they come",
        gt=0,
        acts_when=STREAMED,
    )
    val_from_first: int = opt(
        10_000,
        "number of first documents of a stream from which validation is held out",
        gt=1,
        acts_when=STREAMED,
    )

    @property
    def streamed(self) -> bool:
        return self.hf_streaming


def unstreamed(kind: type[Data], option: str) -> tuple[str, str] | None:
    """The reason why some data with responses take no option of streams, and what to do; None for
    other options, and for running text.
    """
    responses = kind.examples or (kind.marks_responses is True and not kind.tokenized)
    if option not in STREAM_OPTIONS or not responses or issubclass(kind, Streams):
        return None
    streamed = "text, and rows of data=chat, sharegpt, alpaca, pairs, preference and labelled"
    message = f"{streamed} are streamed; these rows are prepared."
    hint = "leave it out: rows are tokenised once, and later starts read them from data.cache_dir"
    prepare_hint = "; python -m forge.prepare does so beforehand, for data=shards"
    return message, hint + ("" if kind.examples else prepare_hint)


@section
class Text(Documents, Rows, ByFile, Files):
    """Your own text: plain files, or rows of JSON, CSV or Parquet."""

    schema_name = "text"
    _target_: str = "forge.data.text.corpus.text_files"
    text_field: str = opt("text", TEXT_FIELD)


@section
class Pairs(Streams, Documents, Rows, ByFile, Files):
    """Prompts and responses in JSON lines; the tokens of responses are the targets."""

    schema_name = "pairs"
    marks_responses = True
    _target_: str = "forge.data.sources.pairs.pairs"
    prompt_field: str = opt("prompt", "field of the prompt")
    response_field: str = opt("response", "field of the response, which is learned")


@section
class Shards(Files):
    """Token shards that were made elsewhere, read in place; or those of forge.prepare."""

    schema_name = "shards"
    tokenized = True
    marks_responses = True  # of shards by forge.prepare from data with responses
    _target_: str = "forge.data.tokens.tokens.shards"
    path: str = opt("", "directory of token shards, or one; also s3://", path=True, address=True)
    file_pattern: str | None = opt(
        None, "glob of shards inside the directory; null = all of it that is .npy or .bin"
    )
    dtype: str | None = opt(
        None,
        "token type of files that do not state it, with no sidecar FILE.json or index.json",
        choices=("uint16", "uint32", "int32"),
    )
    val_fraction: float = opt(
        0.05,
        "share held out for validation: the last tokens; what forge.prepare made has its own "
        "split; 0 = none",
        ge=0,
        lt=1,
    )

    @property
    def is_prepared(self) -> bool:
        """Whether the directory has two splits of forge.prepare."""
        return self.file_pattern is None and all(
            os.path.isfile(os.path.join(self.path, split, "index.json"))
            for split in ("train", "val")
        )

    @property
    def is_indexed(self) -> bool:
        """Whether the directory is a split of forge.prepare."""
        index = os.path.join(self.path, "index.json")
        return self.file_pattern is None and os.path.isfile(index)

    def files(self) -> list[str]:
        """The shards, ordered by name."""
        return [name for name in self.names() if os.path.isfile(name)]

    def names(self) -> list[str]:
        """Paths of the shards by name, with folders and broken links too."""
        if not os.path.isdir(self.path):
            return sorted(glob.glob(self.path))
        root = os.path.join(glob.escape(self.path), "*" if self.is_prepared else "")
        patterns = ("*.npy", "*.bin") if self.file_pattern is None else (self.file_pattern,)
        names = {n for p in patterns for n in glob.glob(os.path.join(root, p), recursive=True)}
        return sorted(names)


@section
class Synthetic(Data):
    """Random tokens, for tests of speed."""

    schema_name = "synthetic"
    tokenized = True
    _target_: str = "forge.data.tokens.tokens.synthetic"
    tokens: int = opt(1 << 30, "tokens of the corpus, of which none are kept", ge=64)
    seed: int = opt(0, "seed of the tokens", ge=0)
    val_fraction: float = opt(
        0.05, "share held out for validation: the last tokens; 0 = none", ge=0, lt=1
    )


@section
class Dataset(Data):
    """Base of what the `datasets` library loads, of the hub or of this machine."""

    path: str = opt(
        "",
        "a dataset on this machine: a directory, also of save_to_disk, a file or a glob",
        path=True,
    )
    hf_dataset_name: str = opt("", "id of a dataset on the hub, such as roneneldan/TinyStories")
    hf_dataset_config: str | None = opt(None, "configuration of the dataset; null = the only one")
    hf_dataset_split: str = opt("train", "split of the dataset, or a part of one: train[:10%]")
    hf_data_dir: str | None = opt(None, "a directory inside the dataset; null = all of it")
    hf_data_files: str | None = opt(None, "files, or a glob of them, inside; null = all")


@section
class HuggingFace(Streams, Documents, Rows, ByFile, Dataset):
    """A dataset that the `datasets` library loads, of the hub or of this machine."""

    schema_name = "hf"
    _target_: str = "forge.data.sources.hub.dataset"
    text_field: str = opt("text", TEXT_FIELD)
