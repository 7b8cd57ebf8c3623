"""Initial weights: which values, and that nothing but seed, name and shape decides them."""

from __future__ import annotations

from hashlib import blake2b

import pytest
import torch

from forge.models.decoder import Decoder
from forge.models.init import Initial, init_weights

SHAPES = [(1000, 3), (7, 2), (300, 1000), (5, 70_000), (130, 4, 257)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_those_of_the_written_recipe(shape) -> None:
    """Each block from a generator keyed by blake2b(seed/name/block); of a stack one expert."""
    row = torch.Size(shape[1:]).numel()
    size = 1 if len(shape) == 3 else max(1, 65536 // row)
    initial = Initial(name="some.weight", shape=shape, std=0.02, seed=3)
    assert initial.rows_per_block == size
    blocks = []
    for block, start in enumerate(range(0, shape[0], size)):
        digest = blake2b(f"3/some.weight/{block}".encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little", signed=True)
        generator = torch.Generator().manual_seed(key)
        values = torch.empty(min(size, shape[0] - start), *shape[1:])
        blocks.append(values.normal_(0.0, 0.02, generator=generator))
    assert torch.equal(initial.rows(range(shape[0])), torch.cat(blocks))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_rows_are_those_of_the_whole(shape) -> None:
    initial, n = Initial(name="w", shape=shape, std=1.0, seed=0), shape[0]
    whole = initial.rows(range(n))
    shuffled = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
    for rows in (range(n // 2), range(n // 3, n), [n - 1], shuffled[: n // 2 + 1], []):
        assert torch.equal(initial.rows(rows), whole[list(rows)])


def test_init_weights_fills_every_parameter_as_the_config_says(small_section) -> None:
    sizes = {"dim": 256, "n_layers": 8, "ffn_hidden_dim": 512, "vocab_size": 500}
    section = small_section(**sizes, bias=True, norm_type="layernorm", qk_norm=True)
    model = Decoder(section)
    for parameter in model.parameters():
        parameter.detach().fill_(torch.nan)
    init_weights(model, 5)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert torch.all(parameter == (0.0 if name.endswith("bias") else 1.0)), name
            continue
        std = 0.02 / 4 if name.endswith(("wo.weight", "w_down.weight")) else 0.02
        assert abs(parameter.std() / std - 1) < 5 / (2 * parameter.numel()) ** 0.5, name
        drawn = Initial(name=name, shape=parameter.shape, std=std, seed=5)
        assert torch.equal(parameter, drawn.rows(range(len(parameter)))), name
    unscaled = Decoder(small_section(init_scale_residual=False, init_std=0.3))
    assert unscaled.init_std("blocks.0.attention.wo.weight") == 0.3


def test_threads_seeds_and_devices_of_construction(small_section) -> None:
    def weights(seed: int, **options) -> dict[str, torch.Tensor]:
        with torch.device("meta"):
            model = Decoder(small_section(dim=128, vocab_size=2000))
        model.to_empty(device="cpu")
        init_weights(model, seed, **options)
        return model.state_dict() | dict(model.named_buffers())

    one, four, other = weights(1, num_threads=1), weights(1, num_threads=4), weights(2)
    assert one.keys() == four.keys()
    assert all(torch.equal(one[name], four[name]) for name in one)
    assert not torch.equal(one["embedding.weight"], other["embedding.weight"])


def test_a_tied_table_is_drawn_once_under_the_name_of_the_embedding(small_section) -> None:
    tied, untied = Decoder(small_section(tie_embeddings=True)), Decoder(small_section())
    init_weights(tied, 0)
    init_weights(untied, 0)
    names = [{name for name, _ in each.named_parameters()} for each in (untied, tied)]
    assert names[0] - names[1] == {"output.weight"}
    assert tied.output_weight is tied.embedding.weight
    assert torch.equal(tied.output_weight, untied.embedding.weight)
    assert not torch.equal(untied.output_weight, untied.embedding.weight)
