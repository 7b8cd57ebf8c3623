"""The list of tests that are left to the night."""

from __future__ import annotations

from pathlib import Path

import pytest
import slow_tests


def test_each_listed_test_exists() -> None:
    names = slow_tests.LIST.read_text(encoding="utf-8").splitlines()
    assert names == sorted(set(names))
    for name in names:
        file, _, function = name.partition("::")
        assert f"def {function.partition('[')[0]}(" in (slow_tests.ROOT / file).read_text()
        assert not name.startswith(slow_tests.STAYS)


def test_what_is_measured_to_be_slow_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        *('["tests/a.py::slow", 3.5]', '["tests/a.py::quick", 0.1]'),
        *('["tests/a.py::cases[1]", 3.5]', '["tests/a.py::cases[2]", 2]'),
        '["tests/tools/test_house.py::c", 9]',
    ]
    measured, written = tmp_path / "rows.jsonl", tmp_path / "slow.txt"
    measured.write_text("\n".join(rows))
    written.write_text("tests/a.py::quick\ntests/c.py::measured_before\n")
    monkeypatch.setattr(slow_tests, "LIST", written)
    monkeypatch.setattr("sys.argv", ["slow_tests.py", str(measured)])
    slow_tests.main()
    assert written.read_text() == (
        "tests/a.py::cases[1]\ntests/a.py::slow\ntests/c.py::measured_before\n"
    )
