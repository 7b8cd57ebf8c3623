"""Trains on a fake GPU, three steps a preset and layout, and checks what is asked of the device.

python tools/cuda.py                    # all cases, against their bounds
python tools/cuda.py --smoke            # the cases of `make test`
python tools/cuda.py 8b_h200 ep8        # some of them
python tools/cuda.py --kept runs/cuda   # the same in several goes
python tools/cuda.py --write            # lower the bounds to what was measured, and write the page
python tools/cuda.py --device h200 experiment=llama3_8b_one_h200 model.n_layers=2   # any run

The environment .venv-cuda has torch's CUDA build: `make cuda` installs it. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from fake_gpu import before as earlier
from fake_gpu import case as fake
from fake_gpu import check
from fake_gpu.cases import CASES, Case
from fake_gpu.promised import promised

PAGE = fake.ROOT / "benchmarks/results/fake_gpu.md"
GIB = 2**30
HEAD = (
    "case",
    "launches",
    "copies, GB",
    "waits",
    "allocated",
    "estimate",
    "ratio",
    "reserved",
    "estimate",
    "ratio",
    "retries",
    "graphs",
    "PFLOP",
)
INTRODUCTION = f"""\
# Runs on a fake GPU

    python tools/cuda.py --write

Step 2 of 3 of the cases in `tools/fake_gpu/cases.txt`. `make cuda` holds them against
`tools/fake_gpu/bounds.json`. Memory is in GiB: allocated and reserved at the peak of the step, each
beside the estimate of `forge.check`, and the estimate over the measurement. Copies are those within
the device. Bytes, launches, waits and graphs are real; no value was computed and no time measured.

| {" | ".join(HEAD)} |
| --- |{" ---: |" * (len(HEAD) - 1)}
"""


def main() -> int:
    """Run the named cases, or a command line; the exit code is 1 where an assertion is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("words", nargs="*", help="names of cases, or a command line of forge")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--raise-bounds", action="store_true", help="with --write: up as well")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="h100", choices=fake.DEVICES)
    parser.add_argument("--ranks", type=int, default=1, help="this process is the first of them")
    parser.add_argument("--gib", type=float, help="memory of the device")
    parser.add_argument("--waits", action="store_true", help="let step 2 wait for the device")
    parser.add_argument("--kernels", action="store_true", help="print the kernels of the last step")
    parser.add_argument("--checkout", type=Path, default=fake.ROOT, help="whose forge runs")
    parser.add_argument(
        "--kept", type=Path, help="folder of measurements by case; those in it are not run again"
    )
    options = parser.parse_args()
    if not fake.PYTHON.exists():
        print("there is no .venv-cuda: make cuda installs it", file=sys.stderr)
        return 2
    fake.build()
    if any("=" in word for word in options.words):
        return run_words(options)
    by_name = {case.name: case for case in CASES}
    if unknown := [name for name in options.words if name not in by_name]:
        print(f"no case is named {', '.join(unknown)}: {', '.join(by_name)}", file=sys.stderr)
        return 2
    named = [by_name[name] for name in options.words]
    cases = named or [case for case in CASES if case.smoke or not options.smoke]
    return run_cases(cases, options)


def run_cases(cases: Sequence[Case], options: argparse.Namespace) -> int:
    """Run cases side by side; print a line for each, and each broken assertion."""
    begin, broken = time.monotonic(), 0
    bounds = check.load()
    rows: list[str] = []
    print("| " + " | ".join(HEAD) + " |", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        measured = pool.map(partial(measure, options=options), cases)
        for case, measurement in zip(cases, measured, strict=True):
            if "steps" in measurement:
                rows.append(row(case, measurement))
                print(rows[-1], flush=True)
                if options.write:
                    numbers, old = check.numbers(measurement), bounds.get(case.name)
                    bounds[case.name] = check.lowered(
                        None if options.raise_bounds else old, numbers
                    )
            found = list(check.problems(case, measurement, bounds.get(case.name)))
            broken += bool(found)
            for problem in found:
                print(f"  {case.name}: {problem}", flush=True)
            if found and "output" in measurement and not case.fails:
                print(measurement["output"], flush=True)
    if options.write:
        check.save({case.name: bounds[case.name] for case in CASES if case.name in bounds})
        write_page(rows)
    minutes = (time.monotonic() - begin) / 60
    print(f"{len(cases) - broken} of {len(cases)} cases hold, {minutes:.1f} minutes")
    return int(broken > 0)


def write_page(rows: Sequence[str]) -> None:
    """Put rows into the page's table, in the order of the cases, and write its section of before
    and after from the table; all else stays.
    """
    before, *sections = earlier.sections_of(PAGE.read_text())
    by_name = {
        line.split("|")[1].strip(): line for line in [*before.splitlines(), *rows] if "|" in line
    }
    table = [by_name[case.name] for case in CASES if case.name in by_name]
    written = earlier.section(by_name, check.load())
    others = [each for each in sections if not each.startswith(f"## {earlier.TITLE}\n")]
    parts = [INTRODUCTION + "\n".join(table) + "\n", written, *others]
    PAGE.write_text("\n".join(parts))


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """The measurement of a case; one that was kept is held against the promises of today."""
    checkout, file = options.checkout.resolve(), None
    if options.kept is not None:
        options.kept.mkdir(exist_ok=True)
        file = options.kept / f"{case.name}.json"
        if file.exists():
            measurement = json.loads(file.read_text())
            if measurement.get("expected", {}).get("flops_per_token"):
                measurement["expected"] = promised(case)
            return measurement
    measurement = fake.run(case.argument(), checkout)
    if file is not None and ("error" not in measurement or case.fails):
        file.write_text(json.dumps(measurement))
    return measurement


def row(case: Case, measurement: dict[str, Any]) -> str:
    """A line of the table."""
    numbers, estimates = check.numbers(measurement), measurement["expected"]["memory"]
    memory: list[str] = []
    for name in ("allocated", "reserved"):
        size, estimate = numbers[name], estimates.get(name, 0)
        beside = [f"{estimate / GIB:.2f}", f"{estimate / size:.2f}"] if estimate else ["", ""]
        memory += [f"{size / GIB:.2f}", *beside]
    cells = [
        case.name,
        f"{numbers['launches']:,}",
        f"{numbers['copied'] / 1e9:.2f}",
        f"{numbers['waits']:,}",
        *memory,
        str(numbers["retries"]),
        str(sum(step["graphs"] for step in measurement["steps"])),
        f"{measurement['steps'][1]['product_flops'] / 1e15:.3g}",
    ]
    return f"| {' | '.join(cells)} |"


def run_words(options: argparse.Namespace) -> int:
    """Run forge with the words of a command line, and print all that was counted."""
    run = {"words": options.words, "device": options.device, "ranks": options.ranks}
    run |= {"waits": options.waits} | ({"gib": options.gib} if options.gib else {})
    measurement = fake.run(run, options.checkout.resolve())
    if "error" in measurement:
        print(measurement["output"], measurement["error"], sep="\n", file=sys.stderr)
        return 1
    for step in measurement.pop("steps"):
        kernels = step.pop("kernels")
        step["GiB"] = [round(step[name] / GIB, 3) for name in ("allocated", "reserved")]
        print(json.dumps(step))
    if options.kernels:
        print(json.dumps(kernels, indent=0))
    print(json.dumps(measurement))
    return 0


if __name__ == "__main__":
    sys.exit(main())
