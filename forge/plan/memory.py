"""Memory of one device, estimated from the config alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from forge.config.model import Decoder
from forge.config.moe import n_moe_layers
from forge.config.parallel import V_SCHEDULE, Parallel
from forge.config.root import Config
from forge.config.tensors import EXPERT, TensorSpec
from forge.plan.layout import sequences_of_rank

FP32, INT64 = 4, 8
STATE = ("weights (fp32)", "gradients (fp32)", "optimizer state (fp32)")
"""What is exact, and there all the time."""


def memory_by_part(config: Config) -> dict[str, int]:
    """Bytes of the device that needs most, by part; empty for a model of unknown layers.

    On one device weights, gradients and optimizer state are exact. Activations are what autograd
    holds after the forward pass of uncompiled blocks with fused attention (as arXiv:2205.05198,
    section 4); logits are the most that the loss holds at once. The sum is an upper bound.

    On several, tp, pp and ep cut the weights; FSDP shards the rest and gathers it block by block,
    or all of it under a pipeline; cp and sequence parallelism cut the tokens. Experts are taken to
    have equal numbers of tokens, and stages of blocks.
    """
    model, parallel = config.model, config.parallel
    if not isinstance(model, Decoder):
        return {}
    # the ranks that may need most are those at the ends of the pipeline
    shares = [_share(model, parallel, first=True, last=True)]
    if parallel.pp > 1:
        is_last = parallel.pp_schedule == V_SCHEDULE
        shares = [_share(model, parallel, first=True, last=is_last)]
        shares.append(_share(model, parallel, first=False, last=True))
    ranks = [_of_rank(config, model, share) for share in shares]
    return max(ranks, key=lambda parts: sum(parts.values()))


def _of_rank(config: Config, model: Decoder, share: _Share) -> dict[str, int]:
    train, parallel = config.train, config.parallel
    width = FP32 if config.precision.mixed_precision == "fp32" else 2
    several = parallel.fsdp * parallel.dp_replicate * parallel.tp * parallel.pp > 1
    gathered = several or width == 2  # FSDP makes what is multiplied, in 16 bits on one device too
    sharded = 0 if parallel.cpu_offload and gathered else share.sharded(parallel)
    parts = {"weights (fp32)": FP32 * sharded, "gradients (fp32)": FP32 * sharded}
    if config.optimizer.state_per_weight is not None:
        parts["optimizer state (fp32)"] = config.optimizer.state_per_weight * FP32 * sharded
    microbatches = parallel.pp_microbatches or 1 if parallel.pp > 1 else 1
    if gathered:
        at_once = share.outside_at_once + share.two_blocks  # a block, and the next one on its way
        stays = parallel.pp > 1 or parallel.reshard_after_forward == "never"
        several_passes = max(train.grad_accum_steps, microbatches) > 1
        add_up = several_passes and (parallel.pp > 1 or parallel.reduce_gradients == "step")
        parts["gathered weights"] = width * (share.parameters if stays else at_once)
        parts["unreduced gradients (fp32)"] = FP32 * (share.parameters if add_up else at_once)
    sequences, in_flight = train.batch_size, 1.0
    if parallel.pp > 1:
        sequences = -(-sequences_of_rank(config) // microbatches)
        in_flight = _in_flight(parallel, microbatches) if share.first else 1.0
    tokens = sequences * train.seq_len // parallel.cp
    block = _Block(
        config=config,
        model=model,
        width=width,
        residual=2 if width == 2 and config.precision.residual_dtype != "fp32" else FP32,
        moe_share=share.moe_layers / share.layers,
        rows=_rows_of_token(config, model, sequences),
    )
    recomputed = -(-share.layers // max(train.recompute_every, 1))
    kept = recomputed * block.kept(train.activation_checkpointing)
    kept += (share.layers - recomputed) * block.kept("none")
    final = block.norm(model.dim, block.residual) + width * model.dim
    parts["activations"] = tokens * (round(in_flight * kept) + (final if share.last else 0))
    if share.last:
        vocab = -(-model.vocab_size // (parallel.tp if parallel.loss_parallel else 1))
        sizes = {"tokens": tokens, "vocab": vocab, "dim": model.dim, "width": width}
        parts["logits"] = config.objective.logits_bytes(**sizes)
    return parts


def _in_flight(parallel: Parallel, microbatches: int) -> float:
    """Micro-batches whose activations the first rank holds at once."""
    pp, stages = parallel.pp, parallel.pp_stages_per_rank or 1
    if parallel.pp_schedule == "gpipe":
        return microbatches
    if parallel.pp_schedule in ("1f1b", V_SCHEDULE):
        return min(pp, microbatches)
    return min(((stages - 1) * pp + 2 * pp - 1) / stages, microbatches)


@dataclass(frozen=True, kw_only=True)
class _Block:
    """What one block keeps of one token until its backward pass, in bytes.

    width, residual: bytes of a number in matrix products, and between layers. moe_share: of the
    blocks that have experts. rows: that these compute for a token.
    """

    config: Config
    model: Decoder
    width: int
    residual: int
    moe_share: float
    rows: float

    def kept(self, recompute: str) -> float:
        """The mean of blocks with and without experts, under train.activation_checkpointing. tp
        cuts heads and feed-forward width; what enters the two layers is kept whole.
        """
        model, parallel, width = self.model, self.config.parallel, self.width
        tp, cut = parallel.tp, parallel.tp if parallel.sequence_parallel else 1
        residual = self.residual * model.dim // cut
        if recompute == "full":
            return residual
        heads, kv_heads = -(-model.n_heads // tp), -(-model.kv_heads // tp)
        q, kv = heads * model.head_dim, kv_heads * model.head_dim
        ffn, expert = -(-model.computed_ffn_hidden_dim // tp), -(-model.expert_hidden_dim // tp)
        attention = width * q + FP32 * heads  # its output, and the log-partition of each head
        products = width * (q + 2 * kv + model.dim) + attention
        if recompute == "selective" and parallel.ep == 1:
            mean = self._mean(self._products(ffn), self._expert_products(expert))
            return residual + products + mean
        kept = 2 * self.norm(model.dim, self.residual) // cut + width * model.dim
        if recompute == "selective":  # of layers alone: `forge.parallel.activation_checkpoint`
            dense = width * model.dim + self._products(ffn)
            return kept + products + self._mean(dense, self._kept_around_experts(expert))
        kept += width * (q + 2 * kv) + attention
        if model.qk_norm:  # a head at a time
            kept += (heads + kv_heads) * self.norm(model.head_dim, width, rms=True)
        return kept + self._mean(self._feed_forward(ffn), self._experts(expert))

    def norm(self, dim: int, width: int, *, rms: bool = False) -> int:
        """LayerNorm keeps the input, mean and deviation; RMSNorm the input and the root, or, on a
        CPU, where no kernel fuses it, an fp32 copy and the ratio.
        """
        if self.model.norm_type == "layernorm" and not rms:
            return width * dim + 2 * FP32
        return FP32 + (width * dim if self.config.run.device == "cuda" else 2 * FP32 * dim)

    def _mean(self, dense: float, experts: float) -> float:
        return dense * (1 - self.moe_share) + experts * self.moe_share

    def _feed_forward(self, ffn: int) -> int:
        """What a layer of that width keeps, its input too."""
        return self.width * (self.model.dim + ffn * self._copies)

    @property
    def _copies(self) -> int:
        """Tensors as wide as the layer: what the activation reads (not ReLU) and writes, gate and
        product.
        """
        return (1 if self.model.activation == "relu" else 2) + (2 if self.model.is_gated else 0)

    def _products(self, ffn: int) -> int:
        """What the matrices of a layer of that width make."""
        matrices = ffn * (2 if self.model.is_gated else 1) + self.model.dim
        return self.width * matrices if ffn else 0

    def _experts(self, ffn: int) -> int:
        """What a layer of experts of that width keeps."""
        kept = self._routing + round(self.width * self.rows * ffn * self._copies)
        shared = self.model.moe.shared_experts * ffn
        if not shared:
            return kept
        same = self.model.dim * self.width if self.width == self._router_width else 0  # one input
        return kept + self._feed_forward(shared) - same

    def _kept_around_experts(self, ffn: int) -> int:
        """The same where selective recompute keeps what is around experts, and their products."""
        moe = self.model.moe
        shared = moe.shared_experts * ffn
        routed = 0 if moe.capacity_factor else self.rows * self._products(ffn)
        has_input = shared and self._router_width != self.width
        shared_input = self.width * self.model.dim if has_input else 0
        return self._routing + round(self._products(shared) + routed) + shared_input

    def _expert_products(self, ffn: int) -> int:
        """What routers and experts make that selective recompute keeps."""
        moe = self.model.moe
        routed = 0 if moe.capacity_factor else moe.top_k * self._products(ffn)
        shared = self._products(moe.shared_experts * ffn)
        return routed + shared + self._router_width * moe.num_experts

    @property
    def _routing(self) -> int:
        """Inputs of router and experts, what experts give, weights and indices."""
        moe, dim = self.model.moe, self.model.dim
        # of one index an assignment: by the sort, and by a capacity or the exchange over ep
        indices = 6 if moe.capacity_factor or self.config.parallel.ep > 1 else 4
        rows = self.width * round((self.rows + moe.top_k) * dim)
        scores = FP32 * (moe.num_experts + 2 * moe.top_k)
        return rows + indices * INT64 * moe.top_k + scores + self._router_width * dim

    @property
    def _router_width(self) -> int:
        return FP32 if self.model.moe.float32_gate_logits else self.width


def _rows_of_token(config: Config, model: Decoder, sequences: int) -> float:
    """Rows that the experts of a layer compute for a token."""
    if not (model.is_moe and model.moe.capacity_factor):
        return model.moe.top_k
    tokens = sequences * config.train.seq_len // config.parallel.cp
    return rows_of_room(config, model, sequences) / max(tokens, 1)


def rows_of_room(config: Config, model: Decoder, sequences: int) -> int:
    """Rows that a capacity gives all experts on one rank, as `forge.models.moe` has it: each run of
    tokens of a scope may take all the room, but no more than it has tokens.
    """
    moe, parallel = model.moe, config.parallel
    of_sequence = moe.balance_scope == "sequence"
    runs = 1
    if of_sequence or parallel.cp > 1:
        runs = max(sequences, 1) * runs_of_sequence(parallel)
    tokens = sequences * config.train.seq_len // parallel.cp // runs
    of_scope = (
        runs_of_sequence(parallel) * parallel.cp
        if of_sequence
        else runs * parallel.dp_replicate * parallel.fsdp
    )
    room = math.ceil(moe.capacity_factor * tokens * of_scope * moe.top_k / moe.num_experts)
    return moe.num_experts * runs * min(room, tokens)


def runs_of_sequence(parallel: Parallel) -> int:
    """Runs of adjacent tokens that a rank has of a sequence: two where cp balances its work."""
    balanced = parallel.cp_method == "all_gather" and parallel.cp_load_balance
    return 2 if parallel.cp > 1 and balanced else 1


@dataclass(frozen=True, kw_only=True)
class _Share:
    """What one rank has of a model before FSDP shards it: blocks, its stage, and parameters.

    experts: sharded over efsdp. in_blocks, outside: the others, sharded over fsdp. two_blocks: of
    two adjacent blocks. outside_at_once: what is gathered at a time: the embedding is freed before
    the output head is needed. packed: shape of a layer's experts, [experts, width, dim].
    """

    layers: int
    moe_layers: int
    first: bool
    last: bool
    experts: int
    in_blocks: int
    outside: int
    outside_at_once: int
    two_blocks: int
    packed: tuple[int, ...]

    @property
    def parameters(self) -> int:
        return self.experts + self.in_blocks + self.outside

    def sharded(self, parallel: Parallel) -> int:
        """What the FSDP rank with most has: whole experts, or a part of each where they are few."""
        fsdp, efsdp, (count, *others) = max(parallel.fsdp, 1), max(parallel.efsdp, 1), self.packed
        if count < efsdp and any(length % efsdp == 0 for length in others):
            experts = -(-self.experts // efsdp)
        else:
            experts = self.experts * -(-count // efsdp) // max(count, 1)
        return -(-(self.in_blocks + self.outside) // fsdp) + experts


def _share(model: Decoder, parallel: Parallel, *, first: bool, last: bool) -> _Share:
    def size(tensors: Iterable[TensorSpec]) -> int:
        return sum(math.prod(one.on_rank(parallel.tp, parallel.ep)) for one in tensors)

    layers = -(-model.n_layers // parallel.pp)
    before = 0 if first else model.n_layers - layers
    moe_layers = n_moe_layers(model.moe, before + layers) - n_moe_layers(model.moe, before)
    numbers = {False: layers - moe_layers, True: moe_layers}
    blocks = {moe: model.block_tensors(moe=moe) for moe, number in numbers.items() if number}
    packed = [one for one in blocks.get(True, ()) if one.role == EXPERT]
    sizes = {moe: size(tensors) for moe, tensors in blocks.items()}
    two = sum(sizes.values()) if len(sizes) == 2 and model.moe.frequency > 1 else 0
    two = two or min(2, layers) * max(sizes.values())
    tables, after = model.outside()
    embedding, has_head = size(tables[:1]), last and not (first and model.tie_embeddings)
    outside = (size(tables) if first else 0) + (size(after) if last else 0)
    if has_head and model.tie_embeddings:
        outside += embedding
    return _Share(
        layers=layers,
        moe_layers=moe_layers,
        first=first,
        last=last,
        experts=moe_layers * size(packed),
        in_blocks=sum(numbers[moe] * sizes[moe] for moe in sizes) - moe_layers * size(packed),
        outside=outside,
        outside_at_once=outside - (embedding if first and has_head else 0),
        two_blocks=two,
        packed=next((one.on_rank(parallel.tp, parallel.ep) for one in packed), (0, 0, 0)),
    )
