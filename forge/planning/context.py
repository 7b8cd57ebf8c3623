"""Bytes that context parallelism sends: keys and values, heads, and states of recurrent mixers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from forge.config.model.activations import FP32
from forge.config.model.attention_options import Span
from forge.config.model.decoder import Decoder
from forge.config.parallel import Parallel
from forge.config.root import Config


@dataclass(frozen=True, kw_only=True)
class ContextTraffic:
    """The collectives of context parallelism on one rank.

    tokens: of the rank in a step. rows: sequences of the rank in a step. width: bytes of a number
    in products.
    """

    config: Config
    model: Decoder
    tokens: int
    rows: int
    width: int

    def of_blocks(
        self, blocks: Iterable[int], recomputed: Iterable[int]
    ) -> Iterator[tuple[str, float, float]]:
        """Yield (name, bytes of all ranks, collectives of a micro-batch) of blocks by number.

        recomputed: the blocks whose forward pass runs again.
        """
        again = list(recomputed)
        for block in blocks:
            layer = self.model.of_kind(self.model.kind_of(block).name)
            forward = 1 + again.count(block)
            if layer.mixer.absent:
                continue
            if layer.mixer.recurrent:
                yield from self._of_states(layer, forward)
            else:
                yield from self._of_attention(layer, forward)

    def _of_attention(self, layer: Any, forward: int) -> Iterator[tuple[str, float, float]]:
        p = self.config.parallel
        token = self.tokens * layer.computed_head_dim * self.width
        kv = 2 * token * (layer.kv_heads // p.tp if layer.kv_heads % p.tp == 0 else 1)
        if p.cp_method == "ring":
            # Gradients of keys and values go round in fp32 at least.
            yield "cp: all-to-all of a ring", p.cp * kv * forward, (p.cp - 1) * forward
            gradients = kv * (self.width + max(self.width, FP32)) / self.width
            yield "cp: all-to-all of a ring", p.cp * gradients, 2 * (p.cp - 1)
        elif p.cp_method == "all_gather":
            yield "cp: all-gather of keys and values", p.cp * kv * forward, forward
            yield "cp: reduce-scatter of their gradients", p.cp * kv, 1
        else:
            queries_and_output = 2 * token * layer.n_heads // p.tp
            passes = forward + 1
            yield "cp: all-to-all of heads", (queries_and_output + kv) * passes, 4 * passes

    def _of_states(self, layer: Any, forward: int) -> Iterator[tuple[str, float, float]]:
        """Count ends of runs for convolutions, and states in fp32, of all runs of a sequence."""
        p = self.config.parallel
        passed = layer.mixer.passed(layer, p.tp)
        if passed is None:
            return
        runs = p.cp * p.runs_of_sequence * self.rows
        sizes = passed.tokens * passed.channels * self.width, passed.numbers * FP32
        for size in filter(None, sizes):
            yield "cp: all-gather of states", runs * size * forward, forward
            yield "cp: reduce-scatter of their gradients", runs * size, 1


def parts_seen(parallel: Parallel, seq_len: int, span: Span) -> bool:
    """Whether in a ring every rank's queries see some of each other rank's keys, by position."""
    ranks, runs = parallel.cp, parallel.runs_of_sequence
    length = seq_len // (ranks * runs)
    parts = [{rank, 2 * ranks - 1 - rank} if runs == 2 else {rank} for rank in range(ranks)]

    def seen(i: int, j: int) -> bool:
        near = not span.window or (i - j - 1) * length + 1 < span.window
        together = not span.chunk or (
            i * length // span.chunk <= ((j + 1) * length - 1) // span.chunk
        )
        return j <= i and near and together

    return all(any(seen(i, j) for i in mine for j in theirs) for mine in parts for theirs in parts)
