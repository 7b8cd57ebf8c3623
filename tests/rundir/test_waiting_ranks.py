"""A rank that is behind is named with the collective that the others wait in; stacks on request."""

from __future__ import annotations

import time
from pathlib import Path

from forge.rundir.collectives import Collective, collective_rows, read_collectives, who_waits
from forge.rundir.stacks import Stacks


def at(number: int, name: str = "all_gather", group: str = "tp", *, waiting: bool = False):
    return Collective(group=group, number=number, name=name, waiting=waiting)


def test_the_rank_behind_is_named() -> None:
    waiting = at(82, waiting=True)
    of_ranks = {rank: [at(7, "all_reduce", "dp"), waiting] for rank in (0, 1, 2, 5)}
    of_ranks[3] = [at(7, "all_reduce", "dp"), at(81)]
    words = who_waits(of_ranks, {3: " (process 12 on node4)"})
    expected = (
        "ranks 0 to 2, 5 wait in all_gather 82 of tp; rank 3 (process 12 on node4) was last at 81"
    )
    assert words == expected
    of_ranks[0] = [at(81, waiting=True)]  # it waits for rank 3 as well
    words = who_waits(of_ranks)
    expected = "ranks 1 to 2, 5 wait in all_gather 82 of tp; rank 3 was last at 81, rank 0 waits in"
    assert words == f"{expected} all_gather 81"
    # All in the same collective, or none waiting: nobody is waited for.
    assert who_waits({0: [waiting], 1: [waiting]}) == ""
    assert who_waits({0: [at(82)], 1: [at(81)]}) == ""
    assert who_waits({0: [waiting], 1: []}) == ""
    assert read_collectives(collective_rows([waiting, at(3)])) == [waiting, at(3)]


def test_stacks_on_request_and_from_time_to_time(tmp_path: Path) -> None:
    (tmp_path / "alive").mkdir()
    asking, other = (Stacks(tmp_path, rank, frozen=60.0) for rank in (0, 1))
    for stacks in (asking, other):
        stacks.look()
        assert stacks.file.read_text() == ""
    asking.ask()
    for _ in range(2):  # once for a request
        other.look()
    text = other.file.read_text()
    assert "most recent call first" in text
    assert text.count("in test_stacks_on_request_and_from_time_to_time") == 1
    other.close()
    asking.close()
    assert not asking.file.exists()
    assert other.file.exists()
    regular = Stacks(tmp_path, 2, frozen=60.0, interval=0.01)
    time.sleep(0.02)
    regular.look()
    assert "most recent call first" in regular.file.read_text()
    regular.close()


def test_a_rank_without_python_is_written_by_faulthandler(tmp_path: Path) -> None:
    """No `look` in time: the thread of C writes the stacks."""
    stacks = Stacks(tmp_path, 0, frozen=0.05)
    stacks.look()
    deadline = time.monotonic() + 10.0
    while "Timeout" not in stacks.file.read_text() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert "Timeout" in stacks.file.read_text()
    stacks.close()


def test_no_stacks_leave_no_folder(tmp_path: Path) -> None:
    stacks = Stacks(tmp_path, 0, frozen=60.0)
    stacks.look()
    stacks.close()
    assert list(tmp_path.iterdir()) == []
