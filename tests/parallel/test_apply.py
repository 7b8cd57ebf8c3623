"""Compilation alone and together with recomputation, as `apply` puts them on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from forge.config.parallel import Parallel
from forge.config.train import Train
from forge.models.sampling import generate
from forge.models.sdpa import CUDNN_FIRST, on_device
from forge.parallel.apply import apply_to_blocks, choose_kernels
from forge.parallel.modules import compile_blocks


def config(mode: str, **options) -> SimpleNamespace:
    options = {"compile_model": False, "activation_checkpointing": mode} | options
    return SimpleNamespace(train=Train(**options), parallel=Parallel(), decoder=None)


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("none", {"position": "learned", "activation": "relu2", "sdpa_backend": "math"}),
        pytest.param("full", {}, marks=pytest.mark.nightly),
        ("selective", {}),
    ],
)
def test_compiled_gradients_are_the_plain_ones_and_names_stay(
    small_decoder, gradients, tokens, mode, options
) -> None:
    plain, laid_out = small_decoder(**options), small_decoder(**options)
    apply_to_blocks(laid_out, config(mode, compile_model=True, compile_backend="aot_eager"))
    assert list(laid_out.state_dict()) == list(plain.state_dict())
    counters.clear()
    expected, found = gradients(plain), gradients(laid_out)
    assert counters["stats"]["unique_graphs"] == 1
    for name, reference in expected.items():
        atol = 1e-6 * reference.abs().max().item()
        torch.testing.assert_close(found[name], reference, rtol=1e-6, atol=atol, msg=name)
    with torch.no_grad():
        torch.testing.assert_close(laid_out(tokens), plain(tokens), rtol=1e-6, atol=1e-6)


def test_only_every_nth_block_recomputes(small_decoder, gradients) -> None:
    plain, model = small_decoder(n_layers=5), small_decoder(n_layers=5)
    apply_to_blocks(model, config("full", recompute_every=2))
    calls = dict.fromkeys(model.blocks, 0)
    for name, block in model.blocks.items():

        def count(*_, name=name) -> None:
            calls[name] += 1

        block.attention.wq.register_forward_hook(count)
    expected, found = gradients(plain), gradients(model)
    assert calls == {"0": 2, "1": 1, "2": 2, "3": 1, "4": 2}
    assert all(torch.equal(found[name], reference) for name, reference in expected.items())


def test_recomputation_is_inside_what_is_compiled(small_decoder, gradients) -> None:
    """The compiler sees the checkpoint: its graph has the operator."""
    graphs = []

    def record(graph, inputs):
        graphs.append(graph)
        return graph.forward

    model = small_decoder()
    apply_to_blocks(model, config("full"))
    compile_blocks(model, record)
    gradients(model)
    assert any("tag_activation_checkpoint" in str(node.target) for node in graphs[0].graph.nodes)


def test_rows_of_more_lengths_than_torch_compiles_by_default_are_compiled(small_decoder) -> None:
    torch._dynamo.reset()
    model = small_decoder()
    compile_blocks(model, "eager")
    for length in range(1, 13):
        model(torch.zeros(1, length, dtype=torch.int64))


@pytest.mark.parametrize("use_cache", [True, False])
def test_text_is_sampled_from_the_plain_blocks_and_compiles_nothing(
    small_decoder, tokens, use_cache
) -> None:
    plain, compiled = small_decoder(), small_decoder()
    compile_blocks(compiled, counter := CompileCounter())
    prompt = torch.tensor([[1, 2, 3]])
    text = generate(compiled, prompt, 12, temperature=0, use_cache=use_cache)
    assert counter.frame_count == 0
    assert torch.equal(text, generate(plain, prompt, 12, temperature=0, use_cache=use_cache))
    compiled(tokens)
    assert counter.frame_count == 1


def test_on_hopper_cudnn_is_asked_first_and_others_take_what_it_does_not(small_decoder) -> None:
    """Compiled too, without a graph break; where kernels must be deterministic torch chooses."""
    auto, chosen = small_decoder(n_kv_heads=2), small_decoder(n_kv_heads=2)
    choose_kernels(chosen, (9, 0))
    assert {block.attention.backend for block in chosen.blocks.values()} == {CUDNN_FIRST}
    compile_blocks(chosen, "eager")
    torch._dynamo.reset()
    tokens = torch.arange(16)[None]
    torch.testing.assert_close(chosen(tokens), auto(tokens))
    chosen.eval()
    written = generate(chosen, tokens, 3, temperature=0.0)
    assert torch.equal(written, generate(auto, tokens, 3, temperature=0.0))
    assert on_device("auto", (8, 0)) == "auto"
    assert on_device("flash", (9, 0)) == "flash"
    torch.use_deterministic_algorithms(True)
    try:
        assert on_device("auto", (9, 0)) == "auto"
    finally:
        torch.use_deterministic_algorithms(False)
