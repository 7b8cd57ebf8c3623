"""Cutting a model into stages: which blocks each has, and which rank."""

from __future__ import annotations

from itertools import combinations

import pytest

from forge.config.model import Decoder
from forge.config.moe import MoE, is_moe_layer
from forge.parallel.stages import cut_by_cost, owner, stages_of


def costs(section: Decoder, layers: tuple[int, ...] | list[int], seq_len: int) -> list[float]:
    """FLOPs of each stage for a forward pass of one token, counted from the shapes."""
    dim, ffn = section.dim, section.computed_ffn_hidden_dim
    attention = 2 * (
        2 * dim * section.n_heads * section.head_dim + 2 * dim * section.kv_heads * section.head_dim
    )
    scores = 4 * section.n_heads * section.head_dim * seq_len
    block = attention + scores + 2 * 3 * dim * ffn
    return [
        count * block + (2 * section.vocab_size * dim if stage == len(layers) - 1 else 0)
        for stage, count in enumerate(layers)
    ]


def every_cut(n_layers: int, stages: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, n_layers), stages - 1)
    return [
        tuple(b - a for a, b in zip((0, *where), (*where, n_layers), strict=True)) for where in cuts
    ]


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("vocab", [100, 32000, 300000])
@pytest.mark.parametrize("layers", [8, 11])
def test_no_cut_has_a_cheaper_costliest_stage(stages: int, vocab: int, layers: int) -> None:
    section = Decoder(dim=512, n_layers=layers, n_heads=8, n_kv_heads=2, vocab_size=vocab)
    found = cut_by_cost(section, stages, 1024)
    assert sum(found) == layers
    assert len(found) == stages
    assert min(found) >= 1
    assert max(costs(section, found, 1024)) == min(
        max(costs(section, cut, 1024)) for cut in every_cut(layers, stages)
    )


def test_a_large_vocabulary_takes_blocks_from_the_last_stage() -> None:
    """32 blocks of Llama 3 8B on 4 stages: the head, with 128,256 rows, costs as much as 1.8 blocks
    at 8192 tokens.
    """
    section = Decoder(
        dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_hidden_dim=14336, vocab_size=128256
    )
    assert cut_by_cost(section, 4, 8192) == [8, 8, 9, 7]
    assert cut_by_cost(Decoder(dim=4096, n_layers=32, n_heads=32, vocab_size=1000), 4, 8192) == [
        8,
        8,
        8,
        8,
    ]


@pytest.mark.parametrize("moe", [{"first_num_dense_layers": 3}, {"frequency": 2}], ids=str)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_blocks_with_experts_cost_what_they_cost(moe: dict[str, int], stages: int) -> None:
    """Experts of a quarter of the width, of which a token goes to one: much cheaper than the dense
    layers.
    """
    section = Decoder(
        dim=64,
        n_layers=9,
        n_heads=2,
        vocab_size=300,
        ffn_hidden_dim=1024,
        moe=MoE(num_experts=4, top_k=1, norm_topk_prob=False, ffn_hidden_dim=256, **moe),
    )
    attention, expert = 4 * 64 * 64, 3 * 64 * 256
    blocks = [
        6 * (attention + (expert + 4 * 64 if is_moe_layer(section.moe, i) else 3 * 64 * 1024))
        + 12 * 64 * 128
        for i in range(9)
    ]

    def costliest(cut: tuple[int, ...] | list[int]) -> int:
        rest = iter(blocks)
        return max(
            sum(next(rest) for _ in range(count)) + (6 * 300 * 64 if i == stages - 1 else 0)
            for i, count in enumerate(cut)
        )

    found = cut_by_cost(section, stages, 128)
    assert costliest(found) == min(costliest(cut) for cut in every_cut(9, stages))


@pytest.mark.parametrize(
    ("schedule", "pp", "per_rank", "wanted"),
    [
        ("1f1b", 4, 1, [(0,), (1,), (2,), (3,)]),
        ("interleaved_1f1b", 2, 3, [(0, 2, 4), (1, 3, 5)]),
        ("interleaved_zero_bubble", 3, 2, [(0, 3), (1, 4), (2, 5)]),
        ("zbv_zero_bubble", 4, 2, [(0, 7), (1, 6), (2, 5), (3, 4)]),
    ],
)
def test_stages_of_each_rank(
    schedule: str, pp: int, per_rank: int, wanted: list[tuple[int, ...]]
) -> None:
    assert [stages_of(rank, pp, per_rank, schedule) for rank in range(pp)] == wanted
    assert all(
        owner(stage, pp, schedule) == rank for rank, stages in enumerate(wanted) for stage in stages
    )
