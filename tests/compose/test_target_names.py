"""Entries of adapter.target_modules in the words of PEFT and of other families."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.refusing import only, problems, resolved

from forge.config.adapters.adapter import THEIRS

KEY = "adapter.target_modules"


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        (["target_modules=[q_proj,v_proj]"], f"did you mean adapter=lora {KEY}=[wq,wv]?"),
        (["target_modules=all-linear"], f"did you mean adapter=lora {KEY}=[auto]?"),
        (["lora_target_modules=['q_proj','wo']"], f"did you mean adapter=lora {KEY}=[wq,wo]?"),
        (["adapter=lora", f"{KEY}=[q_proj,v_proj]"], f"{KEY}=[wq,wv]"),
        (["adapter=lora", f"{KEY}=[wk,self_attn.c_attn,fc1]"], f"{KEY}=[wk,wq,wv,w_up]"),
        (["adapter=lora", f"{KEY}=[q_a_proj,nonsense]"], f"{KEY}=[auto]"),
        (["adapter=lora", f"{KEY}=all-linear"], f"\"{KEY}=['auto']\""),
    ],
)
def test_their_names_are_answered_at_once_with_a_line_to_paste(typed: list[str], ours: str) -> None:
    assert only(typed, as_point=True).fix == ours


def test_each_name_of_theirs_is_of_a_matrix_here() -> None:
    """Of a plain model, but for latent attention, whose names its own family has."""
    for word, ours in THEIRS.items():
        if not any(name in ("wq_a", "wq_b", "wkv_a", "wkv_b") for name in ours):
            untied = ["adapter=lora", "adapter.dropout=0", "model.tie_embeddings=false"]
            typed = [*untied, f"{KEY}=[{','.join(ours)}]"]
            left = [p for p in problems(typed, as_point=True) if not p.warning]
            assert left == [], word


def test_ranks_are_by_their_names_too() -> None:
    """The last that fits; of one layer where a name says it."""
    ranks = "adapter.ranks={q_proj:4,model.layers.1.self_attn.v_proj:8,mlp:2,layers.0.mlp.w1:5}"
    config: Any = resolved(["adapter=lora", ranks, "adapter.dropout=0"]).config
    found = {one.name: config.adapter.rank_of(one) for one in config.model.tensors()}
    of = {layer: f"blocks.{layer}.attention" for layer in (0, 1)}
    assert [found[f"{of[n]}.wq.weight"] for n in of] == [4, 4]
    assert [found[f"{of[n]}.wv.weight"] for n in of] == [16, 8]
    assert [found[f"blocks.{n}.feed_forward.w_gate.weight"] for n in of] == [5, 2]
    assert found["blocks.1.feed_forward.w_down.weight"] == 2
    (refused,) = [p for p in problems(["adapter=lora", "adapter.ranks={kq:4}"]) if not p.warning]
    assert refused.option == "adapter.ranks"
