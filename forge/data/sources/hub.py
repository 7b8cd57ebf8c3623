"""Datasets of the `datasets` library, loaded whole as corpora, or streamed."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from forge.config.data.text import Dataset, HuggingFace
from forge.data.sources.hub_stream import (
    FIELD,
    RowKind,
    StreamSource,
    no_column,
    reason_of,
    stream,
    text_row,
)
from forge.data.text.bad_rows import BadRows
from forge.data.text.conversation import Conversation
from forge.data.text.corpus import Corpus
from forge.data.text.reading import UNPACKED, Document, Example
from forge.data.text.rows import row_text
from forge.data.tokens.cache import cache_root

ROWS_AT_ONCE = 1000
BUILDERS = {".jsonl": "json", ".ndjson": "json", ".tsv": "csv", ".txt": "text"}


@dataclass(frozen=True, kw_only=True)
class Rows(Corpus):
    """The rows of a table. Its one file is a name for messages."""

    table: Any
    text_field: str

    @property
    def n_bytes(self) -> int:
        return self.table.select_columns([self.text_field]).data.nbytes

    def fingerprint(self, memo: Path | None = None) -> str:
        """Hash of the texts, independent of the library's files."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self.reader.encode())
        for document in self.documents():
            assert not isinstance(document, Conversation | Example)
            for text in document:
                encoded = text.encode()
                digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()


def dataset(section: HuggingFace) -> Corpus | StreamSource:
    """A document for each row of a split, or a stream of rows; a fully held-out dataset is not
    streamed. ValueError, naming the key: the dataset cannot be loaded, or lacks the column.
    """
    streaming = is_streamed(section)
    parts = section.stream_parts if streaming else 0
    table, field = load_split(section, parts=parts), section.text_field
    if streaming:
        convert = partial(text_row, field)
        most_bad = BadRows.of(section).most
        kind = RowKind(name=field, convert=convert, fields=((field, FIELD),), most_bad=most_bad)
        return stream(section, table, kind)
    source = section.path or section.hf_dataset_name
    if field not in table.column_names:
        raise ValueError(no_column(source, field, table.column_names))

    bad = BadRows.of(section)

    def read(name: Path) -> Iterator[Document]:
        bad.begin(name)
        number = 0
        for batch in table.select_columns([field]).iter(ROWS_AT_ONCE):
            for text in batch[field]:
                number += 1
                with bad.row(where := f"{name} row {number}"):
                    yield iter((row_text(where, {field: text}, field, option=FIELD),))

    return Rows(
        name="hf",
        source=source,
        files=(Path(source),),
        reader=f"hf:{field}",
        read=read,
        table=table,
        text_field=field,
        bad_rows=bad,
    )


def is_streamed(section: Any) -> bool:
    """Whether rows are read while training: not those held out in full."""
    return section.streamed and section.held_out.share < 1


def load_split(section: Dataset, *, parts: int = 0) -> Any:
    """Load the split of a dataset. parts: of a stream; 0 = a table. ValueError: cannot be
    loaded.
    """
    import datasets
    from datasets.utils.logging import CRITICAL, disable_progress_bar, set_verbosity

    disable_progress_bar()
    if parts:
        set_verbosity(CRITICAL)  # faults are raised too
    source, split, path = section.hf_dataset_name, section.hf_dataset_split, Path(section.path)
    key = "data.hf_dataset_name"
    files: Any = {"data_files": section.hf_data_files} if section.hf_data_files else {}
    if section.path:
        source, key = section.path, "data.path"
    try:
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return _saved(source, split, parts)
        is_glob = bool(path.suffix) and glob.has_magic(section.path) and not path.exists()
        if section.path and (path.is_file() or is_glob):
            kind = path.suffixes[-2 if path.suffix in UNPACKED else -1]
            source, files = BUILDERS.get(kind, kind[1:]), {"data_files": section.path}
        return datasets.load_dataset(
            source,
            section.hf_dataset_config,
            split=split,
            data_dir=section.hf_data_dir,
            cache_dir=str(cache_root(section.cache_dir) / "huggingface"),
            streaming=parts > 0,
            **files,
        )
    except Exception as error:  # the library raises its own, of many kinds
        hint = "Check its name, data.hf_dataset_config and data.hf_dataset_split"
        offline = isinstance(error, ConnectionError) or os.environ.get("HF_HUB_OFFLINE")
        if offline and not section.path:
            hint += "; without a network give a copy on this machine, data.path=my/dataset"
        where = section.path or section.hf_dataset_name
        raise ValueError(f"{key} = {where}: {reason_of(error)}. {hint}.") from error


def _saved(folder: str, split: str, parts: int) -> Any:
    """The split of a dataset that save_to_disk wrote; parts: as in `load_split`."""
    import datasets

    saved = datasets.load_from_disk(folder)
    if isinstance(saved, datasets.DatasetDict):
        if split not in saved:
            names = ", ".join(map(str, saved))
            raise ValueError(f"its splits are {names}, and not {split}")
        saved = saved[split]
    shards = min(parts, max(len(saved), 1))
    return saved.to_iterable_dataset(num_shards=shards) if parts else saved
