"""The `precision` group: number formats of weights and arithmetic."""

from __future__ import annotations

from forge.config.field import Condition, Section, opt, section

IN_16_BITS = Condition(
    lambda config, ranks: config.precision.weights_in_16_bits, "with precision.param_dtype=fp32"
)
IN_FP32 = Condition(
    lambda config, ranks: not config.precision.weights_in_16_bits,
    "with precision.param_dtype=bf16, whose gradients are in bf16",
)
BF16_REDUCED = Condition(
    lambda config, ranks: config.parallel.reduces and config.precision.mixed_precision == "bf16",
    "without gradients of bf16 that several ranks add up: dp_shard, cp, ep and dp_replicate are 1, "
    "or precision.mixed_precision is not bf16",
)
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "auto": 2}
"""Bytes of a number, by the name of its format; auto = unresolved, as another option is wrong."""


@section
class Precision(Section):
    """Number formats of weights and of arithmetic; norms, softmax and losses are fp32 inside."""

    mixed_precision: str = opt(
        "bf16",
        "auto = bf16 with CUDA, else fp32; fp16 scales the loss",
        choices=("auto", "bf16", "fp16", "fp32"),
    )
    residual_dtype: str = opt(
        "auto",
        "hidden states between layers; auto = mixed_precision, but fp32 with fp16",
        choices=("auto", "bf16", "fp16", "fp32"),
    )
    matmul_precision: str = opt(
        "high",
        "with mixed_precision=fp32: highest = fp32, high = TF32, medium = bf16",
        choices=("highest", "high", "medium"),
    )
    param_dtype: str = opt(
        "fp32", "number format of weights and gradients", choices=("fp32", "bf16")
    )
    master_weights: bool | None = opt(
        None,
        "the optimizer keeps the weights in fp32 too; null = unless stochastic_rounding",
        acts_when=IN_16_BITS,
        idle=False,
    )
    stochastic_rounding: bool = opt(
        False,
        "round an updated weight up or down at random, so that on average nothing is lost",
        acts_when=IN_16_BITS,
    )
    reduce_dtype: str = opt(
        "fp32",
        "number format of the gradient reduction between ranks: bf16 halves the bytes and "
        "rounds each sum; the sum over micro-batches stays fp32",
        choices=("fp32", "bf16"),
        acts_when=BF16_REDUCED,
    )
    grad_dtype: str = opt(
        "fp32",
        "number format in which gradients of fp32 weights wait for the update: bf16 halves their "
        "memory; with parallel.reduce_gradients=micro_batch it rounds each sum over micro-batches",
        choices=("fp32", "bf16"),
        acts_when=IN_FP32,
    )
    init_loss_scale: float = opt(65536.0, "first loss scale of fp16; it adapts", gt=0)

    @property
    def weights_in_16_bits(self) -> bool:
        """Whether the model's own weights are in 16 bits."""
        return self.param_dtype != "fp32"

    @property
    def reduces_in_bf16(self) -> bool:
        """Whether ranks add gradients up in bf16."""
        return self.reduce_dtype == "bf16" and self.mixed_precision == "bf16"

    @property
    def gradients_in_bf16(self) -> bool:
        """Whether gradients are stored in bf16, of weights in fp32."""
        return self.grad_dtype == "bf16" and not self.weights_in_16_bits

    @property
    def stored_gradients(self) -> str:
        """The number format of gradients that wait for the update."""
        return "bf16" if self.gradients_in_bf16 else self.param_dtype

    @property
    def any_16_bits(self) -> bool:
        """Whether products or the model's own weights are in 16 bits."""
        return self.mixed_precision != "fp32" or self.weights_in_16_bits

    @property
    def casts(self) -> bool:
        """Whether products take the weights in another format than the stored format."""
        return self.param_dtype != self.mixed_precision
