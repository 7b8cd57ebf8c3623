"""Cutting a model into stages: which blocks each has, and which rank."""

from __future__ import annotations

from itertools import accumulate, combinations, pairwise

import pytest

from forge.config.model.decoder import Decoder
from forge.config.model.moe import MoE, is_moe_layer
from forge.planning.stages import cut_by_cost, stages_of


def costs(section: Decoder, seq_len: int) -> tuple[list[int], int]:
    """FLOPs of each block and of the head for a forward pass of one token, from the shapes."""
    dim, heads = section.dim, section.n_heads * section.computed_head_dim
    attention = 2 * (2 * dim * heads + 2 * dim * section.kv_heads * section.computed_head_dim)
    scores, dense = 4 * heads * seq_len, 6 * dim * section.computed_ffn_hidden_dim
    moe = section.moe
    experts = 6 * dim * section.expert_hidden_dim * moe.top_k + 2 * dim * moe.num_experts
    blocks = [
        attention + scores + (experts if is_moe_layer(moe, layer) else dense)
        for layer in range(section.n_layers)
    ]
    return blocks, 2 * section.vocab_size * dim


def costliest(section: Decoder, seq_len: int, cut: tuple[int, ...]) -> int:
    blocks, head = costs(section, seq_len)
    edges = [0, *accumulate(cut)]
    stages = [sum(blocks[first:last]) for first, last in pairwise(edges)]
    stages[-1] += head
    return max(stages)


SMALL = {"dim": 512, "n_heads": 8, "n_kv_heads": 2}
EXPERTS = {"num_experts": 4, "top_k": 1, "norm_topk_prob": False, "ffn_hidden_dim": 256}
MODELS = [
    Decoder(**SMALL, n_layers=8 + 3 * odd, vocab_size=v) for odd in (0, 1) for v in (100, 300000)
]
MODELS += [
    Decoder(
        dim=64,
        n_layers=9,
        n_heads=2,
        vocab_size=300,
        ffn_hidden_dim=1024,
        moe=MoE(**EXPERTS, **which),
    )
    for which in ({"first_num_dense_layers": 3}, {"frequency": 2})
]


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("section", MODELS, ids=range(len(MODELS)))
def test_no_cut_has_a_cheaper_costliest_stage(section, stages) -> None:
    """Also where some blocks have experts, which are much cheaper than the dense layers."""
    found, n = cut_by_cost(section, stages, 128), section.n_layers
    assert (len(found), sum(found), min(found) >= 1) == (stages, n, True)
    every = (
        tuple(b - a for a, b in zip((0, *where), (*where, n), strict=True))
        for where in combinations(range(1, n), stages - 1)
    )
    best = min(costliest(section, 128, cut) for cut in every)
    assert costliest(section, 128, tuple(found)) == best


def test_a_large_vocabulary_takes_blocks_from_the_last_stage() -> None:
    """The head of Llama 3 8B costs as much as 1.8 blocks at 8192 tokens."""
    llama = {"dim": 4096, "n_layers": 32, "n_heads": 32}
    large = Decoder(**llama, n_kv_heads=8, ffn_hidden_dim=14336, vocab_size=128256)
    assert cut_by_cost(large, 4, 8192) == [8, 8, 9, 7]
    assert cut_by_cost(Decoder(**llama, vocab_size=1000), 4, 8192) == [8, 8, 8, 8]


@pytest.mark.parametrize(
    ("schedule", "pp", "per_rank", "wanted"),
    [
        ("1f1b", 4, 1, [(0,), (1,), (2,), (3,)]),
        ("interleaved_1f1b", 2, 3, [(0, 2, 4), (1, 3, 5)]),
        ("zbv_zero_bubble", 4, 2, [(0, 7), (1, 6), (2, 5), (3, 4)]),
    ],
)
def test_stages_of_each_rank(schedule, pp, per_rank, wanted) -> None:
    assert [stages_of(rank, pp, per_rank, schedule) for rank in range(pp)] == wanted
