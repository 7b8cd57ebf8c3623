"""nanochat's dial: every number of nanochat_dial.json, worked out by the resolver of a depth, and
what is stated in place of it.

The file holds what nanochat's own classes and formulas gave at 92d63d4 for T=2048, 32768 rows of
vocabulary and 12 tokens a parameter.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.refusing import only, resolved

from forge.config.optimizers.param_groups import groups
from forge.config.scaling.counts import parameters

DIAL = json.loads((Path(__file__).parents[1] / "fixtures" / "nanochat_dial.json").read_text())
DEPTHS = {entry["depth"]: entry for entry in DIAL}
VOCAB = ["tokenizer=bytes", "model.vocab_size=32768"]
PLAIN = ["scaling=depth", "parallel=single", "run.device=cpu"]
PLAIN += [*VOCAB, "model.tie_embeddings=false", "model.activation=relu2"]


def dialled(*overrides: str) -> Any:
    return resolved([*PLAIN, *overrides], as_point=True).config


@pytest.mark.parametrize("depth", [6, 12, 20])
def test_a_plain_decoder_has_the_widths_of_its_depth(depth: int) -> None:
    """All but the gates of value embeddings are counted: 12 weights a head in every other block."""
    config, entry = dialled(f"scaling.depth={depth}"), DEPTHS[depth]
    model = config.model
    assert (model.dim, model.n_heads, model.kv_heads) == (entry["dim"], *[entry["heads"]] * 2)
    assert (model.n_layers, model.computed_head_dim, config.train.seq_len) == (depth, 128, 2048)
    assert model.ffn_hidden_dim == 4 * entry["dim"]
    gates = -(-depth // 2) * 12 * entry["heads"]
    assert parameters(model) == entry["scaling"] - gates
    assert config.train.global_batch_tokens == entry["batch"]
