"""Parts of the decoder against closed forms; what it refuses; what it offers to an objective."""

from __future__ import annotations

from math import erf, exp, pi, sqrt, tanh

import pytest
import torch
import torch.nn.functional as F

from forge.config.model.layer import ACTIVATIONS as CONFIG_ACTIVATIONS
from forge.models.feed_forward import ACTIVATIONS, FeedForward

CLOSED_FORMS = {
    "silu": lambda x: x / (1 + exp(-x)),
    "gelu": lambda x: x * (1 + erf(x / sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2,
    "quick_gelu": lambda x: x / (1 + exp(-1.702 * x)),
    "relu": lambda x: max(x, 0.0),
    "relu2": lambda x: max(x, 0.0) ** 2,
}


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("name", CONFIG_ACTIVATIONS)
def test_feed_forward_in_closed_form(small_section, name, gated) -> None:
    layer = FeedForward(small_section(activation=name, gated_mlp=gated, bias=True)).double()
    x = torch.randn(2, 5, 32, dtype=torch.float64)

    def linear(part, value):
        return torch.einsum("bti,oi->bto", value, part.weight) + part.bias

    assert set(ACTIVATIONS) == set(CONFIG_ACTIVATIONS) == set(CLOSED_FORMS)
    hidden = linear(layer.w_gate if gated else layer.w_up, x).detach().apply_(CLOSED_FORMS[name])
    hidden = hidden * linear(layer.w_up, x) if gated else hidden
    torch.testing.assert_close(layer(x), linear(layer.w_down, hidden), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tied", [True, False])
def test_an_objective_can_apply_the_head_itself(small_decoder, tied) -> None:
    model, tokens = small_decoder(tie_embeddings=tied), torch.arange(10)[None]
    hidden = model.hidden(tokens)
    assert hidden.shape == (1, 10, 32)
    torch.testing.assert_close(F.linear(hidden, model.output_weight), model(tokens))


@pytest.mark.parametrize("backend", ["flash", "math"])
def test_the_kernels_of_a_cpu_agree(small_decoder, backend) -> None:
    tokens = torch.arange(20)[None]
    auto, chosen = small_decoder(n_kv_heads=2), small_decoder(n_kv_heads=2, sdpa_backend=backend)
    operations = set()

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            operations.add(func.name())
            return func(*args, **(kwargs or {}))

    with Watch():
        logits = chosen(tokens)
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu" in operations
    assert flash == (backend == "flash")
    torch.testing.assert_close(logits, auto(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_a_kernel_that_a_cpu_lacks_is_refused_by_name(small_decoder, backend) -> None:
    what = rf"model\.sdpa_backend='{backend}'.*no such kernel on a CPU; use auto, flash or math"
    with pytest.raises(ValueError, match=what):
        small_decoder(sdpa_backend=backend)(torch.zeros(1, 4, dtype=torch.int64))


@pytest.mark.filterwarnings("error:Mismatch dtype")
@pytest.mark.parametrize(
    "residual", [None, torch.float32], ids=["bf16 between layers", "fp32 between layers"]
)
@pytest.mark.parametrize(
    "options",
    [{"qk_norm": True}, {"position": "learned", "norm_type": "layernorm", "bias": True}],
    ids=str,
)
def test_with_bf16_weights_it_is_the_fp32_model_up_to_bf16_rounding(
    small_decoder, options, residual
) -> None:
    """Hidden states between layers are as configured; rotary tables stay fp32."""
    model, tokens, seen = small_decoder(**options), torch.arange(12)[None], set()
    expected = model(tokens)
    for parameter in model.parameters():
        parameter.data = parameter.bfloat16()
    model.residual_dtype = residual
    model.blocks["1"].register_forward_hook(lambda module, inputs, output: seen.add(output.dtype))
    logits = model(tokens)
    assert seen == {residual or torch.bfloat16}
    assert all(table.cos.dtype == torch.float32 for table in model.rotary.values())
    assert logits.dtype == torch.bfloat16
    assert 1e-4 < (logits - expected).norm() / expected.norm() < 0.03
