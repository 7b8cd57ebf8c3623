"""Memories of n-grams against a loop over tokens, n-grams and heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.skips.engram import is_prime, prime_rows
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.skips.engram import Engram

SEQ, VOCAB, DIM, LAYER = 17, 50, 24, 1


def section(**options: Any) -> DecoderConfig:
    sizes: dict[str, Any] = {"dim": DIM, "n_heads": 4, "n_kv_heads": 2, "n_layers": 3}
    sizes |= {"vocab_size": VOCAB, "max_seq_len": 40, "ffn_hidden_dim": 20, "init_std": 0.3}
    sizes |= {"engram_layers": [LAYER], "engram_vocab_bases": [40, 60], "engram_num_heads": 2}
    sizes |= {"engram_head_dim": 6, "engram_kernel_size": 3}
    return DecoderConfig(**(sizes | options))


def memory_of(made: Decoder) -> Engram:
    memory = made.engrams[str(LAYER)]
    assert isinstance(memory, Engram)
    return memory


def model(**options: Any) -> Decoder:
    made, generator = Decoder(section(**options)).double(), torch.Generator().manual_seed(4)
    init_weights(made, seed=3)
    for name, values in made.named_parameters():
        if "engrams" in name or "streams" in name:
            values.data.copy_(torch.randn(values.shape, generator=generator).double() * 0.4)
    return made.eval()


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


TOKENS = torch.randint(VOCAB, (2, SEQ), generator=torch.Generator().manual_seed(5))


def rms(x: Tensor) -> Tensor:
    return x / (x.square().mean() + 1e-5).sqrt()


def in_a_loop(memory: Engram, x: Tensor, tokens: list[int], primes: list[int]) -> Tensor:
    """One document, [seq, streams * dim], with Python's integers."""
    n, streams, heads = memory.longest, memory.streams, 2
    random = np.random.Generator(np.random.PCG64(7 + 10007 * LAYER))
    bound = (2**31 - 1) // (VOCAB + 1) // 2
    factors = [2 * int(random.integers(0, bound)) + 1 for _ in range(n)]
    added: list[list[Tensor]] = []
    for t in range(len(tokens)):
        rows, begin = [], 0
        for order in range(2, n + 1):
            hashed = 0
            for behind in range(order):
                token = tokens[t - behind] if t >= behind else VOCAB
                assert token * factors[behind] < 2**31
                hashed ^= token * factors[behind]
            for head in range(heads):
                prime = primes[(order - 2) * heads + head]
                rows.append(memory.table[begin + hashed % prime])
                begin += prime
        e = torch.cat(rows)
        keys = (memory.key.weight @ e + memory.key.bias).chunk(streams)
        value = memory.value.weight @ e + memory.value.bias
        weights = zip(
            *(w.chunk(streams) for w in (memory.key_norm, memory.query_norm)), strict=True
        )
        of_streams = []
        for key, state, (of_key, of_query) in zip(keys, x[t].chunk(streams), weights, strict=True):
            r = (rms(key) * of_key) @ (rms(state) * of_query) / math.sqrt(DIM)
            gate = torch.sigmoid(torch.sign(r) * torch.sqrt(r.abs().clamp(min=1e-6)))
            of_streams.append(gate * value)
        added.append(of_streams)
    scale, taps = memory.conv_norm.chunk(streams), memory.conv.chunk(streams)
    rows = []
    for t in range(len(tokens)):
        parts = []
        for g in range(streams):
            mixed = torch.zeros(DIM, dtype=x.dtype)
            for tap in range(3):
                at = t - (2 - tap) * n
                if at >= 0:
                    mixed = mixed + taps[g][:, tap] * rms(added[at][g]) * scale[g]
            parts.append(x[t].chunk(streams)[g] + added[t][g] + torch.nn.functional.silu(mixed))
        rows.append(torch.cat(parts))
    return torch.stack(rows)


@pytest.mark.parametrize("streams", [1, 3])
def test_a_memory_is_that_of_a_loop(streams: int) -> None:
    """Outputs and all gradients, for rows of two documents."""
    made = model(engram_seed=7, mhc_expansion_rate=streams)
    memory, lengths = memory_of(made), [5, 12]
    primes = {"41": 41, "43": 43, "61": 61, "67": 67}
    x = drawn(2, SEQ, streams * DIM, seed=1).requires_grad_()
    to = drawn(2, SEQ, streams * DIM, seed=2)
    places = torch.cat([torch.arange(n) for n in lengths]).expand(2, -1)
    rows = []
    for row in range(2):
        parts = zip(x[row].split(lengths), TOKENS[row].split(lengths), strict=True)
        alone = [in_a_loop(memory, a, b.tolist(), [*primes.values()]) for a, b in parts]
        rows.append(torch.cat(alone))
    results = []
    for y in (memory(x, TOKENS, places), torch.stack(rows)):
        grads = torch.autograd.grad((y * to).sum(), [x, *memory.parameters()])
        results.append([y, *grads])
    for one, other in zip(*results, strict=True):
        assert one.norm() > 0
        torch.testing.assert_close(one, other)


def test_rows_are_different_primes() -> None:
    rows = prime_rows((1, 4), (1000, 1000), 3)
    numbers = [number for layer in rows for number in layer]
    assert numbers == [
        *(1009, 1013, 1019, 1021, 1031, 1033),
        *(1039, 1049, 1051, 1061, 1063, 1069),
    ]
    sieve = [n for n in range(3000) if n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(3000) if is_prime(n)] == sieve
    assert [is_prime(n) for n in (2147483647, 3215031751, 1000003 * 1000033)] == [
        True,
        False,
        False,
    ]


def test_hashes_are_known_numbers() -> None:
    """They must not change between processes, versions or layouts: tables are trained by them."""
    memory = memory_of(Decoder(section()))
    ids, last = memory.ids(torch.tensor([[7, 7, 3, 49]]), torch.arange(4)[None], None)
    assert ids[0].tolist() == KNOWN
    assert last.tolist() == [[3, 49]]
    other = memory_of(Decoder(section(engram_seed=1)))
    assert not torch.equal(memory.multipliers, other.multipliers)


KNOWN = [[21, 72, 104, 151], [31, 55, 134, 150], [23, 45, 104, 183], [34, 70, 107, 154]]


def test_without_values_the_model_is_the_plain_one() -> None:
    plain, made = model(engram_layers=[]), model()
    memory = memory_of(made)
    assert (made(TOKENS) - plain(TOKENS)).norm() > 0.1
    for values in (memory.value.weight, memory.value.bias, memory.conv):
        values.data.zero_()
    assert torch.equal(made(TOKENS), plain(TOKENS))
    fresh = Decoder(section())
    init_weights(fresh, seed=0)
    assert not memory_of(fresh).conv.any()
    assert memory_of(fresh).table.std() > 0.2


@pytest.mark.parametrize("streams", [1, 2])
def test_documents_in_a_row_are_read_alone(streams: int) -> None:
    made = model(mhc_expansion_rate=streams)
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor([2, 9, 6]))[None]
    together = made.hidden(TOKENS[:1], documents=documents).split([2, 9, 6], 1)
    for one, part in zip(together, TOKENS[:1].split([2, 9, 6], 1), strict=True):
        torch.testing.assert_close(one, made.hidden(part))


@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_gives_the_logits_of_whole_texts(padded: bool) -> None:
    made, fill = model(), torch.tensor([0, 6]) if padded else None
    cache = made.new_cache(SEQ, fill)
    steps = [made(part, cache=cache) for part in TOKENS.split([8, 3, *[1] * 6], 1)]
    logits = torch.cat(steps, 1)
    for n, row in enumerate(TOKENS):
        text = slice(6 * padded * n, None)
        torch.testing.assert_close(logits[n, text], made(row[None, text])[0])


def test_table_and_flops() -> None:
    made = section(mhc_expansion_rate=2)
    table = [(spec.name, spec.shape) for spec in made.tensors()]
    assert table == [(name, tuple(p.shape)) for name, p in Decoder(made).named_parameters()]
    assert sum(made.params_by_part().values()) == made.num_params_estimate
    width = 2 * 2 * 6
    plain = section(mhc_expansion_rate=2, engram_layers=[])
    assert made.flops_per_token(SEQ) - plain.flops_per_token(SEQ) == 6 * width * DIM * 3
