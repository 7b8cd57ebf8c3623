"""A model of speed over what the fake GPU counted, beside the expected time of `forge.check`.

    python benchmarks/estimates/speed_of_counts.py

Launches, copies and FLOPs of products are those of benchmarks/results/fake_gpu.md; bytes of other
kernels are a number a token, a logit or a weight. No time was measured. Writes
benchmarks/results/speed_of_counts.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from fake_gpu.cases import CASES, Case  # noqa: E402 # pyright: ignore[reportMissingImports]
from fake_gpu.promised import resolved  # noqa: E402 # pyright: ignore[reportMissingImports]

from forge.config.root import Config  # noqa: E402
from forge.planning.memory import memory_of  # noqa: E402
from forge.planning.time import StepTime, planned_time  # noqa: E402

COUNTED = ROOT / "benchmarks/results/fake_gpu.md"
SHOWN = ("8b_h200", "8b_h200_x4", "8b_h200_fp8", "8b_h100", "8b_h100_x1", "8b_h100_fp8")
SHOWN += ("8b_h100_fp8_x1", "8b_8gpu", "8b_8gpu_fp8")
PAGE = COUNTED.with_name("speed_of_counts.md")
BEFORE = {"8b_h200": 14_006, "8b_h200_x4": 14_126, "8b_h100_x1": 11_603, "8b_h200_fp8": 18_700}
"""Tokens a second that `forge.check` promised when the findings were written."""
FOUND = {"8b_h200": 12_770, "8b_h100_x1": 9_260, "8b_h200_fp8": 16_400}
"""What the findings' model made of the counts of then."""

BF16 = {"h200": 740e12, "h100": 700e12}
FP8 = {"h200": 1206e12, "h100": 1141e12}
"""FLOP/s of large products: the findings' 39 us a token in fp8 on an H200 less the head's product,
which stays in bf16; an H100 by the same ratio.
"""
ATTENTION = 480e12
MEMORY = {"h200": 4.08e12, "h100": 2.85e12}
"""Bytes a second of copies, read and written."""
OF_A_BLOCK, OF_CASTS = 530e3, 421e3
"""Bytes a token and block of elementwise kernels; more for casts and scales of fp8."""
OF_A_LOGIT = 20
OF_THE_HEAD = 10
"""Bytes a weight of the head and micro-batch: its gradient in fp32 is emptied, read and cast."""
LAUNCH = 5e-6
"""Seconds of the host to start a kernel."""
LINK = 360e9
"""Bytes a second of large collectives over the NVLinks of eight H100."""
BESIDE, COPIES_EXPOSED = 0.1, 0.5
"""What a collective takes from the products it runs beside; share of FSDP's copies that waits: the
guesses of forge/planning/calibration.py.
"""
CAUSAL = 3.5 / 2
"""Of a forward pass over all pairs of tokens: half of them, and backward 2.5 times forward."""
GATHERS = 2
OF_A_GATHER, OF_A_REDUCTION = 4, 10
"""Bytes a weight that FSDP copies around them."""


@dataclass(frozen=True)
class Model:
    """The time of a step: seconds by part, and of the host to start its kernels."""

    case: Case
    parts: Mapping[str, float]
    host: float
    tokens: float
    expected: StepTime

    @property
    def seconds(self) -> float:
        return max(sum(self.parts.values()), self.host)

    def micros(self, seconds: float) -> str:
        """Microseconds a token."""
        return f"{seconds / self.tokens * 1e6:.1f}"


def counts() -> dict[str, list[str]]:
    """Cells of the page's table by name of the case."""
    table = COUNTED.read_text(encoding="utf-8").partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return {cells[0]: cells for line in lines if (cells := line.strip("| ").split(" | "))}


def modelled(case: Case, cells: list[str]) -> Model:
    """The model of a case. cells: its line in the page's table."""
    planned = [f"plan.device={case.device}", f"plan.world_size={case.ranks}"]
    config: Config = resolved([*case.words.split(), *planned]).config
    model, train, bandwidth = config.decoder, config.train, MEMORY[case.device]
    assert model is not None
    launches, copied, flops = (
        float(cells[at].replace(",", "")) * unit for at, unit in ((1, 1), (2, 1e9), (-1, 1e15))
    )
    tokens = train.batch_size * train.grad_accum_steps * train.seq_len
    head_flops = 6 * model.dim * model.vocab_size * tokens
    in_fp8 = "fp8" in case.name
    rate = (FP8 if in_fp8 else BF16)[case.device]
    attention = sum(model.mixer.flops(model, train.seq_len) for _ in range(model.n_layers))
    elementwise = (OF_A_BLOCK + OF_CASTS * in_fp8) * model.n_layers * tokens
    of_logits = OF_A_LOGIT * model.vocab_size * tokens
    of_head = OF_THE_HEAD * model.vocab_size * model.dim * train.grad_accum_steps
    expected = planned_time(config)
    assert expected is not None
    parts = {
        "products": (flops - head_flops) / rate,
        "attention": attention / 3 * CAUSAL * tokens / ATTENTION,
        "elementwise": elementwise / bandwidth,
        "head and loss": head_flops / BF16[case.device] + (of_logits + of_head) / bandwidth,
        "optimizer": of_update(memory_of(config).state) / bandwidth,
        "copies": 2 * copied / bandwidth,
    }
    if case.ranks > 1:
        moved = (GATHERS * OF_A_GATHER + OF_A_REDUCTION) * model.num_params_estimate
        parts["fsdp copies"] = COPIES_EXPOSED * moved * train.grad_accum_steps / bandwidth
        parts["fsdp"] = BESIDE * sum(expected.links.values()) / LINK
    return Model(case, parts, launches * LAUNCH, tokens, expected)


def of_update(state: Mapping[str, int]) -> int:
    """Bytes of the norm, which reads gradients, and of the update, which reads them and reads and
    writes all else.
    """
    gradients = sum(size for name, size in state.items() if name.startswith("gradients"))
    return 2 * (sum(state.values()) - gradients) + 2 * gradients


def page(models: list[Model]) -> Iterator[str]:
    """Lines of the page."""
    yield "# A model of speed over what the fake GPU counted\n"
    yield "    python benchmarks/estimates/speed_of_counts.py\n"
    yield (
        "**No time was measured.** Launches, copies and FLOPs are those of "
        "[fake_gpu.md](fake_gpu.md), counted; rates and bytes of other kernels are in the script. "
        "Products reach 740 (H200) and 700 (H100) TFLOP/s in bf16, 1,206 and 1,141 in fp8, "
        "attention 480; memory 4.08 and 2.85 TB/s. Collectives take a tenth of their time at "
        "360 GB/s from the products beside them, and half of FSDP's copies waits. `forge.check` "
        "has rates of its own ([docs/planning.md](../../docs/planning.md)); bytes that ranks send "
        "are those it counts, which the fake NCCL is asked for too.\n"
    )
    yield "## Tokens a second and GPU\n"
    yield (
        "Then: the findings' model at `43bd276`, and what `forge.check` said. Host: the share of "
        "the step in which it starts all launches, 5 us each; below 100 % nothing waits for it.\n"
    )
    heads = ("case", "launches a step", "host", "by counts", "`forge.check`", "difference")
    yield f"| {' | '.join(heads)} | then, by counts | then, `forge.check` |"
    yield f"| --- |{' ---: |' * (len(heads) + 1)}"
    yield from map(speed_row, models)
    yield "\n## Microseconds a token\n"
    yield (
        "By counts / by `forge.check`. Its optimizer has the norm of gradients, and the head's "
        "product is in head and loss, as here. In fp8 the counts have casts and scales among "
        "elementwise kernels, `forge.check` in the slower products.\n"
    )
    names = ("products", "attention", "elementwise", "head and loss", "optimizer", "fsdp", "copies")
    yield f"| case | {' | '.join(names)} | sum |"
    yield f"| --- |{' ---: |' * (len(names) + 1)}"
    for model in models:
        yield part_row(model, names)


def speed_row(model: Model) -> str:
    """Tokens a second of a case."""
    name, ours = model.case.name, model.tokens / model.seconds
    theirs = model.expected.tokens_per_second
    cells = [name, f"{model.host / LAUNCH:,.0f}", f"{model.host / sum(model.parts.values()):.1%}"]
    cells += [f"{ours:,.0f}", f"{theirs:,.0f}", f"{theirs / ours - 1:+.1%}"]
    then = [f"{table[name]:,}" if name in table else "" for table in (FOUND, BEFORE)]
    return f"| {' | '.join([*cells, *then])} |"


def part_row(model: Model, names: tuple[str, ...]) -> str:
    """Parts of a case; copies of FSDP are among fsdp."""
    cells = [model.case.name]
    ours, theirs = dict(model.parts), dict(model.expected.parts)
    for parts in (ours, theirs):
        parts["fsdp"] = parts.get("fsdp", 0) + parts.pop("fsdp copies", 0)
    pairs = [(ours.get(name, 0), theirs.get(name, 0)) for name in names]
    pairs.append((model.seconds, model.expected.seconds))
    cells += [f"{model.micros(one)} / {model.micros(other)}" for one, other in pairs]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page of all cases that have been counted."""
    lines, by_name = counts(), {case.name: case for case in CASES}
    models = [modelled(by_name[name], lines[name]) for name in SHOWN if name in lines]
    PAGE.write_text("\n".join(page(models)) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
