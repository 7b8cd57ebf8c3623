"""Tests that CI leaves to the night: those above 0.35 CPU seconds, by a measurement of all tests.

python -m pytest -p slow_tests -m 'not nightly'   # measures, into slow_tests.jsonl
python tools/slow_tests.py slow_tests.jsonl        # writes tests/slow.txt

Processes that a test starts and waits for are counted. tests/conftest.py marks what is listed as
nightly. Of each kind of run a test stays in CI: `STAYS`; of each parametrized test the
fastest case measured.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIST, ROWS = ROOT / "tests" / "slow.txt", ROOT / "slow_tests.jsonl"
BOUND = 0.35
PARITY = "tests/parallel/test_parity.py::test_a_layout_equals_one_device"
STAYS = (
    "tests/test_killed.py::",
    "tests/compose/test_compose_many.py::test_one_point_leaves_nothing_behind_for_the_next",
    "tests/test_train_end_to_end.py::test_a_run_shows_what_it_does_and_ends_with_a_summary",
    "tests/test_many_ranks.py::test_a_rank_that_raises_is_reported_with_its_own_traceback",
    f"{PARITY}[tp2 x fsdp2]",
    f"{PARITY}[moe: pp2 x ep2]",
    *(
        f"{PARITY}[{name}: tp2]"
        for name in ("mtp", "mamba", "indexer", "memory", "streams", "moba")
    ),
    "tests/rundir/test_handed_over.py::",
    "tests/training/test_local_tier.py::",
    "tests/training/test_diloco.py::",
    "tests/training/test_waits.py::test_a_step_between_logs_waits_for_nothing[dense]",
    "tests/training/test_killed_rollouts.py::test_a_killed_run_ends_with_the_same_bits[update]",
    "tests/parallel/test_rollout_layouts.py::test_steps_equal_those_of_one_device[parallel.tp=2]",
    "tests/hf/test_peft_folders.py::test_adapters_go_out_and_in_again_and_are_merged",
    "tests/training/test_cross_layout.py::",
    "tests/serve/test_served_rollouts.py::",  # which resume from each other
    *(f"tests/tools/test_{name}.py::" for name in ("adapters", "house", "seeds", "version")),
    "tests/tools/test_pages.py::test_no_option_is_lost",
)


def seconds() -> float:
    """CPU seconds of this process and of the processes that it waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    begun = seconds()
    yield
    with ROWS.open("a", encoding="utf-8") as file:
        file.write(json.dumps([item.nodeid, round(seconds() - begun, 2)]) + "\n")


def fastest_cases(rows: list[tuple[str, float]]) -> Iterator[str]:
    """The fastest measured case of each parametrized test, also where the night has its others."""
    cases: dict[str, list[tuple[float, str]]] = {}
    for name, spent in rows:
        if "[" in name:
            cases.setdefault(name.partition("[")[0], []).append((spent, name))
    yield from (min(measured)[1] for measured in cases.values())


def main() -> None:
    """Write the list: what was measured to be slow, and what is listed and was not measured."""
    lines = [line for name in sys.argv[1:] for line in Path(name).read_text().splitlines()]
    rows = [json.loads(line) for line in lines]
    slow = {name for name, spent in rows if spent >= BOUND and not name.startswith(STAYS)}
    slow -= set(fastest_cases(rows))
    slow |= set(LIST.read_text(encoding="utf-8").splitlines()) - {name for name, _ in rows}
    LIST.write_text("".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")
    left = sum(spent for name, spent in rows if name not in slow)
    print(f"{len(slow)} tests are slow; the others take {left:,.0f} CPU seconds")


if __name__ == "__main__":
    main()
