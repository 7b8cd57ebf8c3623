"""Mamba-2 layers: state spaces whose decay is a number a head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.field import opt, section
from forge.config.model.activations import FP32, Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import OF_HEADS, OF_SCORES, Mixer, Passed
from forge.config.model.tensors import BIAS, NORM, LogUniform, TensorSpec, Uniform, linear, norm
from forge.config.rule import Findings, nearest_divisor, rule

DECAYS = LogUniform(1.0, 16.0)
"""First values of a_log, as in the paper's code."""
STEPS = Uniform(-6.907, -2.252)
"""First values of dt_bias: softplus of them goes from 0.001 to 0.1, nearly log-uniform."""
COMPILED_AGAIN = 0.4
"""Share of what the chunks keep that a compiled block computes again: with it estimates are within
6 % of what was measured for four small shapes on a CPU.
"""


@section
class Mamba2(Mixer):
    """A state space with one decay a head (arXiv:2405.21060), as in Granite 4, Bamba and
    Nemotron-H. It reads tokens in their order, and needs no positions.
    """

    schema_name = "mamba2"
    reads_documents = True
    recurrent = True
    unread = (*OF_HEADS, *OF_SCORES, "bias")
    _target_: str = "forge.models.mixers.mamba2.Mamba2"
    ssm_num_heads: int = opt(64, "heads, each with a state and a decay of its own", gt=0)
    ssm_head_dim: int = opt(64, "width of a head's inputs and outputs", gt=0)
    ssm_state_size: int = opt(128, "width of a state, for each number of a head's input", gt=0)
    ssm_n_groups: int = opt(1, "groups of heads that read and write their states alike", gt=0)
    ssm_conv_kernel_dim: int = opt(
        4, "tokens that the convolution of a channel sees, with the present one", gt=0
    )
    ssm_conv_bias: bool = opt(True, "add biases to the convolutions")
    ssm_proj_bias: bool = opt(False, "add biases to the projections in and out")
    ssm_time_step_min: float = opt(0.0, "least step by which a token moves a state", ge=0)
    ssm_time_step_max: float | None = opt(None, "greatest such step; null = no bound", gt=0)
    ssm_chunk_size: int = opt(128, "tokens that are read at a time, by matrix products", gt=0)

    @property
    def inner_width(self) -> int:
        """Width of the inputs of all heads."""
        return self.ssm_num_heads * self.ssm_head_dim

    @property
    def state_width(self) -> int:
        """Width of what all groups write into states, and of what they read with."""
        return self.ssm_n_groups * self.ssm_state_size

    def cut_heads(self, layer: LayerShape) -> dict[str, int]:
        return {
            "mixer.ssm_num_heads": self.ssm_num_heads,
            "mixer.ssm_n_groups": self.ssm_n_groups,
        }

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        """Yield the parameters; convolutions have the role of norms, as in a gated delta net."""
        heads, taps, dim = self.ssm_num_heads, self.ssm_conv_kernel_dim, layer.dim
        of_heads: dict[str, Any] = {"part": "attention", "tp": 0, "pieces": heads}
        of_groups: dict[str, Any] = of_heads | {"pieces": self.ssm_n_groups}
        inner, state = (self.inner_width, of_heads), (self.state_width, of_groups)
        # The first values of torch's Conv1d with one channel a group.
        even = Uniform(-(taps**-0.5), taps**-0.5)
        for name, (width, cut) in (("x", inner), ("b", state), ("c", state)):
            yield TensorSpec(
                name=f"conv_{name}", shape=(width, taps), role=NORM, initial=even, **cut
            )
        for name, (width, cut) in (("x", inner), ("b", state), ("c", state)):
            if self.ssm_conv_bias:
                yield TensorSpec(name=f"conv_{name}_bias", shape=(width,), role=BIAS, **cut)
        for name, initial in (("a_log", DECAYS), ("dt_bias", STEPS), ("d", 1.0)):
            yield TensorSpec(name=name, shape=(heads,), role=BIAS, initial=initial, **of_heads)
        steps, bias = (heads, of_heads), self.ssm_proj_bias
        projections = (("z", inner), ("x", inner), ("b", state), ("c", state), ("dt", steps))
        for name, (width, cut) in projections:
            yield from linear(f"w{name}", width, dim, bias=bias, **cut)
        yield from norm("norm", self.inner_width, **of_heads)
        last: dict[str, Any] = {"part": "attention", "tp": 1, "residual": True, "bias": bias}
        yield from linear("wo", dim, self.inner_width, **last)

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Return 6 * the products of a token in chunks of C.

        Products of each group: C * state size. Of each head: C * width + 2 * state size * width.
        """
        chunk = min(self.ssm_chunk_size, seq_len)
        head = chunk * self.ssm_head_dim + 2 * self.ssm_state_size * self.ssm_head_dim
        return 6 * (chunk * self.state_width + self.ssm_num_heads * head)

    def passed(self, layer: LayerShape, tp: int) -> Passed:
        heads, groups = -(-self.ssm_num_heads // tp), -(-self.ssm_n_groups // tp)
        state = self.ssm_state_size * self.ssm_head_dim
        channels = heads * self.ssm_head_dim + 2 * groups * self.ssm_state_size
        return Passed(self.ssm_conv_kernel_dim - 1, channels, heads * (1 + state))

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        """Return the memory kept by the products in chunks, all in fp32."""
        width, tp, state = numbers.width, numbers.tp, self.ssm_state_size
        heads, groups = -(-self.ssm_num_heads // tp), -(-self.ssm_n_groups // tp)
        inner, written = heads * self.ssm_head_dim, groups * state
        chunk = min(self.ssm_chunk_size, numbers.seq_len)
        # Convolved and activated; cut into chunks; scores of groups and of heads; states.
        in_fp32 = 3 * (inner + 2 * written) + 3 * inner + groups * chunk
        in_fp32 += heads * (2 * chunk + 2 * state + 2 * state * self.ssm_head_dim / chunk)
        if numbers.passes_states:
            in_fp32 += 2 * inner + written + heads
        in_fp32 += 4 * inner  # the gate, what it multiplies, and the norm of their product
        wide = {"query_proj": written, "key_proj": written, "value_proj": inner}
        wide["gdn_gates"] = inner + heads
        tensors = {name: numbers.product(n * tp, layer.dim) for name, n in wide.items()}
        tensors["out_proj"] = numbers.to_stream(layer.dim, self.inner_width)
        total = FP32 * in_fp32 + 2 * width * inner
        return Kept(all=total, named=tensors, remade=COMPILED_AGAIN * total)


@rule("model.ssm_groups", "model.mixer", "model.kinds", "model.layers")
def ssm_groups(model: LayerShape) -> Findings:
    """The heads of a Mamba-2 layer must be divisible by its groups: each of these serves equally
    many.
    """
    for path, layer in model.in_use():
        mixer = layer.mixer
        if isinstance(mixer, Mamba2) and mixer.ssm_num_heads % mixer.ssm_n_groups:
            heads, groups = mixer.ssm_num_heads, mixer.ssm_n_groups
            key = f"{path}.mixer.ssm_n_groups"
            message = f"{path}.mixer.ssm_num_heads ({heads}) must be divisible by {key} ({groups})."
            yield key, message, f"{key}={nearest_divisor(heads, groups)}"
