"""The `train` group: the loop. A step is one optimizer update, everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from forge.config.data.batch_sizes import BatchSizes
from forge.config.data.budget import ALL, COUNTS
from forge.config.data.seq_lens import SeqLens
from forge.config.field import Condition, Section, opt, section
from forge.config.parallel import SEVERAL_RANKS
from forge.config.problems import Problem
from forge.config.recompute import AUTO, CUSTOM, POLICIES, Policy, Recompute, places_of

RECOMPUTED = Condition(
    lambda config, ranks: config.train.activation_checkpointing != "none",
    "with train.activation_checkpointing=none",
)
BY_PARAMETERS = Condition(
    lambda config, ranks: config.train.tokens_per_parameter is not None,
    "without train.tokens_per_parameter",
)
GROWS = Condition(lambda config, ranks: config.train.rampup_start > 0, "with train.rampup_start=0")
SKIPS = Condition(
    lambda config, ranks: config.train.skip_step_on_spikes, "with train.skip_step_on_spikes=false"
)
CLIPS_QK = Condition(lambda config, ranks: config.train.use_qk_clip, "with train.use_qk_clip=false")
AVERAGES = Condition(lambda config, ranks: config.train.ema_decay > 0, "with train.ema_decay=0")
FEW, AT_ONCE = 4, 2
"""Sequences of a step over all ranks with train.batch_size=-1, and of a micro-batch.

Micro-batches of two, because one rank then adds up the gradients of the same two sequences as two
ranks, and gets the same bits.
"""


@section
class Train(Section):
    """Batch, horizon, clipping, recomputation and compilation."""

    batch_size: int = opt(
        8, f"sequences a rank and micro-batch; -1 = {FEW} a step over all ranks", ge=-1, free=True
    )
    seq_len: int = opt(2048, "tokens a sequence", gt=0)
    seq_len_stages: list[int] = opt(
        [], "tokens of the rows in the first stages: a sequence is read as several rows", gt=0
    )
    seq_len_until: list[float] = opt(
        [], "step at which each stage ends, or below 1 its share of max_steps", gt=0
    )
    grad_accum_steps: int = opt(1, "micro-batches a step", gt=0, free=True)
    global_batch_size: int | None = opt(
        None, "sequences a step over all ranks; grad_accum_steps follows", gt=0
    )
    global_batch_tokens: int | None = opt(None, "the same in tokens", gt=0)
    rampup_start: int = opt(
        0, "sequences of the first steps, which grow to global_batch_size; 0 = no ramp-up", ge=0
    )
    rampup_increment: int | None = opt(
        None, "sequences by which they grow; null = rampup_start", gt=0, acts_when=GROWS
    )
    rampup_samples: int = opt(
        500, "sequences over which they grow, an equal share at each size", gt=0, acts_when=GROWS
    )
    batch_stages: list[int] = opt(
        [], "tokens of the steps in the first stages, before global_batch_tokens", gt=0
    )
    batch_until: list[int] = opt(
        [], "tokens of the run after which each of batch_stages ends", gt=0
    )
    max_steps: int = opt(
        100_000, "stop after this many optimizer updates; -1 = by a budget of tokens", ge=-1
    )
    max_tokens: int | None = opt(
        None, "in place of max_steps: as many whole steps as fit in these tokens", gt=0, free=True
    )
    tokens_per_parameter: float | None = opt(
        None, "in place of max_steps: this many tokens for each parameter", gt=0, free=True
    )
    parameters_counted: str = opt(
        ALL,
        "parameters of tokens_per_parameter: all, those active for one token, or the active ones "
        "without token and position tables and the output head",
        choices=COUNTS,
        free=True,
        acts_when=BY_PARAMETERS,
    )
    max_epochs: float = opt(
        0.0, "stop after this many passes over the training split; 0 = off", ge=0, free=True
    )
    max_time: float = opt(0.0, "stop after this many minutes of training; 0 = off", ge=0, free=True)
    grad_clip_norm: float = opt(1.0, "clip the global gradient norm to this; 0 = off", ge=0)
    grad_clip_value: float = opt(
        0.0, "then clip each value of the gradient to plus and minus this; 0 = off", ge=0
    )
    optimizer_in_backward: bool = opt(
        False,
        "update each parameter in backward, once its gradient is there, which is freed then",
        free=True,
    )
    ema_decay: float = opt(
        0.0,
        "moving mean of the weights beside training: its share that a move keeps; 0 = no mean",
        ge=0,
        lt=1,
        free=True,
    )
    ema_interval: int = opt(
        1, "updates between moves of the mean", gt=0, acts_when=AVERAGES, free=True
    )
    ema_start_step: int = opt(
        0, "first update that the mean takes in", ge=0, acts_when=AVERAGES, free=True
    )
    ema_warmup: bool = opt(
        False,
        "a smaller decay at first: at most (1 + n) / (10 + n) in the n-th move",
        acts_when=AVERAGES,
        free=True,
    )
    use_qk_clip: bool = opt(
        False, "scale the queries and keys of a head down whose logits grow too large, after a step"
    )
    qk_clip_threshold: float = opt(
        100.0, "the largest logit of attention that is left as it is", gt=0, acts_when=CLIPS_QK
    )
    skip_step_on_spikes: bool = opt(
        False, "skip updates whose loss or gradient norm is a spike among the last steps"
    )
    skip_step_interval: int = opt(
        128, "steps over which mean and deviation are taken", gt=1, acts_when=SKIPS
    )
    skip_step_scaling_factor: float = opt(
        6.0, "deviations above the mean from which it is a spike", gt=0, acts_when=SKIPS
    )
    max_bad_steps: int = opt(
        10, "stop after this many non-finite steps in a row; 0 = never", ge=0, free=True
    )
    compile_model: bool = opt(True, "torch.compile each transformer block", free=True)
    compile_backend: str = opt(
        "inductor",
        "backend of torch.compile",
        choices=("inductor", "aot_eager", "eager"),
        free=True,
    )
    activation_checkpointing: str = opt(
        "none",
        "what blocks keep for backward; the rest is recomputed: full = their input, selective = "
        "what matrices and attention give, others by name; auto, or auto:GB = the cheapest that "
        "fits a device",
        choices=(*POLICIES, AUTO),
        amounts=(AUTO,),
        free=True,
    )
    recompute: Recompute = field(
        default_factory=Recompute,
        metadata={"help": "where tensors are kept, with activation_checkpointing=custom"},
    )
    recompute_every: int = opt(
        1, "recompute in every n-th block only", gt=0, free=True, acts_when=RECOMPUTED
    )
    gc_interval: int = opt(
        50,
        "look for Python's garbage after every N steps, on all ranks at once; 0 = as Python does",
        ge=0,
        free=True,
    )
    recompute_layers: int | None = opt(
        None,
        "blocks that are recomputed, spread evenly; null = by recompute_every",
        gt=0,
        free=True,
        acts_when=RECOMPUTED,
    )
    shutdown_timeout_sec: float = opt(
        600.0, "seconds from a signal to the end of the save", gt=0, free=True
    )
    nccl_health_check_interval: int = opt(
        0,
        "all-reduce every N steps as a sign of life; 0 = off",
        ge=0,
        free=True,
        acts_when=SEVERAL_RANKS,
    )

    def faults(self, prefix: str) -> Iterator[Problem]:
        if self.batch_size == 0:
            key, message = f"{prefix}batch_size", "a micro-batch has a sequence or more"
            hint = f"{key}=1, or -1 to work it out"
            yield Problem(f"{key}=0", f"{key} = 0: {message}.", hint, rule="sequences")
        if self.max_steps == 0:
            key = f"{prefix}max_steps"
            yield Problem(f"{key}=0", f"{key} must be at least 1.", f"{key}=1", rule="steps")

    @property
    def batch_sizes(self) -> BatchSizes:
        """Sequences of each step; needs a resolved global_batch_size."""
        size, start = self.global_batch_size or 0, self.rampup_start
        if self.batch_stages:
            sizes, until = (
                [tokens // self.seq_len for tokens in values]
                for values in (self.batch_stages, self.batch_until)
            )
            return BatchSizes.staged(size, sizes, until)
        if not 0 < start < size:
            return BatchSizes.constant(size)
        increment = self.rampup_increment or start
        return BatchSizes.growing(
            size, start=start, increment=increment, samples=self.rampup_samples
        )

    @property
    def seq_lens(self) -> SeqLens:
        """Tokens of the rows of each step; needs a resolved seq_len_until."""
        until = tuple(int(step) for step in self.seq_len_until)
        lengths = tuple(self.seq_len_stages)
        return SeqLens(full=self.seq_len, sizes=self.batch_sizes, lengths=lengths, until=until)

    @property
    def policy(self) -> Policy:
        """The tensors blocks keep for the backward pass, and so the parts run again."""
        name = self.activation_checkpointing
        return Policy(
            name=name,
            places=places_of(name, self.recompute),
            layers=self.recompute.layers if name == CUSTOM else {},
            every=self.recompute_every,
            blocks=self.recompute_layers,
        )
