"""What must hold of a run on a fake GPU, and the bounds that may only go down."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fake_gpu.cases import Case

BOUNDS = Path(__file__).with_name("bounds.json")
ALLOCATED, RESERVED = 0.05, 0.10
"""How far memory may be from forge's estimates of it, where a bound does not say more."""
SAME = 1e-6
"""By what share numbers that must be equal may differ."""
SLACK = 1.002
"""Bytes may differ a little between two runs: blocks of the allocator, threads."""
Measurement = Mapping[str, Any]
Bounds = dict[str, float]


def load() -> dict[str, Bounds]:
    """The bounds by name of the case."""
    return json.loads(BOUNDS.read_text()) if BOUNDS.exists() else {}


def save(bounds: Mapping[str, Bounds]) -> None:
    """Write the bounds, one line a case."""
    lines = ",\n".join(f'"{name}": {json.dumps(values)}' for name, values in bounds.items())
    BOUNDS.write_text(f"{{\n{lines}\n}}\n")


def numbers(measurement: Measurement) -> Bounds:
    """The numbers of step 2 that have a bound.

    launches; copied: bytes within the device; waits; allocated, reserved: bytes at the peak;
    allocated_off, reserved_off: distance from forge's estimate of each, as a share of it; retries
    of the allocator; fp32_products; other_device: calls on another device than the rank's.
    """
    step, estimate = measurement["steps"][1], measurement["expected"]["memory"]
    own = str(measurement["device"])
    parts = [*measurement["steps"], measurement["after"]]
    elsewhere = sum(
        calls
        for part in parts
        for device, calls in part["calls_on_device"].items()
        if device != own
    )
    fp32 = sum(n for name, n in step["kernels"].items() if name.startswith("gemm fp32"))
    return {
        "launches": step["launches"],
        "copied": step["copied_within_device"],
        "waits": sum(step["waits"].values()),
        "allocated": step["allocated"],
        "reserved": step["reserved"],
        "allocated_off": _distance("allocated", step, estimate),
        "reserved_off": _distance("reserved", step, estimate),
        "retries": step["retries"],
        "fp32_products": fp32,
        "other_device": elsewhere,
    }


def _distance(name: str, step: Measurement, estimate: Mapping[str, int]) -> float:
    """Distance of a number from its estimate, as a share of it; 0 without an estimate."""
    return round(abs(step[name] / estimate[name] - 1), 4) if estimate else 0


def lowered(bounds: Bounds | None, measured: Bounds) -> Bounds:
    """The lower of bound and measurement, by name."""
    return {name: min(value, (bounds or {}).get(name, value)) for name, value in measured.items()}


def problems(case: Case, measurement: Measurement, bounds: Bounds | None) -> Iterator[str]:
    """Yield each assertion that a run breaks, in words."""
    if case.fails:
        if case.fails not in measurement.get("error", ""):
            yield f"its message lacks '{case.fails}': {measurement.get('error', 'it ended')[:300]}"
        elif not measurement.get("snapshots"):
            yield "it left no snapshot of its memory"
        return
    if "error" in measurement:
        yield f"it failed: {measurement['error'][:600]}"
        return
    if measurement["reason"] != "end" or len(measurement["steps"]) != 3:
        yield f"it ended by '{measurement['reason']}' after {len(measurement['steps'])} steps"
    yield from _compiled(measurement)
    yield from _kernels(case, measurement)
    yield from _flops(case, measurement)
    yield from _collectives(case, measurement)
    yield from _bounded(case, numbers(measurement), bounds)
    if len(measurement["saved"]) < case.saves:
        yield f"it saved {measurement['saved']}, not {case.saves} times"


def _compiled(measurement: Measurement) -> Iterator[str]:
    if measurement["breaks"]:
        yield f"{measurement['breaks']} graph breaks"
    if later := sum(step["graphs"] for step in measurement["steps"][1:]):
        yield f"{later} graphs were compiled after step 1"


def _kernels(case: Case, measurement: Measurement) -> Iterator[str]:
    names = measurement["steps"][1]["kernels"]
    for part in filter(None, case.kernels.split(", ")):
        if not any(part in name for name in names):
            yield f"no kernel with '{part}' in its name was launched"


def _flops(case: Case, measurement: Measurement) -> Iterator[str]:
    """Compare the products launched with forge's count: nothing is multiplied twice."""
    expected = measurement["expected"]
    if case.uncounted or not expected["flops_per_token"]:
        return
    each = expected["flops_per_token"] - expected["attention_flops_per_token"]
    step, tokens = measurement["steps"][1], expected["tokens"]
    count = (each + expected["flops_again"]) * tokens - _attention_again(step, expected)
    launched = step["product_flops"]
    if abs(launched / count - 1) > SAME:
        yield f"products of {launched:.6g} FLOPs, and forge counts {count:.6g}"


def _attention_again(step: Measurement, expected: Measurement) -> float:
    """FLOPs of attention in recomputation, which are no products."""
    forward, backward = (
        step["kernels"].get(f"cudnn_attention{end}", 0) for end in ("", "_backward")
    )
    passes = max(forward / backward - 1, 0) if backward else 0
    return passes * expected["attention_flops_per_token"] / 3 * expected["tokens"]


def _collectives(case: Case, measurement: Measurement) -> Iterator[str]:
    """Compare the collectives with those of `forge.planning.traffic`: calls and bytes by kind."""
    if case.ranks == 1:
        return
    launched = measurement["steps"][1]["collectives"]
    expected = measurement["expected"]["collectives"]
    for kind in sorted(
        {*launched, *expected} - {"communicator", "alone", case.beside.partition(" ")[0]}
    ):
        calls, size = launched.get(kind, (0, 0))
        planned_calls, planned_size = expected.get(kind, (0, 0))
        if calls != planned_calls:
            yield f"{calls} {kind} calls, and the model of traffic counts {planned_calls:g}"
        if abs(size - planned_size) > SAME * planned_size:
            sends = f"{kind} sends {size:.9g} bytes"
            yield f"{sends}, and the model of traffic counts {planned_size:.9g}"


def _bounded(case: Case, measured: Bounds, bounds: Bounds | None) -> Iterator[str]:
    if bounds is None:
        yield "it has no bounds yet: --write"
        return
    free = {"allocated_off": ALLOCATED, "reserved_off": RESERVED}
    if not case.waits:
        free["waits"] = 0
    for name, value in measured.items():
        bound = max(bounds.get(name, 0), free.get(name, 0))
        slack = SLACK if name in ("allocated", "reserved", "allocated_off", "reserved_off") else 1
        if value > bound * slack:
            yield f"{name} is {value:,.10g}, and was {bound:,.10g}"
