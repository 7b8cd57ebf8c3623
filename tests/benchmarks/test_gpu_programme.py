"""benchmarks/gpu.py: each case is one that forge takes, and whatever ends a case becomes a row."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import gpu
import pytest

from forge import cli

PRINTS = {
    "found": "import json; json.dump({'found': {'ms': 1}}, open(FILE, 'w'))",
    "slow": "import time; time.sleep(60)",
    "memory": "raise MemoryError('CUDA out of memory. Tried to allocate 9 GiB')",
    "caches": "import json, os; json.dump({'found': {'at': os.environ['TRITON_CACHE_DIR']}}, "
    "open(FILE, 'w'))",
    "refused": "import sys; print('1 problem', 'model.dim: why', sep='\\n'); sys.exit(2)",
}


def test_plans_are_what_forge_takes_for_the_device():
    plans = {case.name.split()[0]: case for case in gpu.cases() if case.phase == "8b"}
    assert sorted(plans) == sorted(gpu.PLANS)
    here = "plan.device=h200 plan.world_size=1 run.device=cuda data=synthetic tokenizer=bytes"
    for case in plans.values():
        config = cli.resolved([*case.words, *shlex.split(here)])[1].config
        assert config.model.num_params_estimate == 8_030_261_248  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", gpu.PRESETS)
def test_presets_are_what_forge_takes_for_a_gpu(name):
    (case,) = (case for case in gpu.cases() if case.name == name)
    here = "plan.device=h200 plan.world_size=1 run.device=cuda"
    if not any(word.startswith("data=") for word in case.words):
        here += " data=synthetic tokenizer=bytes"
    resolution = cli.resolved([*case.words, *shlex.split(here)])[1]
    assert resolution.config.train.seq_len >= 2048


def test_files_of_tests_have_those_marked_cuda():
    repository = Path(gpu.__file__).parents[1]
    for name in gpu.WITH_CUDA:
        assert "mark.cuda" in (repository / name).read_text()


def test_a_case_starts_where_the_median_of_its_phase_fits():
    case = gpu.Case(phase="8b", name="next", seconds=200, words=())
    rows = {f"8b/{s}": {"phase": "8b", "took_seconds": s} for s in (40.0, 60.0, 190.0)}
    assert gpu.expected(case, {}) == 200
    assert gpu.expected(case, rows) == 60.0
    assert gpu.expected(case, {"other": {"phase": "ceilings", "took_seconds": 1.0}}) == 200


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the programme with cases that only print; gives its rows by name."""
    ran: list[str] = []

    def command(case: gpu.Case, device: str, tiny: bool, file: Path) -> list[str]:
        ran.append(case.name)
        return [sys.executable, "-c", f"FILE={str(file)!r}\n{PRINTS[case.name]}"]

    def found():
        for name in PRINTS:
            yield gpu.Case(phase="ceilings", name=name, seconds=2, words=(name,))

    monkeypatch.setattr(gpu, "cases", found)
    monkeypatch.setattr(gpu.Case, "command", command)

    def call(*words: str) -> tuple[dict[str, dict], list[str]]:
        ran.clear()
        monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), *words])
        assert gpu.main() == 0
        rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
        return {row["name"]: row for row in rows}, list(ran)

    return call


def test_what_ends_a_case_is_its_row_and_no_case_runs_twice(called, tmp_path, capsys):
    rows, ran = called("--device", "cpu", "--tiny", "--only", "found,memory,refused")
    assert ran == ["found", "memory", "refused"]
    assert rows["found"]["found"] == {"ms": 1}
    assert rows["memory"]["error"] == "MemoryError: CUDA out of memory. Tried to allocate 9 GiB"
    assert rows["refused"]["error"] == "refused: 1 problem model.dim: why"
    table = (tmp_path / "table.md").read_text()
    assert "rehearsal" in table
    assert "| memory | MemoryError: CUDA out of memory. Tried to allocate 9 GiB |" in table
    assert called("--budget", "0")[1] == []
    assert "2 cases are left; the same command continues: slow, ..." in capsys.readouterr().out
    rows, _ = called("--only", "caches")
    assert rows["caches"]["found"] == {"at": str(tmp_path / "compiled" / "triton")}
    assert "slow" not in called("--only", "slow", "--budget", "1")[0]  # ended by the budget
    rows, ran = called()
    assert ran == ["slow"]
    assert rows["slow"]["error"] == "ended after 2 s"
    assert called("--again", "--only", "memory,found")[1] == ["memory"]
