"""Activations of one rank: bytes kept for the backward pass, and FLOPs of recomputation."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from forge.config.model.activations import FP32, INT64, Kept, Named, Numbers, merge_tables
from forge.config.model.decoder import Decoder, Kind
from forge.config.model.document_attention import in_blocks
from forge.config.model.tensors import NORM
from forge.config.optimizers.param_groups import trained
from forge.config.parallel import V_SCHEDULE, Parallel
from forge.config.precision import BYTES
from forge.config.recompute import INPUT, LAST, OFFLOAD, ROUTER
from forge.config.root import Config
from forge.planning.beside import Beside
from forge.planning.exchange import gathers, rows_held
from forge.planning.layout import rows_of_rank

IN_LAYERS = frozenset(("out_proj", LAST, "moe_mlpwo", ROUTER))
"""Tensors unread by recomputation of each layer for itself: outputs of layers, and the router."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Bytes of activations on the device and in host memory."""

    device: float = 0.0
    host: float = 0.0

    def __add__(self, other: Held) -> Held:
        return Held(device=self.device + other.device, host=self.host + other.host)

    def __mul__(self, factor: float) -> Held:
        return Held(device=self.device * factor, host=self.host * factor)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of a kind: bytes kept for one token, by policy.

    input: bytes entering the block. alone: bytes without recomputation. around: bytes always kept
    with each layer recomputed for itself. named: tensors by name. unread: names unread by
    recomputation. apart: whether each layer is recomputed for itself. flops: of a forward pass, a
    token on all ranks.
    """

    input: float
    alone: float
    around: float
    named: Mapping[str, Named]
    unread: frozenset[str]
    apart: bool
    flops: float

    def keepable(self, *, by_name: bool = True) -> dict[str, Named]:
        """Named tensors the second run reads: keeping one spares its computation."""
        left_out = IN_LAYERS if self.apart and by_name else self.unread
        return {name: tensor for name, tensor in self.named.items() if name not in left_out}

    def held(self, places: Mapping[str, str] | None) -> Held:
        """Bytes held for one token. places: device or host by name; None = no recomputation."""
        if places is None:
            return Held(device=self.alone)
        keepable, by_name = self.keepable(), bool(set(places) - {INPUT})
        held = Held(device=self.input)
        if self.apart and by_name:
            held = Held(device=self.around)
        elif places.get(INPUT) == OFFLOAD:
            held = Held(host=self.input)
        for name, storage in places.items():
            bytes = keepable[name].bytes if name in keepable else 0.0
            held += Held(host=bytes) if storage == OFFLOAD else Held(device=bytes)
        return held

    def again(self, places: Mapping[str, str] | None) -> float:
        """FLOPs of recomputation for one token."""
        if places is None:
            return 0.0
        read = self.keepable(by_name=bool(set(places) - {INPUT}))
        spared = sum(tensor.flops for name, tensor in self.named.items() if name not in read)
        return self.flops - spared - sum(tensor.flops for n, tensor in read.items() if n in places)


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The blocks of one rank, cut as `memory_of` assumes."""

    layers: range
    first: bool
    last: bool


class Activations:
    """Activations of a model's blocks on one rank, by layout and micro-batch."""

    def __init__(self, config: Config, model: Decoder) -> None:
        self.config, self.model = config, model
        train, parallel, is_trained = config.train, config.parallel, trained(config)
        self.width = BYTES[config.precision.mixed_precision]
        self.microbatches = parallel.pp_microbatches or 1 if parallel.pp > 1 else 1
        self.sequences = train.batch_size * config.objective.rows
        if parallel.pp > 1:
            self.sequences = -(-rows_of_rank(config) // self.microbatches)
        self.tokens = self.sequences * train.seq_len // parallel.cp
        narrow = self.width == 2 and config.precision.residual_dtype != "fp32"
        self.residual = 2 if narrow else FP32
        self.cut = parallel.tp if parallel.sequence_parallel else 1
        self.beside = Beside(config, model, _rows_of_token(config, model, self.sequences))
        # On a CPU torch's RMSNorm is written out: its weight's gradient reads the normalised input.
        self.normed = (
            config.run.device == "cpu"
            and model.norm_type == "rmsnorm"
            and any(t.role == NORM and is_trained(t.name) for t in model.outside()[1])
        )
        self.numbers = Numbers(
            width=self.width,
            seq_len=train.seq_len,
            tp=parallel.tp,
            masked=config.data.pack_sequences and not in_blocks(config, config.run.device),
            tokens_cut=self.cut,
            passes_states=parallel.cp > 1,
            keys=parallel.kept_keys,
            around=parallel.cp > 1 and parallel.cp_method == "ring",
            normed=self.normed and not train.compile_model,
        )
        self.block = functools.cache(self._block)

    def in_flight(self, stage: Stage) -> float:
        """Number of micro-batches with activations held at once on a rank."""
        if self.config.parallel.pp == 1 or not stage.first:
            return 1.0
        return _in_flight(self.config.parallel, self.microbatches)

    def places(self, stage: Stage) -> Iterator[tuple[Block, Mapping[str, str] | None]]:
        """Yield each known block of a stage, and device or host of its tensors by name; None for a
        block without recomputation.
        """
        policy, n_layers = self.config.train.policy, self.model.n_layers
        for layer in stage.layers:
            if (block := self.block(self.model.kind_of(layer))) is not None:
                recomputed = policy.recomputed(layer, n_layers, stage.layers.start)
                yield block, policy.of_block(layer, n_layers) if recomputed else None

    def held(self, stage: Stage) -> Held | None:
        """Bytes held by all blocks of a stage, and by the input of the head; None = not known."""
        blocks = list(self.places(stage))
        if len(blocks) < len(stage.layers):
            return None
        held = sum((block.held(storages) for block, storages in blocks), Held())
        for layer, (_, storages) in zip(stage.layers, blocks, strict=True):
            if storages is None:
                held += Held(device=self.beside.of_block(layer, self.numbers))
        if stage.first:
            held += Held(device=self.residual * self.model.dim / self.cut * self.model.kept_around)
            held += Held(device=self._of_memories())
        held = held * self.in_flight(stage)
        if stage.last:
            stream = self.residual + (self.residual if self.normed else 0)
            held += Held(device=(stream + self.width) * self.model.dim)
            held += Held(device=self.beside.of_head(self.numbers, self.tokens))
            held += self._further()
        return held * self.tokens

    def _further(self) -> Held:
        """Bytes of a token held by the modules for further tokens, which are not recomputed: of
        each its block, the embedding, what is projected, and what enters the norm and the head.
        """
        model, last = self.model, self.block(self.model.repeated_kind)
        if not model.mtp_num_layers or last is None:
            return Held()
        ends = model.dim * ((3 * self.width + self.residual) / self.cut + self.width)
        return Held(device=model.mtp_num_layers * (last.alone + ends))

    def _of_memories(self) -> float:
        """Bytes of a token kept by memories of n-grams, on whole sequences."""
        model = self.model
        orders, streams = model.engram_max_ngram_size - 1, model.stream_dim(model.dim)
        ids, rows = INT64 * orders * model.engram_num_heads, model.engram_width
        looked_up = ids + (FP32 + self.width) * rows
        # Keys and normed keys, queries, gated values, inputs and outputs of the convolution.
        of_streams = (self.width + (5 + model.engram_kernel_size) * FP32) * streams
        return len(model.engram_layers) * (looked_up + of_streams + FP32 * model.dim)

    def of_block(self, stage: Stage) -> float:
        """Bytes kept by the largest block of a stage in its own backward pass, adapters too."""
        blocks = ((layer, self.block(self.model.kind_of(layer))) for layer in stage.layers)
        kept = (b.alone + self.beside.of_block(at, self.numbers) for at, b in blocks if b)
        return self.tokens * max(kept, default=0.0)

    def recomputes_last(self, stage: Stage) -> bool:
        """Whether the first block of the backward pass runs again as a whole, all else kept."""
        storages = [places for _, places in self.places(stage)]
        return bool(storages) and storages[-1] is not None and not set(storages[-1]) - {INPUT}

    def of_adapter_products(self, stage: Stage) -> float:
        """Bytes of products beside adapted matrices in the backward pass of a compiled block."""
        if not self.config.train.compile_model:
            return 0.0
        products = (self.beside.of_products(layer, self.numbers) for layer in stage.layers)
        return self.tokens * max(products, default=0.0)

    def of_documents(self, stage: Stage) -> int:
        """Bytes of masks and rotations, shared by layers to keep documents apart."""
        parallel = self.config.parallel
        kinds = {self.model.kind_of(layer).name for layer in stage.layers}
        layers = [self.model.of_kind(kind) for kind in kinds]
        blocks = in_blocks(self.config, self.config.run.device)  # block masks are tiny
        scored = [layer for layer in layers if not layer.mixer.recurrent]
        spans = set() if blocks else {layer.span for layer in scored}
        position_bytes = INT64 if len(scored) < len(layers) else 0
        queries = parallel.cp if parallel.cp_method == "ulysses" else 1
        rotary = [layer.rotary_dim for layer in layers if layer.is_rotary]
        masks = len(spans) * queries * self.residual * self.config.train.seq_len
        tempered = sum(layer.is_tempered for layer in layers)
        of_token = masks + position_bytes + FP32 * (2 * sum(rotary) + tempered)
        return round(self.in_flight(stage) * self.tokens * of_token)

    def _block(self, kind: Kind) -> Block | None:
        layer, numbers, apart = self.model.of_kind(kind.name), self.numbers, self._apart
        rows = _rows_of_token(self.config, self.model, self.sequences)
        mixer = layer.mixer.kept(layer, numbers)
        last: Kept | None = layer.feed_forward.kept(layer, numbers)
        if kind.moe:
            last = layer.moe.kept(layer, numbers, rows=rows, outputs=self._outputs(rows))
        if mixer is None or last is None:
            return None
        stream = self.residual * layer.stream_dim(layer.dim) // self.cut
        entering = numbers.width * layer.dim
        mixes, feeds = not layer.mixer.absent, not layer.feed_forward.absent
        # Experts count their input themselves.
        inputs = entering * (mixes + (feeds and not kind.moe))
        around = self._norms(layer) * (mixes + feeds) // self.cut + inputs
        if layer.mhc_expansion_rate > 1:  # streams, and their norm in fp32
            wide = stream + FP32 * layer.stream_dim(layer.dim) // self.cut
            around += (mixes + feeds) * wide
        around += stream if layer.rescaled else 0  # for the gradient of its scalar
        unread = frozenset({LAST} if not (layer.norms_after or kind.moe) else ())
        of_layers = 0.0
        if kind.moe:
            outputs = self._outputs(rows)
            of_layers = layer.moe.kept_around(layer, numbers, rows=rows, outputs=outputs)
        return Block(
            input=stream,
            alone=around + mixer.all + last.all - self._remade(mixer, last, entering),
            around=around + of_layers,
            named=merge_tables(mixer.named, last.named),
            unread=unread,
            apart=apart,
            flops=self.model.kind_flops_per_token(kind, self.config.train.seq_len) / 3,
        )

    def _outputs(self, rows: float) -> float | None:
        """Rows of experts' outputs kept for a token; null = those of its choices."""
        return rows if gathers(self.config, self.model) else None

    @property
    def _apart(self) -> bool:
        """Whether each layer is recomputed for itself: `forge.parallel.apply`."""
        return self.config.parallel.ep > 1

    def _norms(self, layer: Decoder) -> int:
        """Bytes of the inputs of norms before a layer of a block, and after."""
        before, after = bool(layer.norms_before), bool(layer.norms_after)
        of_norm = self.numbers.of_norm if layer.norm_with_scale else 1
        return layer.dim * of_norm * (self.residual * before + self.numbers.width * after)

    def _remade(self, mixer: Kept, last: Kept, entering: int) -> float:
        """Bytes that a compiled block computes again.

        Without experts over ranks, whose layers are not compiled. Products in few bits read casts
        of their inputs, which are made again from inputs of norms and of the gate.
        """
        if not self.config.train.compile_model or self._apart:
            return 0.0
        remade = mixer.remade + last.remade
        if self.config.quantization.in_products:
            remade += 2 * entering + last.remade
        return remade


def flops_again(config: Config) -> float:
    """FLOPs of recomputation for one token, on all ranks; 0 for an unknown model."""
    model = config.decoder
    if model is None or not config.train.policy.recomputes:
        return 0.0
    stage = Stage(layers=range(model.n_layers), first=True, last=True)
    blocks = Activations(config, model).places(stage)
    return sum(block.again(storages) for block, storages in blocks)


def host_bytes(config: Config) -> int:
    """Bytes of activations of the first rank in host memory."""
    model = config.decoder
    if model is None or OFFLOAD not in config.train.policy.places.values():
        return 0
    layers = range(-(-model.n_layers // config.parallel.pp))
    held = Activations(config, model).held(Stage(layers=layers, first=True, last=False))
    return 0 if held is None else round(held.host)


def _in_flight(parallel: Parallel, microbatches: int) -> float:
    """Number of micro-batches with activations held at once on the first rank."""
    pp, stages = parallel.pp, parallel.pp_stages_per_rank or 1
    if parallel.pp_schedule == "gpipe":
        return microbatches
    if parallel.pp_schedule in ("1f1b", V_SCHEDULE):
        return min(pp, microbatches)
    return min(((stages - 1) * pp + 2 * pp - 1) / stages, microbatches)


def _rows_of_token(config: Config, model: Decoder, sequences: int) -> float:
    """Rows held for the experts of a layer, for a token."""
    if model.is_moe and gathers(config, model):
        return rows_held(config, model)
    if not (model.is_moe and model.moe.capacity_factor):
        return model.moe.top_k
    tokens = sequences * config.train.seq_len // config.parallel.cp
    return rows_of_room(config, model, sequences) / max(tokens, 1)


def rows_of_room(config: Config, model: Decoder, sequences: int) -> int:
    """Rows for all experts on one rank under a capacity, as in `forge.models.moe`: each run of
    tokens of a scope may take all the room, but at most one row an expert for each of its tokens.
    """
    moe, parallel = model.moe, config.parallel
    of_sequence = moe.balance_scope == "sequence"
    runs = 1
    if of_sequence or parallel.cp > 1:
        runs = max(sequences, 1) * parallel.runs_of_sequence
    tokens = sequences * config.train.seq_len // parallel.cp // runs
    of_scope = (
        parallel.runs_of_sequence * parallel.cp
        if of_sequence
        else runs * parallel.dp_replicate * parallel.fsdp
    )
    room = math.ceil(moe.capacity_factor * tokens * of_scope * moe.top_k / moe.num_experts)
    return moe.num_experts * runs * min(room, tokens)
