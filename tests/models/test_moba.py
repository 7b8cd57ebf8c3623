"""Mixture of block attention against a dense loop over queries, heads and blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from forge.config.model.decoder import Decoder as DecoderConfig
from forge.models.decoder import Decoder
from forge.models.init import init_weights
from forge.models.mixers.block_choice import chosen_keys

SEQ, HEADS, KV_HEADS, WIDTH = 29, 4, 2, 6


def model(**options: Any) -> Decoder:
    sizes: dict[str, Any] = {"dim": 24, "n_heads": HEADS, "n_kv_heads": KV_HEADS, "n_layers": 2}
    sizes |= {"vocab_size": 50, "max_seq_len": 40, "ffn_hidden_dim": 20, "init_std": 0.3}
    section = DecoderConfig(**(sizes | options))
    made = Decoder(section).double()
    init_weights(made, seed=3)
    return made.eval()


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def read_by(q: Tensor, k: Tensor, t: int, chunk: int, topk: int) -> list[int]:
    """Keys of one document that one query of one head reads."""
    own = t // chunk
    scores = [
        (float(q[t].detach() @ k[b * chunk : (b + 1) * chunk].detach().mean(0)), b)
        for b in range(own)
    ]
    blocks = [own, *(b for _, b in sorted(scores, reverse=True)[: topk - 1])]
    return [key for b in blocks for key in range(b * chunk, (b + 1) * chunk) if key <= t]


@pytest.mark.parametrize(("chunk", "topk"), [(4, 1), (4, 3), (5, 2), (7, 9), (64, 1)])
@pytest.mark.parametrize("lengths", [(SEQ,), (3, 17, 1, 8)], ids=["one document", "documents"])
def test_chosen_keys_are_those_of_a_loop(chunk: int, topk: int, lengths: tuple[int, ...]) -> None:
    q, k = drawn(2, HEADS, SEQ, WIDTH), drawn(2, KV_HEADS, SEQ, WIDTH, seed=1)
    expected = torch.zeros(2, HEADS, SEQ, SEQ, dtype=torch.bool)
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    for row in range(2):
        for head in range(HEADS):
            keys = k[row, head * KV_HEADS // HEADS]
            begin = 0
            for length in lengths:
                part = slice(begin, begin + length)
                for t in range(length):
                    chosen = read_by(q[row, head, part], keys[part], t, chunk, topk)
                    expected[row, head, begin + t, [begin + key for key in chosen]] = True
                begin += length
    seen = None
    if len(lengths) > 1:
        visible = (documents[:, None] == documents).tril()
        seen = torch.zeros(SEQ, SEQ).masked_fill(~visible, -torch.inf).expand(2, 1, -1, -1)
    made = chosen_keys(q, k, chunk=chunk, topk=topk, seen=seen)
    assert torch.equal(made.expand_as(expected), expected)
    # The last queries alone, as after a cache or in a part of a sequence.
    late = None if seen is None else seen[:, :, -5:]
    made = chosen_keys(q[:, :, -5:], k, chunk=chunk, topk=topk, seen=late)
    assert torch.equal(made.expand_as(expected[:, :, -5:]), expected[:, :, -5:])


def test_all_blocks_are_full_attention_and_fewer_are_not() -> None:
    tokens = torch.randint(50, (2, SEQ), generator=torch.Generator().manual_seed(5))
    full = model()(tokens)
    assert torch.equal(model(moba=True, moba_chunk_size=5, moba_topk=6)(tokens), full)
    few = model(moba=True, moba_chunk_size=5, moba_topk=2)(tokens)
    torch.testing.assert_close(few[:, :10], full[:, :10])  # both blocks
    assert (few[:, 10:] - full[:, 10:]).abs().amax(-1).min() > 1e-3
    # No shortcut: a mask of all blocks, for a sequence longer than they are.
    q, k = drawn(1, HEADS, SEQ, WIDTH), drawn(1, KV_HEADS, SEQ, WIDTH, seed=1)
    chosen = chosen_keys(q, k, chunk=5, topk=6)
    assert torch.equal(chosen, torch.ones(SEQ, SEQ, dtype=torch.bool).tril().expand_as(chosen))


def test_gradients_are_those_of_attention_with_the_chosen_keys() -> None:
    """Through the layer of the model, against a softmax written out head by head."""
    layer: Any = model(moba=True, moba_chunk_size=4, moba_topk=3).blocks["0"].attention
    q, k, v = (
        drawn(1, n, SEQ, WIDTH, seed=n + s).requires_grad_()
        for s, n in enumerate((HEADS, KV_HEADS, KV_HEADS))
    )
    heads = []
    for head in range(HEADS):
        keys, values = k[0, head // 2], v[0, head // 2]
        rows = []
        for t in range(SEQ):
            chosen = read_by(q[0, head], keys, t, 4, 3)
            weights = (q[0, head, t] @ keys[chosen].T * WIDTH**-0.5).softmax(-1)
            rows.append(weights @ values[chosen])
        heads.append(torch.stack(rows))
    expected, to = torch.stack(heads), drawn(HEADS, SEQ, WIDTH, seed=9)
    made = layer.attend(q, k, v)[0]
    torch.testing.assert_close(made, expected)
    grads = [torch.autograd.grad((y * to).sum(), (q, k, v)) for y in (made, expected)]
    for one, other in zip(*grads, strict=True):
        assert one.norm() > 0
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sinks", [False, True])
def test_documents_in_a_row_are_read_alone(sinks: bool) -> None:
    decoder = model(moba=True, moba_chunk_size=3, moba_topk=2, attention_sink=sinks)
    lengths = (7, 14, 8)
    tokens = torch.randint(50, (1, SEQ), generator=torch.Generator().manual_seed(6))
    documents = torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None]
    together = decoder.hidden(tokens, documents=documents).split(lengths, 1)
    alone = [decoder.hidden(part) for part in tokens.split(lengths, 1)]
    for one, other in zip(together, alone, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_gives_the_logits_of_whole_texts(padded: bool) -> None:
    decoder = model(moba=True, moba_chunk_size=4, moba_topk=2)
    tokens = torch.randint(50, (2, SEQ), generator=torch.Generator().manual_seed(7))
    fill = torch.tensor([0, 6]) if padded else None
    whole = [decoder(row[None, 6 * padded * n :])[0] for n, row in enumerate(tokens)]
    cache = decoder.new_cache(SEQ, fill)
    steps = [decoder(part, cache=cache) for part in tokens.split([11, 5, *[1] * 13], 1)]
    made = torch.cat(steps, 1)
    for n, row in enumerate(whole):
        torch.testing.assert_close(made[n, 6 * padded * n :], row)


def test_flops_count_chosen_blocks_and_their_choice() -> None:
    options: dict[str, Any] = {"dim": 24, "n_heads": 4, "n_layers": 2, "vocab_size": 50}
    plain, few = (
        DecoderConfig(**options, moba=moba, moba_chunk_size=8, moba_topk=2)
        for moba in (False, True)
    )
    taken = plain.flops_per_token(64) - few.flops_per_token(64)
    assert taken == 2 * (12 * 24 * (64 - 16) - 2 * 24 * 8)
    assert plain.flops_per_token(16) == few.flops_per_token(16)
