"""Each assertion on a fake GPU's measurement fires where it should; no CUDA build is needed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from fake_gpu import before, check
from fake_gpu.cases import CASES, Case, read

CASE = Case(name="planted", words="", ranks=8, kernels="flash")
STEP = {
    "launches": 100,
    "copied_within_device": 1e9,
    "product_flops": 4e6,
    "waits": {},
    "kernels": {"flash_fwd": 2, "gemm bf16 8x8x8 b1": 4},
    "calls_on_device": {"0": 100},
    "collectives": {"all-gather": [3, 1e6]},
    "allocated": 1000,
    "reserved": 1050,
    "retries": 0,
    "graphs": 0,
}
GOOD: dict[str, Any] = {
    "reason": "end",
    "steps": [{**STEP, "graphs": 8}, {**STEP}, {**STEP}],
    "after": {"calls_on_device": {"0": 3}},
    "breaks": 0,
    "device": 0,
    "saved": [],
    "expected": {
        "memory": {"allocated": 1010, "reserved": 1040},
        "flops_per_token": 5000,
        "attention_flops_per_token": 1000,
        "flops_again": 0,
        "tokens": 1000,
        "collectives": {"all-gather": [3, 1e6]},
    },
}
BOUNDS = check.numbers(GOOD)


def test_a_good_measurement_has_no_problems() -> None:
    assert list(check.problems(CASE, GOOD, BOUNDS)) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("launches", 101, "launches is 101, and was 100"),
        ("copied_within_device", 2e9, "copied is"),
        ("product_flops", 8e6, "products of 8e+06 FLOPs"),
        ("waits", {"cudaStreamSynchronize": 1}, "waits is 1"),
        ("kernels", {"math": 1}, "no kernel with 'flash'"),
        ("kernels", {"flash_fwd": 1, "gemm fp32 8x8x8 b1": 1}, "fp32_products is 1"),
        ("calls_on_device", {"0": 100, "3": 1}, "other_device is 1"),
        ("collectives", {"all-gather": [4, 1e6]}, "4 all-gather calls"),
        ("collectives", {"all-gather": [3, 2e6]}, "all-gather sends 2000000 bytes"),
        ("collectives", {"all-gather": [3, 1e6], "all-reduce": [1, 8]}, "1 all-reduce calls"),
        ("allocated", 1100, "allocated is 1,100"),
        ("allocated", 1100, "allocated_off is 0.0891, and was 0.05"),
        ("reserved", 1200, "reserved is 1,200"),
        ("reserved", 1200, "reserved_off is 0.1538, and was 0.1"),
        ("retries", 1, "retries is 1"),
        ("graphs", 1, "1 graphs were compiled after step 1"),
    ],
)
def test_each_fault_is_named(name: str, value: object, words: str) -> None:
    measurement = copy.deepcopy(GOOD)
    measurement["steps"][1][name] = value
    assert words in " ".join(check.problems(CASE, measurement, BOUNDS))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"reason": "max_time"}, "it ended by 'max_time'"),
        ({"breaks": 1}, "1 graph breaks"),
        ({"error": "RuntimeError: synchronizing"}, "it failed: RuntimeError: synchronizing"),
    ],
)
def test_a_run_that_ends_otherwise_is_named(change: dict[str, Any], words: str) -> None:
    assert words in " ".join(check.problems(CASE, GOOD | change, BOUNDS))


def test_a_run_that_must_fail_needs_message_and_snapshot() -> None:
    case = Case(name="memory", words="", fails="out of memory: lower train.batch_size")
    error = "out of memory: lower train.batch_size"
    assert "its message lacks" in " ".join(check.problems(case, GOOD, None))
    assert "no snapshot" in " ".join(check.problems(case, {"error": error}, None))
    good = {"error": error, "snapshots": ["out_of_memory_at_step_1.pickle"]}
    assert list(check.problems(case, good, None)) == []


def test_each_memory_is_held_against_its_own_estimate() -> None:
    assert BOUNDS["allocated_off"] == 0.0099  # 1000 against 1010
    assert BOUNDS["reserved_off"] == 0.0096  # 1050 against 1040
    unknown = {**GOOD, "expected": {**GOOD["expected"], "memory": {}}}
    assert check.numbers(unknown)["reserved_off"] == 0


def test_bounds_go_down_alone() -> None:
    assert check.lowered({"launches": 5, "waits": 0}, {"launches": 7, "waits": 0}) == {
        "launches": 5,
        "waits": 0,
    }
    assert check.lowered(None, {"launches": 7}) == {"launches": 7}


def test_each_case_has_a_name_and_bounds() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert set(check.load()) == {case.name for case in CASES if not case.fails}


def test_a_line_of_the_table_is_a_case() -> None:
    words = "# a remark\nL2 = model.n_layers=2\nBOTH = {L2} seed=3\n"
    text = words + "\na | ranks=8; smoke; gib=40 | {BOTH}"
    assert read(text) == [
        Case(name="a", words="model.n_layers=2 seed=3", ranks=8, smoke=True, gib=40.0)
    ]
    with pytest.raises(ValueError, match="a: there is no setting rank"):
        read("a | rank=8 | seed=3")


def test_each_finding_has_a_case_that_shows_it_before_and_after():
    figures = json.loads(before.BEFORE.read_text())
    shown = {name for row in figures["rows"] for name in row["finding"].split(", ")}
    assert shown == set(figures["findings"]) == {f"G{n}" for n in range(1, 7)}
    assert {row["case"] for row in figures["rows"]} <= {case.name for case in CASES}
    cells = "| saves | 874 | 0.01 | 7 | 0.08 | 0.08 | 1.00 | 0.12 | 0.13 | 1.07 | 0 | 0 | 5e-06 |"
    section = before.section({"saves": cells}, {"saves": {"other_device": 0}})
    changes = "908 → 874 | 0.01 → 0.01 | 6 → 7 | 0 → 0 | 0.08 → 0.08 | 0.12 → 0.12 | 0.23 → 1.00"
    assert section.splitlines()[-1] == f"| G6 | saves | {changes} | 3 → 0 |  |"
