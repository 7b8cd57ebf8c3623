"""Search the layouts for a plan: try all the rules allow, sort them by time and memory, and explain
the slower ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from forge.config.devices import Device
from forge.config.root import Config
from forge.config.rule import put
from forge.planning.memory import Memory, memory_of
from forge.planning.time import StepTime, step_time
from forge.planning.world import World, ranks_per_node
from forge.resolve.auto import DEGREE_RULES, USABLE, laid_out, layout_name

POWERS = (1, 2, 4, 8, 16, 32)
SHARDS = (1, 8, 64)
"""Numbers of FSDP shards to try beside the largest; the remaining ranks are replicas."""
RECOMPUTE = ("none", "selective", "save_dot_except_mlpwi", "save_qkv_proj", "full")
"""Policies of recomputation to try, least time first."""
MICRO = (8, 4, 2, 1)
STAGES = (1, 2, 4)
"""Stages a rank of a pipeline: 1F1B, and interleaved."""
REFINED = 12
"""Number of fastest layouts to refine with other schedules and micro-batches."""
LONG = 16_384
"""Least tokens a sequence to try context parallelism at."""
KEEP = {
    "batch": ("train.batch_size", "train.grad_accum_steps"),
    "recompute": ("train.activation_checkpointing",),
    "schedule": ("parallel.pp_schedule", "parallel.pp_stages_per_rank"),
}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A tried layout: its config, memory of a device, its step time, and whether it fits."""

    config: Config
    memory: Memory
    time: StepTime | None
    fits: bool

    @property
    def needed(self) -> int:
        return self.memory.reserved

    @property
    def seconds(self) -> float:
        return self.time.seconds if self.time else float("inf")

    @property
    def name(self) -> str:
        """Degrees, schedule, recomputation and micro-batch."""
        parallel, train = self.config.parallel, self.config.train
        text = layout_name({**parallel.degrees()})
        if parallel.dp_replicate > 1 and parallel.dp_shard > 1:
            text += f" {parallel.dp_replicate}x{parallel.dp_shard}"
        stages = parallel.pp_stages_per_rank or 1
        text += f", {stages} stages a rank" if parallel.pp > 1 and stages > 1 else ""
        return f"{text}, {train.activation_checkpointing}, micro-batch {self._micro}"

    @property
    def _micro(self) -> int:
        parallel, train = self.config.parallel, self.config.train
        if parallel.pp == 1:
            return train.batch_size
        return train.batch_size * train.grad_accum_steps // (parallel.pp_microbatches or 1)

    def overrides(self) -> str:
        """The overrides of the layout, as typed on a command line."""
        parallel, train = self.config.parallel, self.config.train
        words = [f"parallel.{axis}={n}" for axis, n in parallel.degrees().items() if n > 1]
        words.append(f"train.batch_size={train.batch_size}")
        words.append(f"train.global_batch_size={train.global_batch_size}")
        words.append(f"train.activation_checkpointing={train.activation_checkpointing}")
        if parallel.pp > 1:
            words.append(f"parallel.pp_schedule={parallel.pp_schedule}")
            words.append(f"parallel.pp_stages_per_rank={parallel.pp_stages_per_rank}")
            words.append(f"parallel.pp_microbatches={parallel.pp_microbatches}")
        return " ".join(words)


def layouts(config: Config, world: World, device: Device, *, kept: frozenset[str]) -> list[Layout]:
    """All tried layouts of a resolved config: fitting ones first, the fastest first.

    kept: typed keys; their values stay, degrees of 1 too. The config's global batch stays.
    """
    search = _Search(config, world, device, kept)
    tried = list(search.coarse())
    fitting = sorted((layout for layout in tried if layout.fits), key=lambda layout: layout.seconds)
    for layout in fitting[:REFINED]:
        tried += search.refined(layout)
    return sorted(tried, key=lambda layout: (not layout.fits, layout.seconds, layout.needed))


class _Search:
    """The search over layouts of one config on one kind of machine."""

    def __init__(self, config: Config, world: World, device: Device, kept: frozenset[str]) -> None:
        self.config, self.world, self.device = config, world, device
        self.node = ranks_per_node(world)
        self.sequences = config.train.global_batch_size or 0
        self.kept = {name for name, keys in KEEP.items() if kept & set(keys)}
        degrees = config.parallel.degrees()
        self.given = {axis: n for axis, n in degrees.items() if f"parallel.{axis}" in kept}

    def coarse(self) -> Iterator[Layout]:
        """Yield each choice of degrees with the least recomputation and the largest micro-batch
        within memory, else with the choice of least memory.
        """
        for degrees in self.degrees():
            base = self.with_degrees(degrees)
            if base is None:
                continue
            tried = None
            for recompute in self.recomputations(base):
                tried = self.largest(base, recompute)
                if tried.fits:
                    break
            if tried is not None:
                yield self.timed(tried)

    def refined(self, one: Layout) -> Iterator[Layout]:
        """Yield the same degrees with other schedules and smaller micro-batches, and with more
        recomputation, for larger micro-batches.
        """
        train, parallel = one.config.train, one.config.parallel
        modes = self.recomputations(one.config)
        position = modes.index(train.activation_checkpointing)
        stages = STAGES if parallel.pp > 1 and "schedule" not in self.kept else (None,)
        for mode, number in product(modes[position : position + 2], stages):
            base = self.with_degrees(parallel.degrees(), stages=number)
            if base is None:
                continue
            largest = self.largest(base, mode)
            if not largest.fits:
                continue
            unchanged = mode == train.activation_checkpointing and number in (None, 1)
            sizes = [largest.config.train.batch_size]
            if "batch" not in self.kept and sizes[0] > 1:
                sizes.append(sizes[0] // 2)
            for size in sizes[1:] if unchanged else sizes:
                yield self.timed(self.tried(base, mode, size))

    def degrees(self) -> Iterator[dict[str, int]]:
        """Yield every division of the ranks over the axes; given degrees stay."""
        experts = self.config.model.routed_experts
        sizes = {
            "tp": [n for n in POWERS if n <= 2 * self.node],
            "pp": list(POWERS),
            "cp": [n for n in POWERS if n == 1 or self.config.train.seq_len >= LONG],
            "ep": [n for n in (1, 2, 4, 8, 16, 32, 64) if n == 1 or (experts and experts % n == 0)],
        }
        for axis in sizes:
            if axis in self.given:
                sizes[axis] = [self.given[axis]]
        for chosen in product(*sizes.values()):
            degrees = dict(zip(sizes, chosen, strict=True))
            model_ranks = degrees["tp"] * degrees["pp"] * degrees["cp"] * degrees["ep"]
            ranks, remainder = divmod(self.world.size, model_ranks)
            if remainder or self.sequences % (ranks * degrees["ep"]):
                continue
            for n in self._shards(ranks):
                replicas = self.given.get("dp_replicate", ranks // n)
                if n * replicas == ranks:
                    yield {**degrees, "dp_shard": n, "dp_replicate": replicas}

    def _shards(self, ranks: int) -> list[int]:
        """Degrees of dp_shard to try on so many data-parallel ranks, the largest first."""
        if "dp_shard" in self.given:
            return [self.given["dp_shard"]]
        if "dp_replicate" in self.given:
            return [max(ranks // self.given["dp_replicate"], 1)]
        return sorted({ranks, *(n for n in SHARDS if ranks % n == 0)}, reverse=True)

    def with_degrees(self, degrees: dict[str, int], stages: int | None = None) -> Config | None:
        """The config with these degrees and one sequence a micro-batch; None where a rule on
        degrees refuses them.
        """
        parallel = replace(self.config.parallel, pp_stages_per_rank=None, pp_microbatches=None)
        if "schedule" in self.kept:
            parallel.pp_stages_per_rank = self.config.parallel.pp_stages_per_rank
        elif stages:
            parallel.pp_schedule = "interleaved_1f1b" if stages > 1 else "1f1b"
            parallel.pp_stages_per_rank = stages
        parallel.reshard_after_forward = "always" if degrees["dp_shard"] > 1 else "never"
        if degrees["pp"] > 1:
            parallel.reshard_after_forward = "never"
        parallel.reduce_gradients = "step"
        train = replace(self.config.train, grad_accum_steps=1)
        if "batch" not in self.kept:
            train.batch_size = 1
        base = replace(self.config, parallel=parallel, train=train)
        base = laid_out(base, degrees, self.world)
        problems = (p for rule in DEGREE_RULES for p in rule.check(base, self.world))
        return None if next(problems, None) else base

    def recomputations(self, base: Config) -> list[str]:
        if "recompute" in self.kept:
            return [base.train.activation_checkpointing]
        return list(RECOMPUTE)

    def largest(self, base: Config, recompute: str) -> Layout:
        """Lay out the largest micro-batch within memory, else one sequence."""
        smallest = self.tried(base, recompute, base.train.batch_size)
        if "batch" in self.kept or not smallest.fits:
            return smallest
        per_sequence = smallest.memory.most("activations")
        room = USABLE * self.device.memory - smallest.needed
        for size in MICRO:
            legal = base.train.grad_accum_steps % size == 0
            enough = (
                base.parallel.pp == 1 or base.train.grad_accum_steps // size >= base.parallel.pp
            )
            if size > 1 and legal and enough and (size - 1) * per_sequence <= room:
                larger = self.tried(base, recompute, size)
                if larger.fits:
                    return larger
        return smallest

    def tried(self, base: Config, recompute: str, size: int) -> Layout:
        """Lay out a policy of recomputation and a micro-batch of `size` sequences."""
        train = replace(base.train, batch_size=size, activation_checkpointing=recompute)
        sequences = base.train.batch_size * base.train.grad_accum_steps
        train.grad_accum_steps = sequences // size
        parallel = replace(base.parallel)
        if parallel.pp > 1:
            parallel.pp_microbatches = sequences // size
        config = replace(base, train=train, parallel=parallel)
        put(config, "parallel.reduce_gradients", self._reduction(config))
        memory = memory_of(config)
        fits = memory.reserved <= USABLE * self.device.memory
        return Layout(config=config, memory=memory, time=None, fits=fits)

    def _reduction(self, config: Config) -> str:
        """When to reduce gradients: each micro-batch where FSDP shards them, like auto does when
        memory is short.
        """
        several = config.parallel.pp == 1 and config.train.grad_accum_steps > 1
        return "micro_batch" if several and config.parallel.fsdp > 1 else "step"

    def timed(self, one: Layout) -> Layout:
        if not one.fits:
            return one
        time = step_time(one.config, self.device, self.node, one.memory)
        return replace(one, time=time)


def largest_loss(one: Layout, best: Layout, device: Device, node: int) -> str:
    """The largest loss of a layout against the best one, in words."""
    if not one.fits:
        parts = one.memory.parts
        part = max(parts, key=lambda name: parts[name])
        return f"does not fit: {part}"
    if one.time is None or best.time is None:
        return ""
    parts, parts_of_best = _gathered(one.time), _gathered(best.time)
    most = max(parts, key=lambda name: parts[name] - parts_of_best.get(name, 0.0))
    across, pipelined = one.config.parallel.tp > node, one.config.parallel.pp > 1
    causes = {
        "tp": "tp across nodes" if across else "waits for tp",
        "fsdp": "gathers and reductions of fsdp",
        "bubble": "bubble of the pipeline",
        "compute": "uneven stages" if pipelined else "smaller products",
        "cp": "waits for cp",
        "ep": "waits for experts",
        "pp": "messages of the pipeline",
    }
    excess = parts[most] - parts_of_best.get(most, 0.0)
    return f"{causes.get(most, most)}: {excess:+.3g} s"


def _gathered(time: StepTime) -> dict[str, float]:
    """Seconds of a step by part, with all compute of a rank as one part."""
    compute = ("products", "attention", "elementwise", "head and loss")
    parts = {name: part for name, part in time.parts.items() if name not in compute}
    return parts | {"compute": sum(time.parts.get(name, 0.0) for name in compute)}
