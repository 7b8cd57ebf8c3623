"""The dataset of loader processes: micro-batches, each found by the number of its first sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from forge.config.data.seq_lens import SeqLens
from forge.data.batches.mixture import Mixture, MixtureOrder
from forge.data.batches.noise import noise_of
from forge.data.batches.samples import Pieces, Samples
from forge.data.batches.streams import Positions, Reader, Streamed, Unreadable, Window
from forge.data.tokens.store import TokenStore

Batch = dict[str, Tensor]
"""One micro-batch by field, [batch, ...] each; the model reads `tokens`, int64 [batch, seq]; other
fields depend on the objective.
"""


class Read(NamedTuple):
    """A micro-batch of one rank; the targets, tokens of text and places of all ranks in the same
    micro-batch; and the positions of streams after the micro-batch, by source.
    """

    batch: Batch
    n_targets: int
    n_tokens: int
    n_places: int
    positions: dict[str, Positions]


class Collates(Protocol):
    """Makes batches of samples: an objective. Pickled for loader processes."""

    def collate(self, samples: Samples, /) -> Batch: ...

    def count(self, samples: Samples, /) -> int: ...


class MicroBatches:
    """The dataset of loader processes: micro-batches by the number of their first sample."""

    def __init__(
        self,
        mixture: Mixture,
        objective: Collates,
        *,
        seq_len: int,
        order: MixtureOrder,
        batch_size: int,
        repeat_samples: int,
        rank: int,
        num_ranks: int,
        end_of_text: int | None,
        noise: int | None = None,
        multiple: int = 0,
        seq_lens: SeqLens | None = None,
    ) -> None:
        """noise: seed of the random bits of each place, for a model with dropout. multiple: as of
        `Samples`. seq_lens: tokens of the rows of each step; None = seq_len.
        """
        self.seq_lens = seq_lens
        self.mixture, self.names = mixture, tuple(mixture.stores)
        self.objective, self.seq_len, self.order = objective, seq_len, order
        self.end_of_text, self.noise, self.multiple = end_of_text, noise, multiple
        self.batch_size, self.rank, self.num_ranks = batch_size, rank, num_ranks
        self.repeat_samples = repeat_samples
        self.readers: dict[str, Reader] = {}

    def go_on_from(self, positions: Mapping[str, Positions]) -> None:
        """Read streams from `positions`, by source, or from the beginning. The reading process
        opens the streams.
        """
        self.readers = {
            name: Reader(store, seq_len=self.seq_len, seed=seed, positions=positions.get(name, {}))
            for (name, store), seed in zip(
                self.mixture.stores.items(), self.order.seeds, strict=True
            )
            if isinstance(store, Streamed)
        }

    def __getitem__(self, first_sample: int) -> Read | Unreadable:
        """The batch of this rank, and the numbers of targets, tokens and places of all ranks,
        computed on each rank alone. first_sample: of all ranks. A fault of the text is returned,
        not raised: raising would report the fault twice.
        """
        local_samples = self._samples(first_sample + self.rank * self.batch_size, self.batch_size)
        global_samples = local_samples
        if self.num_ranks > 1:
            global_samples = self._samples(first_sample, self.num_ranks * self.batch_size)
        try:
            batch, n_targets = (
                self.objective.collate(local_samples),
                self.objective.count(global_samples),
            )
            if len(self.names) > 1:
                batch["sources"] = self._sources(local_samples, rows=len(batch["tokens"]))
            if self.noise is not None:
                rows, seq_len = batch["tokens"].shape
                first, rows_per_sample = local_samples.numbers[0], rows // len(local_samples)
                numbers = range(first * rows_per_sample, first * rows_per_sample + rows)
                batch["noise"] = noise_of(self.noise, numbers, seq_len)
            n_tokens = n_places = self.num_ranks * batch["tokens"].numel()
            if self.mixture.packed:
                n_tokens = global_samples.n_tokens
            if self.mixture.packed and self.multiple:  # each rank's rows end with its longest row
                starts = range(first_sample, first_sample + len(global_samples), self.batch_size)
                n_places = sum(self._samples(start, self.batch_size).n_places for start in starts)
            if self.seq_lens is not None:
                batch = in_rows_of(self.seq_lens.of_sample(first_sample), batch)
            positions = {name: reader.finish() for name, reader in self.readers.items()}
        except Unreadable as error:
            return error
        return Read(batch, n_targets, n_tokens, n_places, positions)

    def _sources(self, samples: Samples, rows: int) -> Tensor:
        """The source of each row: uint8 [rows, sources], with a single 1 in each row."""
        sources = torch.tensor([self.order.draw(self._read(n))[0] for n in samples.numbers])
        row_sources = sources.repeat_interleave(rows // len(samples))
        return torch.nn.functional.one_hot(row_sources, len(self.names)).to(torch.uint8)

    def _samples(self, first: int, number: int) -> Samples:
        return Samples(
            seq_len=self.seq_len,
            numbers=range(first, first + number),
            find=self._find,
            masked=self.mixture.masked,
            end_of_text=self.end_of_text,
            apart=self.mixture.apart,
            multiple=self.multiple,
            packed=self.mixture.packed,
        )

    def _read(self, sample: int) -> int:
        """The sample read in place of `sample`, where the first ones repeat over and over."""
        return sample % self.repeat_samples if self.repeat_samples else sample

    def _find(self, sample: int) -> tuple[TokenStore, Pieces]:
        """The store of a sample, and the sample's pieces in the store."""
        source, number = self.order.find(self._read(sample))
        name = self.names[source]
        store = self.mixture.stores[name]
        if isinstance(store, Streamed):
            window = Window(self.readers[name], number)
            return window, window.pieces
        if name in self.mixture.plans:
            return store, self.mixture.plans[name].pieces_of(number)
        start = number * self.seq_len
        return store, [(start, start + self.seq_len + 1)]


def in_rows_of(length: int, batch: Batch) -> Batch:
    """Cut the rows of a batch into rows of `length` tokens; each target stays with its token.

    A row sees nothing of the rows before: a document continues in the next row as a new text.
    """
    seq_len = batch["tokens"].shape[1]
    if length == seq_len:
        return batch
    cut = {}
    for name, tensor in batch.items():
        if name == "sources":  # of whole rows
            cut[name] = tensor.repeat_interleave(seq_len // length, dim=0)
            continue
        if tensor.ndim < 2 or tensor.shape[1] != seq_len:
            shape = list(tensor.shape)
            fault = f"the objective's {name} {shape} are not of the {seq_len} tokens of each row"
            raise ValueError(f"train.seq_len_stages: {fault}.")
        cut[name] = tensor.reshape(-1, length, *tensor.shape[2:])
    if "documents" in cut:  # numbered from the first of the row
        cut["documents"] = cut["documents"] - cut["documents"][:, :1]
    return cut
