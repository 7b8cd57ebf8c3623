"""Documents that share a row are read as each would be alone: logits and gradients."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from forge.config.model.attention_options import Span
from forge.config.model.decoder import Decoder as DecoderConfig
from forge.config.model.mixers.gated_delta_net import GatedDeltaNet
from forge.config.model.mixers.mla import MLA
from forge.config.model.moe import MoE
from forge.models.decoder import Decoder
from forge.models.documents import positions_and_masks
from forge.models.init import init_weights

VOCAB, SEQ = 61, 24
ROWS = [[7, 1, 9, 7], [24], [5, 5, 13, 1]]
"""Lengths of the documents of each row."""
DOCUMENTS = torch.stack(
    [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in ROWS]
)
WIDTHS = {"kv_lora_rank": 20, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8, "v_head_dim": 6}
DELTA = {"gdn_num_key_heads": 2, "gdn_num_value_heads": 4, "gdn_key_head_dim": 6}
DELTA |= {"gdn_value_head_dim": 10, "gdn_chunk_size": 5}
MAMBA = {"ssm_num_heads": 4, "ssm_head_dim": 6, "ssm_state_size": 10, "ssm_chunk_size": 5}
INDEXER: Any = {"use_indexer": True, "indexer_sparse_training": True, "indexer_topk": 3}
INDEXER |= {"indexer_head_dim": 12, "indexer_n_heads": 5, "indexer_loss_scaling_factor": 1.0}
NO_LOSS = {"aux_loss_weight": 0.0, "sequence_aux_loss_weight": 0.0, "z_loss_weight": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "math kernel": {"sdpa_backend": "math"},
    "heads of keys": {"n_kv_heads": 2, "qk_norm": True},
    "one head of keys, tied": {"n_kv_heads": 1, "tie_embeddings": True},
    "a window that divides": {"sliding_window_size": 4},
    "a window that does not": {"sliding_window_size": 5, "n_kv_heads": 2},
    "a window as long as the row": {"sliding_window_size": SEQ},
    "kinds of layers": {
        "kinds": {"near": {"sliding_window_size": 3, "rope_theta": 100.0}},
        "layers": ["near", "default"],
    },
    "learned positions": {"position": "learned", "norm_type": "layernorm", "bias": True},
    "sinusoids": {"position": "sinusoidal"},
    "no positions": {"position": "none"},
    "stretched positions": {
        "rope_type": "yarn",
        "rope_factor": 4.0,
        "original_max_position_embeddings": 8,
    },
    "adjacent pairs, of half of a head": {
        "rope_interleave": True,
        "partial_rotary_factor": 0.5,
    },
    "chunks": {"chunk_attn_window_size": 4, "n_kv_heads": 2},
    "chunks, capped": {"chunk_attn_window_size": 5, "attn_logits_soft_cap": 1.5},
    "sinks": {"attention_sink": True, "n_kv_heads": 2, "sliding_window_size": 3},
    "sinks and caps": {"attention_sink": True, "attn_logits_soft_cap": 2.0},
    "temperatures": {
        "position": "none",
        "temperature_tuning": True,
        "temperature_tuning_scale": 0.5,
        "temperature_tuning_floor": 3,
    },
    "all heads at once": {"qk_norm": True, "qk_norm_width": "all", "n_kv_heads": 2},
    "norms without weights, gates": {
        "qk_norm": True,
        "qk_norm_with_scale": False,
        "qk_norm_after_rope": True,
        "v_norm": True,
        "attention_output_gate": True,
        "share_kv_projections": True,
        "query_scale": 0.5,
    },
    "latent attention": {"mixer": MLA(**WIDTHS)},
    "latent attention, window": {"mixer": MLA(q_lora_rank=12, **WIDTHS), "sliding_window_size": 4},
    "latent attention, chunks": {
        "mixer": MLA(**WIDTHS),
        "chunk_attn_window_size": 4,
        "attn_logits_soft_cap": 2.0,
    },
    "delta nets": {"mixer": GatedDeltaNet(**DELTA)},
    "delta nets and attention": {
        "kinds": {"delta": {"mixer": {"schema": "gated_delta_net", **DELTA}}},
        "layers": ["delta", "delta", "default"],
    },
    "indexer": {
        "mixer": MLA(q_lora_rank=12, mla_naive_kvcache=False, **WIDTHS, **INDEXER),
    },
    "one branch a block": {
        "kinds": {
            "mamba": {"mixer": {"schema": "mamba2", **MAMBA}, "feed_forward": {"schema": "none"}},
            "conv": {"mixer": {"schema": "short_conv"}, "feed_forward": {"schema": "none"}},
            "mlp": {"mixer": {"schema": "none"}},
        },
        "layers": ["mlp", "mamba", "conv", "default"],
        "n_layers": 4,
    },
    "experts": {
        "moe": MoE(num_experts=6, top_k=2, ffn_hidden_dim=20, kernel="loop", **NO_LOSS),
    },
}


def decoder(options: dict[str, Any]) -> Decoder:
    sizes = {"dim": 32, "n_layers": 3, "n_heads": 4, "ffn_hidden_dim": 48, "init_std": 0.2}
    model = Decoder(DecoderConfig(**(sizes | {"vocab_size": VOCAB, "max_seq_len": SEQ} | options)))
    init_weights(model, 0)
    if hasattr(model, "begin_step"):
        model.begin_step(0.3)  # losses inside layers
    return model.double()


def parts(row: list[int]) -> list[slice]:
    return [slice(*ends) for ends in pairwise(accumulate(row, initial=0))]


def loss_of(logits: Tensor, weights: Tensor) -> Tensor:
    return (logits.log_softmax(-1) * weights).sum()


@pytest.mark.parametrize("name", MODELS)
def test_packed_equals_separate(name) -> None:
    model, generator = decoder(MODELS[name]), torch.Generator().manual_seed(2)
    tokens = torch.randint(VOCAB, (len(ROWS), SEQ), generator=generator)
    weights = torch.randn(len(ROWS), SEQ, VOCAB, generator=generator, dtype=torch.float64)

    together = F.linear(model.hidden(tokens, documents=DOCUMENTS), model.output_weight)
    loss_of(together, weights).backward()
    found = {key: each.grad.clone() for key, each in model.named_parameters()}
    model.zero_grad()
    alone = torch.empty_like(together)
    for row, lengths in enumerate(ROWS):
        for part in parts(lengths):
            logits = model(tokens[row : row + 1, part])
            alone[row, part] = logits[0].detach()
            loss_of(logits, weights[row : row + 1, part]).backward()
    assert (together - alone).norm() <= 1e-12 * alone.norm()
    for key, parameter in model.named_parameters():
        expected = parameter.grad
        if name == "learned positions" and key == "positions.weight":
            assert expected.count_nonzero() > 0
        assert expected.norm() > 0 or key.endswith("wk.bias"), key
        assert (found[key] - expected).norm() <= 1e-10 * expected.norm() + 1e-12, key
    if MODELS[name].get("position") != "none" or "sliding_window_size" not in MODELS[name]:
        assert (model(tokens) - alone).norm() > 1e-3 * alone.norm(), "documents made no difference"


def test_positions_and_what_is_seen_by_hand() -> None:
    documents = torch.tensor([[0, 0, 0, 1, 1]])
    here = torch.arange(5)
    rows = positions_and_masks(documents, [Span(), Span(2), Span()], tokens=here, queries=here)
    assert rows.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert rows.seen[Span()].int().tolist() == [
        [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]]
    ]
    assert rows.seen[Span(2)].int().tolist() == [
        [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]]
    ]
    part = positions_and_masks(documents, [Span()], tokens=here[:2], queries=torch.tensor([0, 4]))
    assert part.positions.tolist() == [[0, 1]]
    assert part.seen[Span()].int().tolist() == [[[[1, 0, 0, 0, 0], [0, 0, 0, 1, 1]]]]


def test_one_document_a_row_is_no_other_model() -> None:
    model, tokens = decoder({"n_kv_heads": 2}), torch.arange(SEQ)[None]
    one = model.hidden(tokens, documents=torch.zeros_like(tokens))
    torch.testing.assert_close(one, model.hidden(tokens), rtol=1e-12, atol=1e-12)


def test_a_cache_takes_no_documents() -> None:
    model, tokens = decoder({}), torch.zeros(1, 4, dtype=torch.int64)
    with pytest.raises(AssertionError, match="a cache holds one document"):
        model.hidden(tokens, cache=model.new_cache(), documents=tokens)
