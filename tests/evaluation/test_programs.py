"""pass@k: programs of a model in the sandbox, and the unbiased estimate by enumeration."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import forge
from forge.statistics.items import pass_at_k
from forge.tasks.declared import built, faults
from forge.tasks.item import Generated
from forge.tasks.program import Programs

ROW = {"prompt": "import math\ndef f(x):\n", "test": "def check(f):\n    assert f(2) == 4"}
ENTRY = {"_target_": "forge.tasks.program.Programs"}


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "programs.jsonl"
    file.write_text(json.dumps({**ROW, "entry_point": "f", "id": "square"}) + "\n")
    return str(file)


def test_pass_at_k_is_the_share_of_samples_with_a_right_one() -> None:
    for samples in range(1, 7):
        for correct in range(samples + 1):
            right = [number < correct for number in range(samples)]
            for k in range(1, samples + 1):
                groups = list(combinations(right, k))
                share = sum(map(any, groups)) / len(groups)
                assert pass_at_k(samples, correct, k) == pytest.approx(share)


def test_programs_are_judged_by_their_tests_in_the_sandbox(path: str) -> None:
    options = {"samples": 6, "temperature": 0.8, "k": [1, 2], "seconds": 2.0}
    task = Programs(path=path, **options)
    (item,) = task.items()
    texts = (
        "    return x * x",
        "    return math.pow(x, 2)",
        "    return x",
        "    return (",
        "    return x * x\nimport sys; sys.exit(0)",
        "    while True: pass",
    )
    judged = task.judge(item, (Generated(texts),))
    assert judged.detail["status"] == ["passed", "passed", "failed", "failed", "failed", "timeout"]
    assert judged.detail["correct"] == 2
    assert judged.metrics == {
        "pass_at_1": pytest.approx(2 / 6),
        "pass_at_2": pytest.approx(1 - 6 / 15),
    }


def test_a_fenced_block_of_an_answer_is_the_program(path: str) -> None:
    task = Programs(path=path, chat=True)
    (item,) = task.items()
    program = task.program(item, "Sure:\n```python\ndef f(x):\n    return x * x\n```\nDone.")
    assert program.startswith("import math\ndef f(x):\n    return x * x\n")
    assert "Sure" not in program
    names: dict[str, Any] = {}
    exec(program, names)  # of this test's own words
    plain = task.program(item, "def f(x):\n    return 3")
    with pytest.raises(AssertionError):
        exec(plain, {})


def test_forge_evaluates_programs_of_a_model(tiny_run: Path, path: str) -> None:
    options = {"samples": 3, "temperature": 1.0, "k": [1, 3], "max_tokens": 4, "stop": []}
    (result,) = forge.load(tiny_run).results({"code": {**ENTRY, "path": path, **options}})
    assert result.main == "pass_at_1"
    assert result.rows[0]["id"] == "square"
    assert len(result.rows[0]["texts"]) == len(result.rows[0]["status"]) == 3
    assert result.metrics["pass_at_3"].value == 0


def test_programs_that_cannot_be_judged_are_refused(path: str, tmp_path: Path) -> None:
    def messages(**options: Any) -> list[str]:
        return [what for _, what, _ in faults("code", {**ENTRY, "path": path, **options})]

    assert not messages()
    assert built("code", {**ENTRY, "path": path}).main == "pass_at_1"
    assert messages(k=[1, 10], samples=5, temperature=0.8) == [
        "k=[1, 10] takes samples of each prompt, and there are 5."
    ]
    assert messages(samples=5) == ["samples=5 are all the same at temperature=0."]
    assert messages(path=None) == ["it names no file."]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"prompt": "a"}))
    assert messages(path=str(file)) == [f'{file}, line 1: it has no text "test".']
