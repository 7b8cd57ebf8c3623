"""Batches of tokens and targets, in an order by seed and sample number alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from forge.config.data.batch_sizes import BatchSizes
from forge.config.data.seq_lens import SeqLens
from forge.data.batches.examples import Examples
from forge.data.batches.micro_batches import Batch, Collates, MicroBatches, Read
from forge.data.batches.mixture import Mixture, MixtureOrder
from forge.data.batches.packing import Plan
from forge.data.batches.samples import Pieces, Samples
from forge.data.batches.source import Step, StepSource
from forge.data.batches.streams import (
    Positions,
    Streamed,
    Unreadable,
    data_position,
    further,
    positions_of,
)
from forge.data.tokens.store import TokenStore
from forge.rundir.process_folders import share_folder


def count_samples(text: TokenStore | Streamed | Mixture, seq_len: int) -> int | None:
    """Samples of an epoch, for a mixture the sum over its sources; None with a streamed source.
    ValueError: a source has no sample.
    """
    return _total(_of_sources(Mixture.of(text), seq_len))


def _total(samples: Sequence[int | None]) -> int | None:
    numbers = [number for number in samples if number is not None]
    return sum(numbers) if len(numbers) == len(samples) else None


def _of_sources(mixture: Mixture, seq_len: int) -> list[int | None]:
    """Samples of each source: of its plan, else windows of seq_len + 1 tokens, seq_len apart; None
    for streams.
    """
    return [
        _planned(name, mixture.plans[name])
        if name in mixture.plans
        else None
        if isinstance(store, Streamed)
        else _windows(name, store, seq_len)
        for name, store in mixture.stores.items()
    ]


def _planned(name: str, plan: Plan) -> int:
    if not len(plan):
        if isinstance(plan, Examples):
            fault = f"data: no example of the training split{_of(name)} has a target"
            raise ValueError(f"{fault}. Give others, or set train.seq_len higher.")
        if plan.left_out:
            fault = f"all {plan.left_out:,} documents of the training split{_of(name)} are longer"
            hint = "Set train.seq_len higher, or data.too_long=split"
            raise ValueError(f"data.too_long: {fault} than train.seq_len, and left out. {hint}.")
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


class TrainLoader(StepSource):
    """An endless iterator of steps for one rank.

    A step is the next G samples, G = grad_accum_steps * num_ranks * batch_size, or by `sizes`; each
    micro-batch takes the next num_ranks * batch_size, and each rank its contiguous part. So the
    global batch depends on G only, and the whole state is the number of samples handed out and the
    positions of streams. rewrite: of each step, with the number of its first sample; None = as
    read.
    """

    rewrite: Callable[[Step, int], Step] | None = None

    def __init__(
        self,
        text: TokenStore | Streamed | Mixture,
        objective: Collates,
        *,
        seq_len: int,
        seed: int,
        batch_size: int,
        grad_accum_steps: int = 1,
        sizes: BatchSizes | None = None,
        seq_lens: SeqLens | None = None,
        shuffle: bool = True,
        num_ranks: int = 1,
        rank: int = 0,
        start_sample: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        overfit_batches: int = 0,
        end_of_text: int | None = None,
        noise: int | None = None,
        multiple: int = 0,
    ) -> None:
        """shuffle: whether the samples of a text are permuted. sizes: sequences of each step, if
        growing. seq_lens: tokens of the rows of each step, if these grow. overfit_batches: read
        the first N global batches over and over; 0 = off. end_of_text, multiple: as in `Samples`.
        noise: as in `MicroBatches`.

        ValueError: the split, or a source's split, has no sample.
        """
        assert 0 <= rank < num_ranks, (rank, num_ranks)
        self.samples = start_sample
        mixture = Mixture.of(text)
        samples = _of_sources(mixture, seq_len)
        self.sources, self.samples_per_epoch = tuple(mixture.stores), _total(samples)
        self._mixture, self._seq_len = mixture, seq_len
        self.streams = any(isinstance(store, Streamed) for store in mixture.stores.values())
        self._stride, self._num_ranks = num_ranks * batch_size, num_ranks
        self.sizes = sizes or BatchSizes.constant(grad_accum_steps * self._stride)
        phases = [(self.sizes.samples(phase.start_step), phase.weights) for phase in mixture.phases]
        self.order = MixtureOrder(samples, phases or [(0, [1.0])], seed=seed, shuffle=shuffle)
        self._dataset = MicroBatches(
            mixture,
            objective,
            seq_len=seq_len,
            order=self.order,
            batch_size=batch_size,
            repeat_samples=overfit_batches * self.sizes.last,
            rank=rank,
            num_ranks=num_ranks,
            end_of_text=end_of_text,
            noise=noise,
            multiple=multiple,
            seq_lens=seq_lens,
        )
        self._num_workers, self._prefetch_factor = num_workers, prefetch_factor
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._positions: dict[str, Positions] = {}
        self._stream: Iterator[Read | Unreadable] | None = None
        self.waited = 0.0  # seconds of waiting for steps; a caller may reset to 0

    @property
    def epoch(self) -> float | None:
        """Passes over the training split so far; None for a split of unknown length."""
        return self.samples / self.samples_per_epoch if self.samples_per_epoch else None

    def __iter__(self) -> TrainLoader:
        return self

    def __next__(self) -> Step:
        if self._stream is None:
            self._stream = self._open_stream()
        size = self.sizes.of_step_at(self.samples)
        begin = time.perf_counter()
        read = [self._next(self._stream) for _ in range(size // self._stride)]
        self.waited += time.perf_counter() - begin
        first, self.samples = self.samples, self.samples + size
        for micro_batch in read:
            self._positions = further(self._positions, micro_batch.positions)
        step = Step(
            batches=[micro_batch.batch for micro_batch in read],
            n_tokens=sum(micro_batch.n_tokens for micro_batch in read),
            n_targets=sum(micro_batch.n_targets for micro_batch in read),
            n_places=sum(micro_batch.n_places for micro_batch in read),
        )
        return step if self.rewrite is None else self.rewrite(step, first)

    @staticmethod
    def _next(stream: Iterator[Read | Unreadable]) -> Read:
        try:
            read = next(stream)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            fault = "a loader process was ended, most often because memory ran out"
            hint = "Lower it or data.prefetch_factor"
            raise ValueError(f"data.num_workers: {fault}. {hint}.") from error
        if isinstance(read, Unreadable):
            raise ValueError(str(read))
        return read

    def realised(self) -> dict[str, int]:
        """Numbers of samples handed out so far by source of a mixture."""
        if len(self.sources) == 1:
            return {}
        repeated = self._dataset.repeat_samples
        times, remainder = divmod(self.samples, repeated) if repeated else (0, self.samples)
        drawn = zip(self.order.drawn(repeated), self.order.drawn(remainder), strict=True)
        return dict(zip(self.sources, (times * all_ + some for all_, some in drawn), strict=True))

    def numbers(self, samples: int) -> dict[str, np.ndarray]:
        """Distinct numbers of the samples of each source, by name, among the first `samples` of the
        run. No source may be streamed.
        """
        epoch_samples, repeated = self.samples_per_epoch or 0, self._dataset.repeat_samples
        if len(self.sources) == 1 and samples >= epoch_samples and not repeated:
            return {self.sources[0]: np.arange(epoch_samples)}
        by_source: list[set[int]] = [set() for _ in self.sources]
        for sample in range(min(samples, repeated or samples)):
            source, number = self.order.find(sample)
            by_source[source].add(number)
        return {
            name: np.array(sorted(numbers), dtype=np.int64)
            for name, numbers in zip(self.sources, by_source, strict=True)
        }

    def tokens_of(self, name: str) -> float:
        """Tokens of a sample of a source; for packed documents the average over all samples."""
        plan = self._mixture.plans.get(name)
        return self._seq_len if plan is None else plan.n_tokens / len(plan)

    def range_of_last(self, steps: int) -> tuple[int, int]:
        """The first and the last sample of the last steps handed out."""
        first_step = max(int(self.sizes.steps(self.samples)) - steps, 0)
        return self.sizes.samples(first_step), self.samples - 1

    def state_dict(self) -> dict[str, Any]:
        """This rank's positions; `streams.joined` merges the states of all ranks."""
        return data_position(self.samples, self._positions)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the samples of `state`, on any number of ranks."""
        self.close()
        self.samples, self._positions = state["samples"], positions_of(state)

    def close(self) -> None:
        """End the loader processes; the next step starts new ones."""
        self._stream = None

    def _open_stream(self) -> Iterator[Read | Unreadable]:
        first_samples = count(self.samples, self._stride)
        self._dataset.go_on_from(self._positions)
        if self._num_workers == 0:
            stream = map(self._dataset.__getitem__, first_samples)
            return map(_pinned, stream) if self._pin_memory else stream
        share_folder()
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


def _pinned(read: Read | Unreadable) -> Read | Unreadable:
    if isinstance(read, Unreadable):
        return read
    return read._replace(batch={name: tensor.pin_memory() for name, tensor in read.batch.items()})


def _leave_signals_to_the_rank(worker: int) -> None:
    """Make a loader process ignore signals to all processes of a run, and end with its rank.

    A signal asks the rank to finish its step and save, with the help of the loader.
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


def spread_evenly(number: int, most: int) -> list[int]:
    """At most `most` of the first `number` integers, spread evenly; most: 0 = all."""
    count = min(most or number, number)
    return [row * number // count for row in range(count)]


def eval_batches(
    store: TokenStore,
    objective: Collates,
    *,
    seq_len: int,
    batch_size: int,
    sequences: int = 0,
    part: tuple[int, int] = (0, 1),
    end_of_text: int | None = None,
    plan: Plan | None = None,
    multiple: int = 0,
) -> Iterator[Batch]:
    """At most `sequences` sequences, spread evenly over a split, the same every time; 0 = all.

    A split has the order of its corpus, so its beginning alone may be the first of many folders.
    part: (i, n), the i-th of n shares of the rows; all shares have equally many batches of equally
    many rows, padded with samples of one token, without a target. The last batch may have fewer
    rows. end_of_text, multiple: as in `Samples`. plan: of sequences other than windows of the
    split.
    """
    last, (index, shares) = len(store) - 1, part
    rows = plan.rows if isinstance(plan, Examples) else 1
    windows = -(-last // seq_len) if plan is None else len(plan)
    numbers = spread_evenly(windows, sequences)
    count = len(numbers)
    for first in range(0, count, batch_size * shares):
        held = -(-min(batch_size * shares, count - first) // shares)
        start, end = first + index * held, min(first + batch_size * shares, count)

        def find(row: int, end: int = end) -> tuple[TokenStore, Pieces]:
            if plan is not None:
                nothing = [(last, last + 1)] * rows
                return store, plan.pieces_of(numbers[row]) if row < end else nothing
            first = numbers[row] * seq_len if row < end else last
            return store, [(first, min(first + seq_len + 1, last + 1))]

        yield objective.collate(
            Samples(
                seq_len=seq_len,
                numbers=range(start, start + held),
                find=find,
                masked=store.counted is not None,
                end_of_text=end_of_text,
                apart=isinstance(plan, Examples),
                multiple=multiple,
            )
        )
