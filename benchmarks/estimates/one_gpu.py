"""Ways to train Llama 3 8B on one GPU: memory by part, which fit, and the tokens a second that are
expected. Planned, on whatever machine this runs; no GPU is needed.

    python benchmarks/estimates/one_gpu.py > benchmarks/results/one_gpu.md

Of each way the micro-batch and the recomputation with most tokens a second, by the model of time in
docs/planning.md, of those that fit; where none does, those that need least.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import forge
from forge.config import devices as known
from forge.config.root import Config
from forge.planning.memory import Memory, memory_of
from forge.planning.time import StepTime, planned_time

GIB = 1 << 30
MODEL = (
    *("model=llama3_8b", "train=long", "eval=off", "data=synthetic", "tokenizer=bytes"),
    *("train.seq_len=4096", "train.global_batch_size=null", "train.grad_accum_steps=1"),
    *("objective.loss_fn=chunked_cross_entropy", "precision=bf16", "plan.world_size=1"),
)
ADAMW, IN_16 = "optimizer=adamw_large", "precision.param_dtype=bf16"
HALF = ("optimizer.mu_dtype=bf16", "optimizer.nu_dtype=bf16")
STOCHASTIC = (IN_16, "precision.stochastic_rounding=true")
WAYS = {
    "A: all in fp32": (ADAMW,),
    "B: moments in bf16": (ADAMW, *HALF),
    "C: weights and moments in bf16, fp32 masters": (ADAMW, IN_16, *HALF),
    "D: weights and moments in bf16, stochastic rounding": (ADAMW, *STOCHASTIC, *HALF),
    "E: weights in bf16, stochastic rounding, moments in 8 bits": (
        "optimizer=adamw_low_bit",
        *STOCHASTIC,
    ),
    "C, masters and moments on the host": (
        *(ADAMW, IN_16, *HALF),
        "parallel.offload_optimizer=true",
    ),
    "E, updates in backward": (
        *("optimizer=adamw_low_bit", *STOCHASTIC),
        *("train.optimizer_in_backward=true", "train.grad_clip_norm=0"),
    ),
}
DEVICES = {name: known.DEVICES[name].memory / GIB for name in ("h200", "h100")}
ROOM = 3.0
"""GiB left for what is not estimated: the CUDA context, workspaces, what the allocator wastes."""
RECOMPUTE = ("none", "selective", "full")
BATCHES = (1, 2, 3, 4, 6, 8)
HOST = 50e9
"""Bytes a second between a GPU and its host, each way, at once both ways; PCIe 5.0 with 16 lanes
has 63e9.
"""


@dataclass(frozen=True, kw_only=True)
class Found:
    config: Config
    memory: Memory
    time: StepTime
    recompute: str

    @property
    def gib(self) -> float:
        return self.memory.reserved / GIB

    @property
    def speed(self) -> float:
        """Tokens a second; state on the host comes and goes once a step."""
        seconds = self.time.seconds
        if self.config.parallel.offload_optimizer:
            seconds += state_bytes(self.config) / HOST
        return self.time.tokens / seconds


def state_bytes(config: Config) -> int:
    """Of moments and masters, where they are on the device."""
    here = replace(config, parallel=replace(config.parallel, offload_optimizer=False))
    parts = memory_of(here).state
    return parts["optimizer state"] + parts.get("fp32 masters", 0)


def candidates(device: str, way: tuple[str, ...]) -> list[Found]:
    """Of each recomputation the micro-batches up to the first that does not fit."""
    found = []
    for name in RECOMPUTE:
        for batch in BATCHES:
            words = [*MODEL, *way, f"plan.device={device}", f"train.batch_size={batch}"]
            words.append(f"train.activation_checkpointing={name}")
            config = forge.compose(words).validate().config
            time = planned_time(config)
            assert time is not None
            found.append(Found(config=config, memory=memory_of(config), time=time, recompute=name))
            if found[-1].gib + ROOM > DEVICES[device]:
                break
    return found


def best(device: str, way: tuple[str, ...]) -> tuple[Found, bool]:
    """The one to take, and whether it fits."""
    found = candidates(device, way)
    fits = [one for one in found if one.gib + ROOM <= DEVICES[device]]
    if fits:
        return max(fits, key=lambda one: one.speed), True
    return min(found, key=lambda one: one.gib), False


COLUMNS = {
    "weights": ("weights", "gathered weights"),
    "gradients": ("gradients", "unreduced gradients"),
    "masters": ("fp32 masters",),
    "moments": ("optimizer state",),
    "activations": ("activations", "masks of documents"),
    "logits": ("logits",),
}
"""Parts at the moment of the largest need; what is in none of them is `others`."""


def row(name: str, one: Found, fits: bool) -> str:
    parts = one.memory.parts
    columns = [
        sum(size for part, size in parts.items() if part.startswith(names)) / GIB
        for names in COLUMNS.values()
    ]
    columns.append(one.memory.allocated / GIB - sum(columns))
    speed = f"{one.speed:,.0f}" if fits else "does not fit"
    batch = one.config.train.batch_size
    sizes = " | ".join(f"{size:.1f}" for size in columns)
    return f"| {name} | {batch} | {one.recompute} | {sizes} | **{one.gib:.1f}** | {speed} |"


def main() -> None:
    print("# Llama 3 8B on one GPU\n")
    print(
        "Sequences of 4,096 tokens, products in bf16, chunked cross-entropy, one micro-batch a "
        "step; GiB by part at the\nmoment of the largest need as `forge.check` estimates them, the "
        "memory that torch reserves, and tokens a\nsecond by the model of "
        f"[docs/planning.md](../../docs/planning.md); {ROOM:g} GiB are left free. State on the "
        f"host comes and goes\nat {HOST / 1e9:g} GB/s. Nothing here was measured on a GPU.\n"
    )
    for device, memory in DEVICES.items():
        print(f"## {device.upper()}, {memory:.1f} GiB\n")
        columns = " | ".join([*COLUMNS, "others"])
        print(f"| way | batch | recompute | {columns} | reserved | tokens/s |")
        print("| --- | ---: | --- |" + " ---: |" * (len(COLUMNS) + 3))
        for name, way in WAYS.items():
            print(row(name, *best(device, way)), flush=True)
        print()
    print("The ways:\n")
    print(f"    python -m forge.check {' '.join(MODEL)} \\\n        plan.device=h200 ...\n")
    for name, way in WAYS.items():
        print(f"* {name}: `{' '.join(way)}`")


if __name__ == "__main__":
    main()
