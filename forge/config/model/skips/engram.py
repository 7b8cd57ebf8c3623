"""Engram: memory of n-grams of tokens, looked up by hashes and added before chosen layers.

A rank has whole tables, which FSDP shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from forge.config.field import Condition, Section, opt, section
from forge.config.model.tensors import NORM, VALUE_EMBEDDING, TensorSpec, linear, norm

ENGRAM = "model.engram_layers"
REMEMBERS = Condition(lambda config, ranks: bool(config.model.engram_layers), f"without {ENGRAM}")
WITNESSES = (2, 3, 5, 7, 11, 13, 17)
"""Bases by which Miller and Rabin's test is exact below 3.4e14."""


@section
class Engram(Section):
    engram_layers: list[int] = opt(
        [],
        "layers, counted from 0, before which a memory of n-grams of tokens is added to the hidden "
        "states (arXiv:2601.07372)",
        ge=0,
    )
    engram_vocab_bases: list[int] = opt(
        [],
        "least rows of a table for n-grams of 2, 3, ... tokens; each table has as many rows as the "
        "next prime that no other has",
        gt=1,
        acts_when=REMEMBERS,
    )
    engram_max_ngram_size: int = opt(
        3, "tokens of the longest n-gram; the shortest has two", ge=2, acts_when=REMEMBERS
    )
    engram_num_heads: int = opt(
        8, "tables for each length of n-grams, with a hash each", gt=0, acts_when=REMEMBERS
    )
    engram_head_dim: int = opt(1280, "width of a row of a table", gt=0, acts_when=REMEMBERS)
    engram_kernel_size: int = opt(
        4,
        "taps of the convolution after a memory; they are engram_max_ngram_size tokens apart",
        gt=0,
        acts_when=REMEMBERS,
    )
    engram_seed: int = opt(0, "seed of the hashes", ge=0, acts_when=REMEMBERS)

    @property
    def engram_width(self) -> int:
        """Width of all rows that a token looks up."""
        return (self.engram_max_ngram_size - 1) * self.engram_num_heads * self.engram_head_dim

    def engram_rows(self, layer: int) -> tuple[int, ...]:
        """Return the rows of the tables of a layer: heads of pairs, heads of triples, ..."""
        sizes = tuple(self.engram_vocab_bases), self.engram_num_heads
        of_layers = prime_rows(tuple(sorted(self.engram_layers)), *sizes)
        return of_layers[sorted(self.engram_layers).index(layer)]


OF_ENGRAM = tuple(
    name for name in Engram.__dataclass_fields__ if name not in ("_target_", "engram_layers")
)
"""Options of the memories beside their layers."""


class MemoryShape(NamedTuple):
    """Sizes of the memory of one layer. rows: of all tables. width: as `engram_width`. streams: of
    mHC.
    """

    rows: int
    head_dim: int
    width: int
    dim: int
    streams: int
    taps: int


def memory_tensors(shape: MemoryShape, *, unit_offset: bool) -> Iterator[TensorSpec]:
    """Yield the tensors of the memory of one layer, in the order of its module."""
    part, dim, streams = "engram", shape.dim, shape.streams
    table, conv = (shape.rows, shape.head_dim), (streams * dim, shape.taps)
    yield TensorSpec(name="table", shape=table, role=VALUE_EMBEDDING, part=part)
    # The role of a norm, as convolutions of mixers have.
    yield TensorSpec(name="conv", shape=conv, role=NORM, part=part, std=0.0)
    for name in ("key_norm", "query_norm", "conv_norm"):
        for tensor in norm(name, streams * dim, part=part, unit_offset=unit_offset):
            yield replace(tensor, name=name)
    for name, outputs in (("key", streams * dim), ("value", dim)):
        yield from linear(name, outputs, shape.width, part=part, bias=True)


@lru_cache
def prime_rows(
    layers: Sequence[int], bases: Sequence[int], heads: int
) -> tuple[tuple[int, ...], ...]:
    """Return the rows of each layer's tables: primes not below the bases, all different."""
    taken: set[int] = set()
    result = []
    for _ in layers:
        rows = []
        for base in bases:
            candidate = base
            for _ in range(heads):
                while candidate in taken or not is_prime(candidate):
                    candidate += 1
                taken.add(candidate)
                rows.append(candidate)
        result.append(tuple(rows))
    return tuple(result)


def is_prime(number: int) -> bool:
    """Whether a number below 3.4e14 is prime, by Miller and Rabin's test."""
    if number < 2 or any(number % small == 0 for small in WITNESSES):
        return number in WITNESSES
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in WITNESSES:
        power = pow(base, odd, number)
        if power != 1 and all(pow(power, 2**k, number) != number - 1 for k in range(twos)):
            return False
    return True
