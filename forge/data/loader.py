"""Batches of tokens and targets, in an order that depends on seed and sample number alone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from forge.data import IGNORE_INDEX
from forge.data.order import SampleOrder
from forge.data.shards import TokenStore

Batch = dict[str, Tensor]
"""One micro-batch, [batch, ...] each. Of text: int64 [batch, seq] `tokens` and `targets`;
targets[b, t] is the token after tokens[b, t], or IGNORE_INDEX.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one rank reads in one update. n_tokens, n_targets: tokens read, and targets that are not
    IGNORE_INDEX, of all ranks.
    """

    batches: list[Batch]
    n_tokens: int
    n_targets: int


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalBatch:
    """A batch of the validation split; targets behind its end are IGNORE_INDEX.

    n_targets: targets that count. n_bytes: bytes of text that they stand for, if asked for.
    """

    tokens: Tensor
    targets: Tensor
    n_targets: int
    n_bytes: int | None


def count_windows(store: TokenStore, seq_len: int) -> int:
    """Samples of an epoch: windows of seq_len + 1 tokens, seq_len apart. ValueError: none."""
    n_windows = (len(store) - 1) // seq_len
    if n_windows < 1:
        raise ValueError(
            f"train.seq_len = {seq_len}: the training split has {len(store):,} tokens, less than "
            f"one sample of seq_len + 1. Set train.seq_len={max(len(store) - 1, 1)} or less, or "
            "give more text."
        )
    return n_windows


class _MicroBatches:
    """The dataset of loader processes: micro-batches by the number of their first sample."""

    def __init__(
        self,
        store: TokenStore,
        *,
        seq_len: int,
        seed: int,
        batch_size: int,
        repeat_samples: int,
        rank: int,
        num_ranks: int,
    ) -> None:
        self.store = store
        self.seq_len = seq_len
        self.batch_size, self.rank, self.num_ranks = batch_size, rank, num_ranks
        self.repeat_samples = repeat_samples
        self.order = SampleOrder(count_windows(store, seq_len), seed=seed)

    def __getitem__(self, first_sample: int) -> tuple[Tensor, int]:
        """Tokens and targets of a rank, int64 [2, batch, seq]; and the number of targets of all
        ranks, which each finds by itself. first_sample: of all ranks.
        """
        result = np.empty((2, self.batch_size, self.seq_len), dtype=np.int64)
        for row in range(self.batch_size):
            start = self._start(first_sample + self.rank * self.batch_size + row)
            window = self.store.read(start, start + self.seq_len + 1)
            result[0, row] = window[:-1]
            result[1, row] = window[1:]
            if self.store.counted is not None:
                result[1, row, self._counted(start) == 0] = IGNORE_INDEX
        samples = self.num_ranks * self.batch_size
        n_targets = samples * self.seq_len
        if self.store.counted is not None:
            starts = (self._start(first_sample + number) for number in range(samples))
            n_targets = sum(int(self._counted(start).sum()) for start in starts)
        return torch.from_numpy(result), n_targets

    def _start(self, sample: int) -> int:
        """The first token of a sample."""
        sample = sample % self.repeat_samples if self.repeat_samples else sample
        return self.order.window(sample) * self.seq_len

    def _counted(self, start: int) -> np.ndarray:
        """Whether each target of the sample there counts: [seq_len], 0 or 1."""
        assert self.store.counted is not None
        return self.store.counted.read(start + 1, start + self.seq_len + 1)


class TrainLoader:
    """An endless iterator of steps for one rank.

    Step s of the run is samples [s * G, (s + 1) * G), G = grad_accum_steps * num_ranks *
    batch_size; each micro-batch takes the next num_ranks * batch_size, and each rank its contiguous
    part. So the global batch depends on G only, and the whole state is the number of samples handed
    out.
    """

    def __init__(
        self,
        store: TokenStore,
        *,
        seq_len: int,
        seed: int,
        batch_size: int,
        grad_accum_steps: int = 1,
        num_ranks: int = 1,
        rank: int = 0,
        start_sample: int = 0,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        overfit_batches: int = 0,
    ) -> None:
        """overfit_batches: read the first N global batches over and over; 0 = off.

        ValueError: the split has no sample.
        """
        assert 0 <= rank < num_ranks, (rank, num_ranks)
        self.samples = start_sample
        self.samples_per_epoch = count_windows(store, seq_len)
        self.samples_per_step = grad_accum_steps * num_ranks * batch_size
        self._n_tokens = self.samples_per_step * seq_len
        self._grad_accum_steps = grad_accum_steps
        self._stride = num_ranks * batch_size
        self._dataset = _MicroBatches(
            store,
            seq_len=seq_len,
            seed=seed,
            batch_size=batch_size,
            repeat_samples=overfit_batches * self.samples_per_step,
            rank=rank,
            num_ranks=num_ranks,
        )
        self._num_workers = num_workers
        self._pin_memory = pin_memory and torch.cuda.is_available()
        self._prefetch_factor = prefetch_factor
        self._stream: Iterator[tuple[Tensor, int]] | None = None

    @property
    def epoch(self) -> float:
        """Passes over the training split so far."""
        return self.samples / self.samples_per_epoch

    def __iter__(self) -> TrainLoader:
        return self

    def __next__(self) -> Step:
        if self._stream is None:
            self._stream = self._open_stream()
        read = [next(self._stream) for _ in range(self._grad_accum_steps)]
        self.samples += self.samples_per_step
        return Step(
            batches=[{"tokens": tokens, "targets": targets} for (tokens, targets), _ in read],
            n_tokens=self._n_tokens,
            n_targets=sum(count for _, count in read),
        )

    def state_dict(self) -> dict[str, int]:
        return {"samples": self.samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind the samples of `state`, on any number of ranks."""
        self.close()
        self.samples = state["samples"]

    def close(self) -> None:
        """End the loader processes; the next step starts new ones."""
        self._stream = None

    def _open_stream(self) -> Iterator[tuple[Tensor, int]]:
        first_samples = count(self.samples, self._stride)
        if self._num_workers == 0:
            stream = map(self._dataset.__getitem__, first_samples)
            pins = self._pin_memory
            return ((both.pin_memory(), number) for both, number in stream) if pins else stream
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
    *,
    seq_len: int,
    batch_size: int,
    sequences: int = 0,
    token_bytes: np.ndarray | None = None,
    part: tuple[int, int] = (0, 1),
) -> Iterator[EvalBatch]:
    """At most `sequences` sequences, spread evenly over a split, the same every time; 0 = all.

    A split has the order of its corpus, so its beginning alone may be the first of many folders.
    token_bytes: bytes of each token, int [vocab]; fills n_bytes. part: (i, n), the i-th of n shares
    of the rows; all shares have equally many batches of equally many rows. The last batch may have
    fewer rows; padding has token 0 and target IGNORE_INDEX.
    """
    last, (index, shares) = len(store) - 1, part
    windows = -(-last // seq_len)
    count = min(sequences or windows, windows)
    for first in range(0, count, batch_size * shares):
        held = -(-min(batch_size * shares, count - first) // shares)
        start, end = first + index * held, min(first + batch_size * shares, count)
        mine = range(start, min(start + held, end))
        rows = [row * windows // count * seq_len for row in mine]
        tokens = np.zeros((held, seq_len), dtype=np.int64)
        targets = np.full((held, seq_len), IGNORE_INDEX, dtype=np.int64)
        for row, start in enumerate(rows):
            window = store.read(start, min(start + seq_len, last) + 1)
            tokens[row, : len(window) - 1] = window[:-1]
            targets[row, : len(window) - 1] = window[1:]
            if store.counted is not None:
                is_target = store.counted.read(start + 1, min(start + seq_len, last) + 1)
                targets[row, : len(is_target)][is_target == 0] = IGNORE_INDEX
        counted = targets[targets != IGNORE_INDEX]
        yield EvalBatch(
            tokens=torch.from_numpy(tokens),
            targets=torch.from_numpy(targets),
            n_targets=len(counted),
            n_bytes=None if token_bytes is None else int(token_bytes[counted].sum()),
        )
