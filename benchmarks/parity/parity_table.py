"""How far every layout of the parity matrix is from one device, measured as the tests measure it.

    python benchmarks/parity/parity_table.py > benchmarks/results/parity.md

Exits with 1 when a layout is outside of the bounds, which the table then says. With the path of an
older table after it, layouts that it has are taken from there, and not measured again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "parallel")]

import torch  # noqa: E402
from bf16_cases import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    BF16_CASES,
    InBf16,
)
from exchange_cases import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    GATHERED_CASES,
    OVERLAPPED_CASES,
    REGATHERED_CASES,
    RING_CASES,
)
from hybrid_cases import HYBRID_CASES  # noqa: E402  # pyright: ignore[reportMissingImports]
from parity_cases import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    ADAPTER_CASES,
    CASES,
    MOE_CASES,
    Case,
)
from parity_models import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    FLOAT64_ALONE,
    MODELS,
    SMALL,
)
from parity_run import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    FORMATS,
    LR,
    STEPS,
    config_of,
    distance_in_bf16,
    outcomes,
)
from refused_layouts import REFUSED, Refused  # noqa: E402  # pyright: ignore[reportMissingImports]

from forge.config.problems import ConfigError  # noqa: E402
from forge.parity.verdict import BOUNDS  # noqa: E402


def row(case: Case, older: Sequence[str] = ()) -> tuple[str, bool]:
    """The line of a layout, and whether it is within the bounds. older: lines of another table."""
    begin = f"| {case.name} | {case.model} | `{case.layout}` |"
    for line in older:
        if line.startswith(begin):
            return line, line.endswith("| yes |")
    alone = case.model in FLOAT64_ALONE
    found = outcomes(case, FORMATS[:1] if alone else FORMATS)
    cells = [
        f"{value:.0e}"
        for outcome in found
        for value in (outcome.loss, outcome.gradient, outcome.weights)
    ]
    cells += ["-"] * (3 * alone)
    equal = all(
        not outcome.faults and outcome.same_state and outcome.same_choices is not False
        for outcome in found
    )
    return (
        (f"{begin} {' | '.join(cells)} | {'yes' if equal else '**no**'} |"),
        equal,
    )


def refusal(case: Refused) -> str:
    """The line of a layout that cannot hold."""
    try:
        config_of(case.model, case.layout)
    except ConfigError as error:
        reason = next(problem.what for problem in error.problems if problem.rule == case.rule)
        return f"| {case.name} | `{case.layout}` | `{case.rule}` | {reason} |"
    raise AssertionError(f"{case.name} was not refused")


def in_bf16(case: InBf16, older: Sequence[str] = ()) -> str:
    """The line of a layout in bf16: how far it is from fp32, and how far one device is."""
    words = " ".join(filter(None, (case.both, case.layout)))
    begin = f"| {case.name} | {case.model} | `{words}` |"
    for line in older:
        if line.startswith(begin) and not line.endswith("| yes |"):
            return line
    sides = (
        distance_in_bf16(case.model, case.both),
        distance_in_bf16(case.model, f"{case.both} {case.layout}"),
    )
    cells = [
        f"{value:.2e}" for one, several in zip(*sides, strict=True) for value in (one, several)
    ]
    return f"{begin} {' | '.join(cells)} |"


def main() -> int:
    bounds = [
        f"{str(dtype).removeprefix('torch.')}: {steps} steps, bounds {BOUNDS[dtype].loss:.0e},"
        f" {BOUNDS[dtype].gradient:.0e} and {BOUNDS[dtype].weights:.0e}"
        for dtype, steps in STEPS.items()
    ]
    older = [line for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    print("# Every layout computes what one device does\n")
    print(f"`python {sys.argv[0]}`, torch {torch.__version__}, gloo ranks on a CPU.")
    print("The test is tests/parallel/test_parity.py.\n")
    print(
        f"Plain SGD with lr={LR:g} through the path of training, on the same global batches as one"
        f" device ({'; '.join(bounds)})."
    )
    print(
        "Weights at step 0 are bit-equal everywhere. Of each layout the largest relative difference"
        " is shown: of a loss; of the gradient"
    )
    print(
        "of a parameter, ||a - b|| / ||a||, or of the global gradient norm, in any step; and of a"
        " parameter after the last step. A parameter of one number is compared by the norm of all"
        " gradients.\n"
    )
    print(f"Every model: `{' '.join(SMALL)}`, with\n")
    print("| model | |\n| --- | --- |")
    for name, overrides in MODELS.items():
        words = " ".join(overrides)
        print(f"| {name} | {f'`{words}`' if words else ''} |")
    head = (
        "| layout | model | overrides | fp64 loss | gradient | weights | fp32 loss | gradient |"
        " weights | equal |"
    )
    equal = True
    parts = {"Dense models": [*CASES, *REGATHERED_CASES], "Rings": RING_CASES}
    parts |= {"Hybrids and further tokens": HYBRID_CASES, "Adapters": ADAPTER_CASES}
    parts |= {"Mixtures of experts": MOE_CASES, "Experts that gather tokens": GATHERED_CASES}
    parts["Experts in parts"] = OVERLAPPED_CASES
    for title, cases in parts.items():
        print(f"\n## {title}\n")
        if cases in (MOE_CASES, GATHERED_CASES, OVERLAPPED_CASES):
            print(
                "Of these every token goes to the same experts too, and selection biases are equal"
                " to the bit.\n"
            )
        print(head)
        print(f"|{' --- |' * 10}", flush=True)
        for case in cases:
            line, within = row(case, older)
            print(line, flush=True)
            equal = equal and within
    print("\n## bf16\n")
    print(
        "How far training in bf16 is from fp32 on one device: the largest relative difference of a"
        " loss, and ||a - b|| / ||b|| of all"
    )
    print(
        "gradients and of all weights. A layout rounds what one device rounds, so it is as far: on"
        " the left one device, on the right the"
    )
    print(f"layout, after {STEPS[torch.float32]} steps.\n")
    print("| layout | model | overrides | loss | | gradients | | weights | |")
    print(f"|{' --- |' * 9}", flush=True)
    for case in BF16_CASES:
        print(in_bf16(case, older), flush=True)
    print("\n## Refused")
    print("\nWhat cannot hold is refused before anything starts:\n")
    print("| layout | overrides | rule | reason |\n| --- | --- | --- | --- |")
    for case in REFUSED:
        print(refusal(case))
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
