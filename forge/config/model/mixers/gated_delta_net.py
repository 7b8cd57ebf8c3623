"""Gated delta nets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from forge.config.field import opt, section
from forge.config.model.activations import FP32, Kept, Numbers
from forge.config.model.layer import LayerShape
from forge.config.model.mixers.base import OF_HEADS, OF_SCORES, Mixer, Passed
from forge.config.model.tensors import BIAS, NORM, LogUniform, TensorSpec, linear, norm
from forge.config.rule import Findings, nearest_divisor, rule

DECAYS = LogUniform(0.01, 16.0)
"""First values of a_log, as in transformers' Qwen3NextGatedDeltaNet; dt_bias begins at 1."""
COMPILED_AGAIN = 0.37
"""Share of what the chunks keep that a compiled block computes again: measured with Qwen3-Next."""


@section
class GatedDeltaNet(Mixer):
    """A state of one size a head, which each token decays and corrects (arXiv:2412.06464), as in
    Qwen3-Next. It reads tokens in their order, and needs no positions.
    """

    schema_name = "gated_delta_net"
    reads_documents = True
    recurrent = True
    unread = (*OF_HEADS, *OF_SCORES)
    _target_: str = "forge.models.gated_delta_net.GatedDeltaNet"
    gdn_conv_kernel_dim: int = opt(
        4,
        "tokens that the convolution of a channel sees, with the present one",
        gt=0,
    )
    gdn_key_head_dim: int = opt(128, "width of a head's queries and keys", gt=0)
    gdn_value_head_dim: int = opt(128, "width of a head's values", gt=0)
    gdn_num_key_heads: int = opt(16, "heads of queries and keys", gt=0)
    gdn_num_value_heads: int = opt(32, "heads of values, each with a state of its own", gt=0)
    gdn_chunk_size: int = opt(64, "tokens that are read at a time, by matrix products", gt=0)
    use_qk_norm_in_gdn: bool = opt(True, "scale queries and keys to length 1")
    gdn_kernel: str = opt(
        "auto",
        "what computes it: torch, or the kernels of flash-linear-attention; auto = these on an "
        "NVIDIA GPU in 16 bits, where they are installed and right",
        choices=("auto", "torch", "fla"),
    )

    @property
    def key_width(self) -> int:
        """Width of the queries of all heads, and of the keys."""
        return self.gdn_num_key_heads * self.gdn_key_head_dim

    @property
    def value_width(self) -> int:
        return self.gdn_num_value_heads * self.gdn_value_head_dim

    def cut_heads(self, layer: LayerShape) -> dict[str, int]:
        return {
            "mixer.gdn_num_value_heads": self.gdn_num_value_heads,
            "mixer.gdn_num_key_heads": self.gdn_num_key_heads,
        }

    def tensors(self, layer: LayerShape) -> Iterator[TensorSpec]:
        """Yield the parameters.

        Convolutions have the role of norms: few weights for each channel, and no matrix for an
        optimizer of matrices.
        """
        part, dim, heads = "attention", layer.dim, self.gdn_num_value_heads
        of_keys: dict[str, Any] = {"part": part, "tp": 0, "pieces": self.gdn_num_key_heads}
        of_values: dict[str, Any] = {"part": part, "tp": 0, "pieces": heads}
        keys, values = (self.key_width, of_keys), (self.value_width, of_values)
        for name, (width, cut) in (("q", keys), ("k", keys), ("v", values)):
            shape = (width, self.gdn_conv_kernel_dim)
            yield TensorSpec(name=f"conv_{name}", shape=shape, role=NORM, **cut)
        yield TensorSpec(name="a_log", shape=(heads,), role=BIAS, initial=DECAYS, **of_values)
        yield TensorSpec(name="dt_bias", shape=(heads,), role=BIAS, initial=1.0, **of_values)
        for name, (width, cut) in (("q", keys), ("k", keys), ("v", values), ("z", values)):
            yield from linear(f"w{name}", width, dim, **cut)
        for name in ("wb", "wa"):
            yield from linear(name, heads, dim, **of_values)
        yield from norm("norm", self.gdn_value_head_dim, part=part)
        yield from linear("wo", dim, self.value_width, part=part, tp=1, residual=True)

    def flops(self, layer: LayerShape, seq_len: int) -> int:
        """Return 6 * the products of a token in chunks of C.

        Products of each key head: C * 2 * key width. Of each value head: C * value width + 3 * key
        * value width, and C / 2 * (key + value width) for the solution.
        """
        chunk = min(self.gdn_chunk_size, seq_len)
        key, value = self.gdn_key_head_dim, self.gdn_value_head_dim
        head = chunk * value + 3 * key * value + chunk * (key + value) // 2
        return 6 * (2 * chunk * self.key_width + self.gdn_num_value_heads * head)

    def passed(self, layer: LayerShape, tp: int) -> Passed:
        heads, key_heads = -(-self.gdn_num_value_heads // tp), -(-self.gdn_num_key_heads // tp)
        key, value = self.gdn_key_head_dim, self.gdn_value_head_dim
        channels = 2 * key_heads * key + heads * value
        return Passed(self.gdn_conv_kernel_dim - 1, channels, heads * key * (key + value))

    def kept(self, layer: LayerShape, numbers: Numbers) -> Kept:
        """Return the memory kept with the products of torch, all in fp32.

        The kernels of flash-linear-attention keep less.
        """
        width, tp = numbers.width, numbers.tp
        heads, key_heads = -(-self.gdn_num_value_heads // tp), -(-self.gdn_num_key_heads // tp)
        key, value = self.gdn_key_head_dim, self.gdn_value_head_dim
        keys, values = key_heads * key, heads * value
        chunk = min(self.gdn_chunk_size, numbers.seq_len)
        # Convolved, activated and cut into chunks; normed; and the products of chunks and states.
        in_fp32 = 3 * (2 * keys + values) + 2 * keys + 2 * chunk * key_heads
        in_fp32 += heads * (4 * chunk + 2 * value + 3 * key + key * value / chunk)
        if numbers.passes_states:  # as many columns more as a key has, and their output
            in_fp32 += heads * key * (3 + key / chunk)
        gate = (4 * width + FP32) * values
        wide = {"query_proj": keys, "key_proj": keys, "value_proj": values}
        wide["gdn_gates"] = values + 2 * heads
        tensors = {name: numbers.product(n * tp, layer.dim) for name, n in wide.items()}
        tensors["out_proj"] = numbers.to_stream(layer.dim, self.value_width)
        total = FP32 * in_fp32 + gate
        return Kept(all=total, named=tensors, remade=COMPILED_AGAIN * total)


@rule("model.gdn_heads", "model.mixer", "model.kinds", "model.layers")
def gdn_heads(model: LayerShape) -> Findings:
    """The value heads of a gated delta net must be divisible by its key heads: each of these serves
    equally many.
    """
    for path, layer in model.in_use():
        net = layer.mixer
        if isinstance(net, GatedDeltaNet) and net.gdn_num_value_heads % net.gdn_num_key_heads:
            values, keys = net.gdn_num_value_heads, net.gdn_num_key_heads
            key = f"{path}.mixer.gdn_num_key_heads"
            message = (
                f"{path}.mixer.gdn_num_value_heads ({values}) must be divisible by {key} ({keys})."
            )
            yield key, message, f"{key}={nearest_divisor(values, keys)}"
