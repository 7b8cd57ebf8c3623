"""Batches of tokens and targets, in an order that depends on seed and sample number alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from forge.config.batch_sizes import BatchSizes
from forge.data.mixture import Mixture, MixtureOrder
from forge.data.packing import Plan
from forge.data.samples import Pieces, Samples
from forge.data.store import TokenStore

Batch = dict[str, Tensor]
"""One micro-batch by field, [batch, ...] each; `tokens`, int64 [batch, seq], are what a model
reads, and the objective that made it says what others there are.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one rank reads in one update. n_tokens, n_targets: tokens read, and targets that count,
    of all ranks.
    """

    batches: list[Batch]
    n_tokens: int
    n_targets: int


class Collates(Protocol):
    """What makes batches: an objective. It is sent to loader processes."""

    def collate(self, samples: Samples, /) -> Batch: ...

    def count(self, samples: Samples, /) -> int: ...


def count_samples(text: TokenStore | Mixture, seq_len: int) -> int:
    """Samples of an epoch, in which a mixture has as many as all of its sources. ValueError: a
    source has none.
    """
    return sum(_of_sources(Mixture.of(text), seq_len))


def _of_sources(mixture: Mixture, seq_len: int) -> list[int]:
    """Samples of each source: those of its plan, else windows of seq_len + 1 tokens, seq_len
    apart.
    """
    return [
        _planned(name, mixture.plans[name])
        if name in mixture.plans
        else _windows(name, store, seq_len)
        for name, store in mixture.stores.items()
    ]


def _planned(name: str, plan: Plan) -> int:
    if not len(plan):
        raise ValueError(
            f"data.packing: no document of the training split{_of(name)} has two tokens, so there "
            "is nothing to predict. Give other text, or another tokenizer."
        )
    return len(plan)


def _windows(name: str, store: TokenStore, seq_len: int) -> int:
    if len(store) <= seq_len:
        raise ValueError(
            f"train.seq_len = {seq_len}: the training split{_of(name)} has {len(store):,} tokens, "
            f"less than one sample of seq_len + 1. Set train.seq_len={max(len(store) - 1, 1)} or "
            "less, or give more text."
        )
    return (len(store) - 1) // seq_len


def _of(name: str) -> str:
    return f" of data.sources.{name}" if name else ""


class _MicroBatches:
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
    ) -> None:
        self.mixture, self.names = mixture, tuple(mixture.stores)
        self.objective, self.seq_len, self.order = objective, seq_len, order
        self.end_of_text = end_of_text
        self.batch_size, self.rank, self.num_ranks = batch_size, rank, num_ranks
        self.repeat_samples = repeat_samples

    def __getitem__(self, first_sample: int) -> tuple[Batch, int]:
        """The batch of this rank; and the number of targets of all ranks, which each finds by
        itself. first_sample: of all ranks.
        """
        own = self._samples(first_sample + self.rank * self.batch_size, self.batch_size)
        of_all = self._samples(first_sample, self.num_ranks * self.batch_size)
        batch = self.objective.collate(own)
        if len(self.names) > 1:
            batch["sources"] = self._sources(own, rows=len(batch["tokens"]))
        return batch, self.objective.count(of_all)

    def _sources(self, samples: Samples, rows: int) -> Tensor:
        """Of which source each row is: uint8 [rows, sources], with a single 1 in each row."""
        sources = torch.tensor([self.order.find(self._read(n))[0] for n in samples.numbers])
        each = sources.repeat_interleave(rows // len(samples))
        return torch.nn.functional.one_hot(each, len(self.names)).to(torch.uint8)

    def _samples(self, first: int, number: int) -> Samples:
        return Samples(
            seq_len=self.seq_len,
            numbers=range(first, first + number),
            find=self._find,
            masked=self.mixture.masked,
            end_of_text=self.end_of_text,
        )

    def _read(self, sample: int) -> int:
        """The sample that is read in its place, where the first ones are read over and over."""
        return sample % self.repeat_samples if self.repeat_samples else sample

    def _find(self, sample: int) -> tuple[TokenStore, Pieces]:
        """The store of a sample, and what it is made of there."""
        source, number = self.order.find(self._read(sample))
        name = self.names[source]
        if name in self.mixture.plans:
            return self.mixture.stores[name], self.mixture.plans[name].pieces_of(number)
        start = number * self.seq_len
        return self.mixture.stores[name], [(start, start + self.seq_len + 1)]


class TrainLoader:
    """An endless iterator of steps for one rank.

    A step is the next G samples, G = grad_accum_steps * num_ranks * batch_size, or as `sizes` has
    it; each micro-batch takes the next num_ranks * batch_size, and each rank its contiguous part.
    So the global batch depends on G only, and the whole state is the number of samples handed out.
    """

    def __init__(
        self,
        text: TokenStore | Mixture,
        objective: Collates,
        *,
        seq_len: int,
        seed: int,
        batch_size: int,
        grad_accum_steps: int = 1,
        sizes: BatchSizes | None = None,
        shuffle: bool = True,
        num_ranks: int = 1,
        rank: int = 0,
        start_sample: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        overfit_batches: int = 0,
        end_of_text: int | None = None,
    ) -> None:
        """shuffle: whether the samples of a text are permuted. sizes: sequences of each step, where
        they grow. overfit_batches: read the first N global batches over and over; 0 = off.
        end_of_text: as of `Samples`.

        ValueError: the split, or that of a source, has no sample.
        """
        assert 0 <= rank < num_ranks, (rank, num_ranks)
        self.samples = start_sample
        mixture = Mixture.of(text)
        samples = _of_sources(mixture, seq_len)
        self.sources, self.samples_per_epoch = tuple(mixture.stores), sum(samples)
        self._stride, self._num_ranks = num_ranks * batch_size, num_ranks
        self.sizes = sizes or BatchSizes.constant(grad_accum_steps * self._stride)
        phases = [(self.sizes.samples(one.start_step), one.weights) for one in mixture.phases]
        self.order = MixtureOrder(samples, phases or [(0, [1.0])], seed=seed, shuffle=shuffle)
        self._dataset = _MicroBatches(
            mixture,
            objective,
            seq_len=seq_len,
            order=self.order,
            batch_size=batch_size,
            repeat_samples=overfit_batches * self.sizes.last,
            rank=rank,
            num_ranks=num_ranks,
            end_of_text=end_of_text,
        )
        self._num_workers = num_workers
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._prefetch_factor = prefetch_factor
        self._stream: Iterator[tuple[Batch, int]] | None = None
        self.waited = 0.0  # seconds in which steps were waited for, since somebody set it to 0

    @property
    def epoch(self) -> float:
        """Passes over the training split so far."""
        return self.samples / self.samples_per_epoch

    def __iter__(self) -> TrainLoader:
        return self

    def __next__(self) -> Step:
        if self._stream is None:
            self._stream = self._open_stream()
        size = self.sizes.of_step_at(self.samples)
        begin = time.perf_counter()
        read = [next(self._stream) for _ in range(size // self._stride)]
        self.waited += time.perf_counter() - begin
        self.samples += size
        batches = [batch for batch, _ in read]
        return Step(
            batches=batches,
            n_tokens=self._num_ranks * sum(batch["tokens"].numel() for batch in batches),
            n_targets=sum(count for _, count in read),
        )

    def realised(self) -> dict[str, int]:
        """How many of the samples handed out so far are of each source of a mixture, by name."""
        if len(self.sources) == 1:
            return {}
        repeated = self._dataset.repeat_samples
        times, rest = divmod(self.samples, repeated) if repeated else (0, self.samples)
        drawn = zip(self.order.drawn(repeated), self.order.drawn(rest), strict=True)
        return dict(zip(self.sources, (times * all_ + some for all_, some in drawn), strict=True))

    def range_of_last(self, steps: int) -> tuple[int, int]:
        """The first and the last sample of the last steps handed out."""
        before = max(int(self.sizes.steps(self.samples)) - steps, 0)
        return self.sizes.samples(before), self.samples - 1

    def state_dict(self) -> dict[str, int]:
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind the samples of `state`, on any number of ranks."""
        self.close()
        self.samples = state["samples"]

    def close(self) -> None:
        """End the loader processes; the next step starts new ones."""
        self._stream = None

    def _open_stream(self) -> Iterator[tuple[Batch, int]]:
        first_samples = count(self.samples, self._stride)
        if self._num_workers == 0:
            stream = map(self._dataset.__getitem__, first_samples)
            return map(_pinned, stream) if self._pin_memory else stream
        loader = DataLoader(
            self._dataset,  # pyright: ignore[reportArgumentType]
            sampler=first_samples,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=self._num_workers,
            prefetch_factor=self._prefetch_factor,
            pin_memory=self._pin_memory,
            worker_init_fn=_leave_signals_to_the_rank,
        )
        return iter(loader)


def _pinned(read: tuple[Batch, int]) -> tuple[Batch, int]:
    batch, n_targets = read
    return {name: tensor.pin_memory() for name, tensor in batch.items()}, n_targets


def _leave_signals_to_the_rank(worker: int) -> None:
    """Let a loader process ignore signals to all processes of a run, and end with its rank.

    Such a signal asks the rank to finish its step and save, for which it needs the loader.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # torch itself looks every 5 seconds
    numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
    if not hasattr(signal, "sigwaitinfo"):  # macOS: get nothing that is sent to the group
        os.setpgrp()
        return
    rank = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def wait() -> None:
        while signal.sigwaitinfo(numbers).si_pid != rank:
            pass
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def eval_batches(
    store: TokenStore,
    objective: Collates,
    *,
    seq_len: int,
    batch_size: int,
    sequences: int = 0,
    part: tuple[int, int] = (0, 1),
    end_of_text: int | None = None,
) -> Iterator[Batch]:
    """At most `sequences` sequences, spread evenly over a split, the same every time; 0 = all.

    A split has the order of its corpus, so its beginning alone may be the first of many folders.
    part: (i, n), the i-th of n shares of the rows; all shares have equally many batches of equally
    many rows, some with samples of one token, which have no target. The last batch may have fewer
    rows. end_of_text: as of `Samples`.
    """
    last, (index, shares) = len(store) - 1, part
    windows = -(-last // seq_len)
    count = min(sequences or windows, windows)
    for first in range(0, count, batch_size * shares):
        held = -(-min(batch_size * shares, count - first) // shares)
        start, end = first + index * held, min(first + batch_size * shares, count)

        def find(row: int, end: int = end) -> tuple[TokenStore, Pieces]:
            first = row * windows // count * seq_len if row < end else last
            return store, [(first, min(first + seq_len + 1, last + 1))]

        yield objective.collate(
            Samples(
                seq_len=seq_len,
                numbers=range(start, start + held),
                find=find,
                masked=store.counted is not None,
                end_of_text=end_of_text,
            )
        )
