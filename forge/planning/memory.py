"""Memory of one device, estimated from the config alone: the largest need over a step's moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from forge.config.model.activations import FP32
from forge.config.model.decoder import Decoder
from forge.config.objectives.base import HeadShape
from forge.config.optimizers import param_groups
from forge.config.parallel import V_SCHEDULE
from forge.config.precision import BYTES
from forge.config.root import Config
from forge.planning.activations import Activations, Stage
from forge.planning.completions import completion_bytes
from forge.planning.frozen import models_beside
from forge.planning.shares import Share, counted, largest, of_trained, share_of
from forge.planning.state import state_of

FORWARD, LOSS, BACKWARD, UPDATE = "forward", "loss", "backward", "update"
ROLLOUT = "rollout"
"""Moments of a step: the end of the forward pass with the loss, the begin and the end of the
backward pass, and the update; in reinforcement learning completions are written before.
"""
WORDS = {
    FORWARD: "at the end of the forward pass",
    LOSS: "at the begin of the backward pass",
    BACKWARD: "at the end of the backward pass",
    UPDATE: "in the update",
    ROLLOUT: "while completions are written",
}
OF_BLOCK = 0.4
"""Gradients of activations inside a block, over what the block keeps: measured."""
OF_BLOCK_AGAIN = 0.5
"""The same of a block that runs again, which keeps what backward else makes again: measured."""
FIRST_GRADIENT = 0.25
"""The gradients of weights that are there at the peak of a block's activations, over all of the
block's: those of the last matrix. Measured."""
WORKSPACES = 64 << 20
"""Bytes that cuBLAS and cuBLASLt have for themselves on Hopper: measured."""
FRAGMENTED = 1.03
"""Memory reserved by the allocator for a stream, over what was allocated; measured: 1.00-1.12."""
STEPS_OF_STREAM = 22 << 20
"""Bytes by which torch's allocator grows a stream: 20 MiB for large tensors, 2 MiB for small."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of a device over a step.

    state: weights, gradients, fp32 masters and optimizer state, each in full. moments: the parts
    that are there at once, by moment. apart: parts with memory of other streams, which nothing else
    can use. buffers: of collectives. in_forward: tensors that live within the forward pass of a
    block alone, and leave holes too small for the loss. copied_at_end: the largest copy to reduce
    after a pipeline's backward passes, which fits into no hole either. cuda: whether torch's
    allocator reserves memory.
    """

    state: Mapping[str, int] = field(default_factory=dict)
    moments: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    buffers: int = 0
    in_forward: int = 0
    copied_at_end: int = 0
    cuda: bool = False

    @property
    def moment(self) -> str:
        """The moment of the largest need; "" = of a model of unknown layers."""
        sizes = {name: sum(parts.values()) for name, parts in self.moments.items()}
        return max(sizes, key=lambda name: sizes[name], default="")

    @property
    def parts(self) -> Mapping[str, int]:
        """Bytes by part, at the moment of the largest need."""
        return self.moments.get(self.moment, {})

    @property
    def allocated(self) -> int:
        """The most bytes of tensors at once; 0 = not known."""
        return sum(self.parts.values())

    @property
    def reserved(self) -> int:
        """Bytes that the process takes from the device for tensors."""
        if not self.cuda:
            return self.allocated
        own_stream = {
            moment: sum(size for name, size in parts.items() if name not in self.apart)
            for moment, parts in self.moments.items()
        }
        grown = round(FRAGMENTED * max(own_stream.values())) + self.copied_at_end
        with_loss = own_stream[FORWARD] + self.in_forward
        streams = [max(grown, with_loss), self.buffers, *map(self.most, self.apart)]
        return sum(size + STEPS_OF_STREAM for size in streams if size)

    def most(self, part: str) -> int:
        """The most bytes of a part at any moment."""
        return max((parts.get(part, 0) for parts in self.moments.values()), default=0)


def memory_of(config: Config) -> Memory:
    """Estimate the memory of the device with the largest need; empty for a model of unknown layers.

    Weights, gradients and optimizer state are exact. Activations are the tensors autograd holds
    after the forward pass with fused attention (as arXiv:2205.05198, section 4), of compiled blocks
    where `train.compile_model`; logits are the peak inside the loss.

    On several devices, tp, pp and ep cut the weights; FSDP shards the rest and gathers block by
    block, or all weights under a pipeline; cp and sequence parallelism cut the tokens. Assumes
    equal numbers of tokens for experts, and of blocks for stages.
    """
    return max(memory_of_ends(config), key=lambda memory: memory.allocated)


def memory_of_ends(config: Config) -> list[Memory]:
    """Estimate the memory of the first and the last rank of a pipeline; a single one without."""
    model, parallel = config.decoder, config.parallel
    if model is None:
        return [Memory()]
    ends = [(True, True)]
    if parallel.pp > 1:
        ends = [(True, parallel.pp_schedule == V_SCHEDULE), (False, True)]
    shares = (share_of(model, parallel, config.adapter, first=f, last=last) for f, last in ends)
    return [_OfRank(config, model, share).memory() for share in shares]


class _OfRank:
    """Memory of one rank of the pipeline."""

    def __init__(self, config: Config, model: Decoder, share: Share) -> None:
        self.config, self.model, self.share = config, model, share
        parallel, precision = config.parallel, config.precision
        self.width, self.weight = BYTES[precision.mixed_precision], BYTES[precision.param_dtype]
        self.gradient = BYTES[precision.stored_gradients]
        several = parallel.fsdp * parallel.dp_replicate * parallel.tp * parallel.pp > 1
        self.fsdp = several or config.one_rank_has_fsdp
        self.activations = Activations(config, model)
        self.stage = Stage(layers=share.layers, first=share.first, last=share.last)
        passes = max(config.train.grad_accum_steps, self.activations.microbatches)
        self.several_passes = passes > 1
        # On one rank gradients may keep the format backward gives: `forge.parallel.apply`.
        same_dtype = precision.stored_gradients == precision.mixed_precision
        unchanged = same_dtype and not (several or self.several_passes)
        reduced = "bf16" if several and precision.reduces_in_bf16 else "fp32"
        self.unreduced_kind = precision.stored_gradients if unchanged else reduced
        self.gradients = f"gradients ({precision.stored_gradients})"

    def memory(self) -> Memory:
        config, parallel = self.config, self.config.parallel
        state = state_of(config, self.model, self.share, self.fsdp)
        self.whole = state[self.gradients]
        resident = {name: size for name, size in state.items() if name != self.gradients}
        offloads = parallel.offload_optimizer and not parallel.cpu_offload
        if offloads:
            resident.pop("optimizer state", None)
        resident |= self._beside_state()
        before = self._before()
        in_backward = config.train.optimizer_in_backward
        ends = {} if in_backward else {self.gradients: self.whole}
        sharded = self.fsdp and parallel.fsdp > 1
        moments = {
            FORWARD: before | self._forward(),
            LOSS: before | self._backward_begins(before),
            BACKWARD: self._backward_ends(before),
            UPDATE: ends | {k: v for k, v in state.items() if k == "optimizer state" and offloads},
        }
        if writing := completion_bytes(config, self.model, self.share, self.width):
            gathered = self._gathered("parameters", stay=False) if sharded else 0
            moments[ROLLOUT] = {"gathered weights": gathered} | writing
        cuda = config.run.device == "cuda"
        apart = {self.gradients} if self.fsdp else set()
        apart |= {"optimizer state"} if offloads else set()
        return Memory(
            state=state,
            moments={
                name: {part: size for part, size in (resident | parts).items() if size}
                for name, parts in moments.items()
            },
            apart=frozenset(apart) if cuda else frozenset(),
            buffers=self._gathered("at_once", stay=False) if sharded and cuda else 0,
            in_forward=self._in_forward(),
            copied_at_end=FP32 * self._trained().outside_at_once
            if sharded and parallel.pp > 1
            else 0,
            cuda=cuda,
        )

    def _in_forward(self) -> int:
        """Bytes of tensors that live within the forward pass of a block alone, before a loss."""
        if not self.share.last or self.activations.held(self.stage) is None:
            return 0
        within = self.activations.of_adapter_products(self.stage)
        return round(within) + self._block() * self.activations.recomputes_last(self.stage)

    def _beside_state(self) -> dict[str, int]:
        """Other parts that are there throughout."""
        config, parallel = self.config, self.config.parallel
        kinds = {self.model.kind_of(layer).name for layer in self.share.layers}
        rotary = [layer.rotary_dim for layer in map(self.model.of_kind, kinds) if layer.is_rotary]
        parts = {"rotary tables": 2 * FP32 * sum(rotary) * self.model.max_seq_len}
        parts["workspaces of cuBLAS"] = WORKSPACES if config.run.device == "cuda" else 0
        if config.adapter.packed_format:
            on_cuda = config.run.device == "cuda"
            unpacked = partial(config.adapter.unpacked_bytes, width=self.width, cuda=on_cuda)
            made = largest(config, self.model, self.share, unpacked)
            # A compiled block unpacks the next one while one is multiplied.
            parts["weights made again"] = round(made) * (2 if config.train.compile_model else 1)
        if config.quantization.zeroes:
            beside = partial(config.quantization.zeroed_bytes, model=self.model, width=self.weight)
            zeroed = counted(config, self.model, self.share, beside)
            parts["zeroed weights, masks"] = zeroed.sharded(parallel)
        for frozen in models_beside(config):
            layout = config.objective.layout_of_frozen(parallel)
            whole = share_of(frozen, layout, first=True, last=True)
            of_model = self.width * whole.at_once * self.fsdp + FP32 * whole.sharded(layout)
            parts["frozen models"] = parts.get("frozen models", 0) + of_model
        return parts

    def _before(self) -> dict[str, int]:
        """Gradients of earlier micro-batches."""
        config = self.config
        if not self.several_passes:
            return {}
        at_end = config.parallel.pp > 1 or config.parallel.reduce_gradients == "step"
        if at_end and (self.fsdp or self.gradient < FP32):
            trained = self._trained()
            return {"unreduced gradients (fp32)": FP32 * trained.parameters}
        return {self.gradients: self.whole}

    def _forward(self) -> dict[str, int]:
        """Parts at the end of the forward pass, with the loss."""
        parts = {"gathered weights": self._gathered("outside_at_once")}
        parts |= self._kept()
        if self.share.last:
            parts["logits"] = self._logits()
        return parts

    def _backward_begins(self, before: Mapping[str, int]) -> dict[str, int]:
        """Parts as the first blocks of the backward pass, and the head, have gradients."""
        parts = {"gathered weights": self._gathered("two_blocks")} | self._kept()
        if self.activations.recomputes_last(self.stage):
            parts["activations"] = parts.get("activations", 0) + self._block()
        parts["gradients inside a block"] = self._inside_block()
        trained = self._trained()
        # The embedding of a first stage, and what else is outside of its blocks, comes last.
        outside = trained.outside_at_once if self.share.last else 0
        moments = [self._in_block(parts, outside, before)]
        if self.fsdp:  # gradients of the head are copied before a block has any
            of_head = self._gradients_of(outside, before, arriving=outside)
            without = {"gathered weights": self._gathered("block")} | self._kept()
            moments.append(without | of_head)
        if self.fsdp and len(self.share.layers) > 1:
            moments.append(self._in_second_block(outside, before, parts))
        return max(moments, key=lambda moment: sum(moment.values()))

    def _in_second_block(
        self, outside: int, before: Mapping[str, int], parts: Mapping[str, int]
    ) -> dict[str, int]:
        """Parts while the first block's gradients are reduced and the second one has its own."""
        block = self._trained().block
        kept = self._kept().get("activations", 0)
        of_first = kept // len(self.share.layers)
        parts = dict(parts) | {"activations": parts.get("activations", 0) - of_first}
        if len(self.share.layers) == 2:
            parts["gathered weights"] = self._gathered("block")
        shards = max(self.config.parallel.fsdp, 1)
        present = before.get(self.gradients, 0) + self.gradient * -(-(outside + block) // shards)
        return self._in_block(parts, block, before) | {self.gradients: min(self.whole, present)}

    def _backward_ends(self, before: Mapping[str, int]) -> dict[str, int]:
        """Parts in the last block of the backward pass, whose own gradients are half there, or not
        yet reduced; the gradient of the embedding comes after it.
        """
        trained, whole = self._trained(), self.whole
        shards = max(self.config.parallel.fsdp, 1)
        parts = {"gathered weights": self._gathered("block")}  # no other block is on its way
        parts["activations"] = self._block()
        parts["gradients inside a block"] = self._inside_block()
        if self.config.train.optimizer_in_backward:
            return parts | self._gradients_of(trained.block, before, trained.block)
        missing = (trained.outside - trained.outside_at_once) // shards
        if self.fsdp:  # which reduces a block's gradients at its end
            experts = trained.experts // len(self.share.layers)
            missing += (trained.block - experts) // shards
            missing += experts // max(self.config.parallel.efsdp, 1)
        else:
            missing += trained.block // 2
        present = whole - min(self.gradient * missing, whole)
        in_block = sum(parts.values())
        if present + in_block < whole:  # the gradients of all need more than any block
            return {self.gradients: whole}
        return self._in_block(parts, trained.block, before) | {self.gradients: present}

    def _in_block(
        self, parts: Mapping[str, int], values: int, before: Mapping[str, int]
    ) -> dict[str, int]:
        """Parts in the backward pass of a block beside gradients of `values` in reduction: at the
        peak of its activations, with its first gradient, or with all and half of activations.
        """
        block, inside = self._trained().block, "gradients inside a block"
        late = dict(parts) | self._gradients_of(values, before, arriving=block)
        if self.config.parallel.pp > 1:  # where other micro-batches add to them
            return late
        first = round(FIRST_GRADIENT * block)
        early = dict(parts) | self._gradients_of(values, before, arriving=first)
        halves = {"activations": self._block() // 2, inside: parts[inside] // 2}
        late |= {name: max(parts.get(name, 0) - half, 0) for name, half in halves.items()}
        return max(early, late, key=lambda moment: sum(moment.values()))

    def _gradients_of(
        self, values: int, before: Mapping[str, int], arriving: int
    ) -> dict[str, int]:
        """Gradients of some parameters: with FSDP copies to reduce, and `arriving` others as
        backward gives them.
        """
        shards = max(self.config.parallel.fsdp, 1)
        parts = dict(before)
        parts[self.gradients] = min(
            self.whole, before.get(self.gradients, 0) + self.gradient * -(-values // shards)
        )
        if self.fsdp:
            kind = self.unreduced_kind
            copied = 0 if "unreduced gradients (fp32)" in before else BYTES[kind]
            name = f"unreduced gradients ({kind})"
            parts[name] = before.get(name, 0) + copied * values + self.width * arriving
        return parts

    def _kept(self) -> dict[str, int]:
        """Activations kept for the backward pass, and masks of documents."""
        held = self.activations.held(self.stage)
        if held is None:
            return {}
        parts = {"activations": round(held.device)}
        if self.config.data.pack_sequences:
            parts["masks of documents"] = self.activations.of_documents(self.stage)
        return parts

    def _block(self) -> int:
        """Bytes kept by the largest block while its backward pass runs."""
        return round(self.activations.of_block(self.stage))

    def _inside_block(self) -> int:
        """Bytes of tensors that live within the backward pass of a block alone."""
        again = self.activations.recomputes_last(self.stage)
        share = OF_BLOCK_AGAIN if again else OF_BLOCK
        return round(share * self._block() + self.activations.of_adapter_products(self.stage))

    def _trained(self) -> Share:
        if param_groups.some_frozen(self.config):
            return of_trained(self.config, self.model, self.share)
        return self.share

    def _logits(self) -> int:
        """Bytes of the loss at its peak."""
        config, model, parallel = self.config, self.model, self.config.parallel
        vocab = -(-model.vocab_size // (parallel.tp if parallel.loss_parallel else 1))
        head = HeadShape(
            tokens=self.activations.tokens,
            vocab=vocab,
            dim=model.dim,
            width=FP32 if model.logits_dot_in_fp32 else self.width,
            capped=model.final_logits_soft_cap > 0,
            compiled=config.train.compile_model and parallel.tp == 1,
            trained=self._trained().outside_at_once > 0,
            further=model.mtp_num_layers,
        )
        # Copies of the weight and of its gradient in fp32.
        copied = 2 * FP32 * vocab * model.dim if head.width > self.width else 0
        return config.objective.logits_bytes(head) + copied

    def _gathered(self, values: str, *, stay: bool = True) -> int:
        """Bytes of the weights FSDP has gathered of a count of `Share`; of all, where they stay."""
        if not self.fsdp:
            return 0
        config, share, factor = self.config, self.share, self.width
        parallel, adapter, quantization = config.parallel, config.adapter, config.quantization
        if quantization.gathers_in_fp8:
            in_fp8 = partial(quantization.gathered_bytes, model=self.model, width=self.width)
            share, factor = counted(config, self.model, share, in_fp8), 1
        elif adapter.packed_format:
            resident = partial(adapter.resident_bytes, width=self.width)
            share, factor = counted(config, self.model, share, resident, adapter), 1
        stays = parallel.pp > 1 or parallel.reshard_after_forward == "never"
        gathered = getattr(share, "parameters" if stays and stay else values)
        if values == "two_blocks" and not stays and parallel.ep > 1 and parallel.efsdp == 1:
            gathered -= share.experts // len(share.layers)  # cast at their use, not ahead
        if stay and 1 < parallel.regathering_ranks < parallel.fsdp:  # parts that wait for backward
            gathered += share.parameters // parallel.regathering_ranks
        return factor * gathered
