"""Seconds of compute on one device: products by their sizes, attention, memory-bound kernels.

A product of [m, k] and [k, n] takes the longer of its arithmetic and its bytes. Arithmetic reaches
the share of the peak sustained by large products, less the idle part of its last wave of tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from forge.config.adapters.adapter import is_added, is_taken
from forge.config.devices import Device
from forge.config.model.activations import FP32, Numbers
from forge.config.model.decoder import Decoder, Kind
from forge.config.model.tensors import HEAD, ROUTER, TensorSpec, within
from forge.config.optimizers.param_groups import trained
from forge.config.root import Config
from forge.planning import calibration as known

LOW = ("fp8", "mxfp8", "nvfp4", "int8")
"""Formats of quantization with faster products on capable devices; others only round."""
UNKNOWN_KEPT = 17
"""Numbers kept by a block, in widths of its layer, for components without a figure of their own."""


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Seconds of a block, or of layers outside blocks, for one micro-batch."""

    products: float = 0.0
    attention: float = 0.0
    memory: float = 0.0

    @property
    def all(self) -> float:
        return self.products + self.attention + self.memory

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            products=self.products + other.products,
            attention=self.attention + other.attention,
            memory=self.memory + other.memory,
        )

    def __mul__(self, factor: float) -> Seconds:
        return Seconds(
            products=factor * self.products,
            attention=factor * self.attention,
            memory=factor * self.memory,
        )


@dataclass(frozen=True, kw_only=True)
class Pass:
    """Seconds of a forward pass, and of a backward pass without recomputation."""

    forward: Seconds
    backward: Seconds


class Compute:
    """Compute of a rank on a device, for a resolved config.

    tokens: of a micro-batch, on this rank.
    """

    def __init__(self, config: Config, model: Decoder, device: Device, tokens: float) -> None:
        self.config, self.model, self.device, self.tokens = config, model, device, tokens
        train, precision = config.train, config.precision
        self.width = FP32 if precision.mixed_precision == "fp32" else 2
        by_name = {"highest": "fp32", "high": "tf32", "medium": "bf16"}
        self.format = by_name[precision.matmul_precision] if self.width == FP32 else "bf16"
        self.mode = "compiled" if train.compile_model else "eager"
        self.is_trained = trained(config)

    def block(self, kind: Kind) -> Pass:
        """Seconds of one block of a kind."""
        products = [self._of_tensor(tensor) for tensor in self._multiplied(kind)]
        forward_scores, backward_scores = self._attention(kind)
        memory = self._memory(kind)
        forward = Seconds(
            products=sum(f for f, _ in products), attention=forward_scores, memory=0.4 * memory
        )
        backward = Seconds(
            products=sum(b for _, b in products), attention=backward_scores, memory=0.6 * memory
        )
        return Pass(forward=forward, backward=backward)

    def experts(self, kind: Kind) -> float:
        """Seconds of the products of a block's experts, forward and backward."""
        return sum(sum(self._of_tensor(t)) for t in self._multiplied(kind) if t.of_experts)

    def head(self) -> Pass:
        """Seconds of the output head and the loss."""
        model, parallel, objective = self.model, self.config.parallel, self.config.objective
        table = TensorSpec(
            name="output.weight", shape=(model.vocab_size, model.dim), role=HEAD, part="", tp=0
        )
        forward, backward = self._of_tensor(table)
        logits = self.tokens * model.vocab_size / (parallel.tp if parallel.loss_parallel else 1)
        name = "chunked_cross_entropy" if objective.chunked else "cross_entropy"
        memory = logits * known.LOSS_BYTES[name] / self.stream
        return Pass(
            forward=Seconds(products=forward, memory=0.5 * memory),
            backward=Seconds(products=backward, memory=0.5 * memory),
        )

    @property
    def stream(self) -> float:
        """Memory bandwidth of elementwise kernels, in bytes a second."""
        return known.STREAM * self.device.bandwidth

    def _multiplied(self, kind: Kind) -> list[TensorSpec]:
        """The tensors of a block, and of adapters beside, that products are made with."""
        # Take a middle block: quantization may leave out the first and the last.
        tensors = list(within(f"blocks.{self.model.n_layers // 2}", self.model.block_tensors(kind)))
        added = self.config.adapter.added(tensors)
        every = [*tensors, *(tensor for tensor in added if not is_taken(tensor.name))]
        return [tensor for tensor in every if tensor.multiplied]

    def _of_tensor(self, one: TensorSpec) -> tuple[float, float]:
        """Seconds of the product with a weight, and of its backward pass: the gradient of the
        input, and of the weight if trained.
        """
        parallel = self.config.parallel
        shape = one.on_rank(parallel.tp, parallel.ep)
        number, rows, parts = 1, self.tokens, 1
        if one.of_experts:  # a rank computes as many rows as it sends: experts are balanced
            number, parts = shape[0], parallel.ep_overlap_degree
            rows = self.tokens * one.met[0] / number / parts
            shape = shape[1:]
        outputs, inputs = shape[0], prod(shape[1:])
        format, of_weights = self._formats(one)
        forward = parts * self._product(rows, outputs, inputs, number, format)
        of_input = parts * self._product(rows, inputs, outputs, number, format)
        tied = one.role == HEAD and self.model.tie_embeddings
        if not self.is_trained("embedding.weight" if tied else one.name):
            return forward, of_input
        of_weight = parts * self._product(outputs, inputs, rows, number, of_weights)
        return forward, of_input + of_weight

    def _formats(self, one: TensorSpec) -> tuple[str, str]:
        """Formats of a tensor's products: forward and input gradient, and weight gradient."""
        if one.role == ROUTER and self.model.moe.float32_gate_logits:
            return "fp32", "fp32"
        section = self.config.quantization
        kind = section.schema_name
        plain = getattr(section, "emulate", False) or is_added(one.name)
        if kind not in LOW or plain or not section.takes(one, self.model):
            return self.format, self.format
        exact = getattr(section, "wgrad_with_hp", False)
        exact |= getattr(section, "recipe", "") == "rowwise_with_gw_hp"
        return kind, self.format if exact else kind

    def _product(self, m: float, n: float, k: float, number: int, format: str) -> float:
        return product(self.device, ceil(m), ceil(n), ceil(k), number, format, self.width)

    def _attention(self, kind: Kind) -> tuple[float, float]:
        """Seconds of scores and values, forward and backward; half of the products with a causal
        mask over the whole sequence.
        """
        layer, seq_len = self.model.of_kind(kind.name), self.config.train.seq_len
        causal = 0.5 if not layer.mixer.recurrent and layer.seen(seq_len) >= seq_len else 1.0
        flops = causal * layer.mixer.flops(layer, seq_len) * self.tokens
        flops /= self.config.parallel.tp
        backend = layer.sdpa_backend
        share = known.ATTENTION[
            backend if backend in self.device.attention else self.device.attention[0]
        ]
        rate = share * self.device.sustained * self.device.flops(self.format)
        return flops / 3 / rate, known.BACKWARD_SCORES * flops * 2 / 3 / rate

    def _memory(self, kind: Kind) -> float:
        """Seconds of memory-bound kernels: bytes kept by a block, times passes through memory."""
        layer, parallel = self.model.of_kind(kind.name), self.config.parallel
        numbers = Numbers(width=self.width, seq_len=self.config.train.seq_len, tp=parallel.tp)
        mixer = layer.mixer.kept(layer, numbers)
        if kind.moe:
            last = layer.moe.kept(layer, numbers, rows=layer.moe.top_k)
        else:
            last = layer.feed_forward.kept(layer, numbers)
        cut = parallel.tp if parallel.sequence_parallel else 1
        residual = 4 * self.width * layer.dim / cut  # two norms, two additions
        bytes = UNKNOWN_KEPT * self.width * layer.dim
        if mixer is not None and last is not None:
            bytes = residual + mixer.all + last.all
        return known.PASSES[self.mode] * bytes * self.tokens / self.stream


@lru_cache(maxsize=4096)
def product(device: Device, m: int, n: int, k: int, number: int, format: str, width: int) -> float:
    """Seconds of `number` products of [m, k] and [k, n]."""
    size = 1 if format in LOW else width
    bytes = number * (size * (m * k + k * n) + width * m * n)
    reached = device.sustained * (known.FP8_REACHED if format != "bf16" and size == 1 else 1.0)
    rate = device.flops(format) * reached * busy(device, m, n, k, number) / _largest(device)
    return max(2 * number * m * n * k / rate, bytes / (known.STREAM * device.bandwidth))


@lru_cache
def _largest(device: Device) -> float:
    """Busy share for the product size of the measurement of `sustained`."""
    return busy(device, 8192, 8192, 8192)


def busy(device: Device, m: int, n: int, k: int, number: int = 1) -> float:
    """The share of multiprocessors' time with outputs in work, with the best tile size."""
    return max(_busy(device, m, n, k, number, tile) for tile in known.TILES)


def _busy(device: Device, m: int, n: int, k: int, number: int, tile: tuple[int, int]) -> float:
    """The busy share with one tile size; sums may be cut into parts (split-k) for more tiles."""
    rows, columns = tile
    tiles = number * ceil(m / rows) * ceil(n / columns)
    smaller = 0.9 if rows * columns < 128 * 256 else 1.0  # small tiles read inputs more often
    best, parts = 0.0, 1
    while parts == 1 or (parts <= 16 and k // parts >= 512):
        waves = ceil(tiles * parts / device.units)
        filled = number * m * n * parts / (waves * device.units * rows * columns)
        ramp = (k / parts) / (k / parts + known.RAMP)
        best = max(
            best, smaller * filled * ramp * (1 - known.SPLIT_LOSS * (parts.bit_length() - 1))
        )
        parts *= 2
    return best
