"""Bytes of weights that FSDP gathers, by closed form, in bf16 and in fp8."""

from __future__ import annotations

import pytest

from forge.compose import composition
from forge.planning.traffic import Sent, busiest_rank
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import worked_out

LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))
DIM, KV, FFN, VOCAB, LAYERS = 4096, 1024, 14336, 128256, 32
MATRICES = 2 * DIM * DIM + 2 * KV * DIM + 3 * FFN * DIM
NORMS = 2 * DIM
OUTSIDE = 2 * VOCAB * DIM + DIM


def sent_by(words: str) -> dict[str, Sent]:
    typed = f"plan.device=h100 plan.world_size=8 run.device=cuda tokenizer=bytes {words}".split()
    config, _ = worked_out(composition.config(typed), devices=LAPTOP)
    return {sent.name: sent for sent in busiest_rank(config)}


@pytest.mark.parametrize(
    ("words", "of_matrices", "chosen"),
    [
        ("experiment=llama3_8b_8gpu", 2 * LAYERS * MATRICES, 0),
        ("experiment=llama3_8b_8gpu_fp8", LAYERS * MATRICES, 7 * LAYERS),
        (
            "experiment=llama3_8b_8gpu_fp8 quantization.plain_first_layers=3",
            (LAYERS + 3) * MATRICES,
            7 * (LAYERS - 3),
        ),
        (
            "experiment=llama3_8b_8gpu_fp8 quantization.exclude=['*.attention.wo.*']",
            LAYERS * (MATRICES + DIM * DIM),
            6 * LAYERS,
        ),
    ],
)
def test_matrices_in_fp8_are_a_byte_an_element(words: str, of_matrices: int, chosen: int) -> None:
    """Blocks are gathered for forward and for backward, the ends once; norms are in bf16."""
    sent = sent_by(words)
    blocks, ends = of_matrices + 2 * LAYERS * NORMS, 2 * OUTSIDE
    gather = sent["fsdp: all-gather of weights"]
    assert gather.bytes == pytest.approx((2 * blocks + ends) * 7 / 8, abs=2)
    assert gather.calls == 2 * LAYERS + 3
    reduced = 4 * (LAYERS * (MATRICES + NORMS) + OUTSIDE)
    assert sent["fsdp: reduce-scatter of gradients"].bytes == reduced * 7 / 8
    scales = sent.get("fsdp: all-reduce of scales")
    assert (scales is not None) == bool(chosen)
    if scales is not None:  # one number of fp32 a matrix, in a single all-reduce
        assert (scales.bytes, scales.calls, scales.kind) == (
            2 * 4 * chosen * 7 // 8,
            1,
            "all-reduce",
        )
