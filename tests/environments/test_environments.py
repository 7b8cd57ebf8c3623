"""Environments: the answers of forge's own, and one message for each that fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.rollout_rewards import Capitals

from forge.environments import EnvironmentFault, Environments
from forge.environments.calculator import Calculator, calculated
from forge.environments.python import Python

CAPITALS = {"_target_": "helpers.rollout_rewards.Capitals"}
TESTS = Path(__file__).parents[1]  # where `helpers` is found
TRUST = ["helpers."]


@pytest.mark.parametrize(
    "text", ["12*(3+4)", "1,234.5-4", "7//2", "10/4", "-3*+2", ".5+1", "'straw,berry'.count('r')"]
)
def test_the_calculator_equals_python(text: str) -> None:
    assert calculated(text) == str(eval(text.replace(",", "")))


@pytest.mark.parametrize(
    "text",
    [
        *("", "2**3", "1/0", "(", "1(2)", "a", "True", "'a'.count(1)", "'a'.upper()", "1" * 1001),
        *("__import__('os').system('x').count('a')", "(" * 300 + ")" * 300, "'a'.count('a', 0)"),
    ],
)
def test_the_calculator_answers_nothing_else(text: str) -> None:
    assert calculated(text) is None


def test_a_tool_answers_the_call_that_a_turn_ends_with() -> None:
    tool = Calculator()
    call = "2+2= <|python_start|>2+2<|python_end|>"
    assert tool.step(call) == ("<|output_start|>4<|output_end|>", False, None)
    assert tool.step("<|python_start|>2+x<|python_end|>") == ("", False, None)
    assert tool.step(f"{call} is 4") == ("", True, None)
    assert tool.stop == ("<|python_end|>",)
    assert [hint for _, hint in Calculator(["```python", "```", "", ""]).faults()]


def test_python_answers_with_what_is_printed() -> None:
    tool = Python(["<a>", "</a>", "<b>", "</b>"], characters=20, seconds=20)
    assert tool.step("<a>print(6 * 7)</a>")[0] == "<b>42</b>"
    assert tool.step("<a>print(1); [][1]</a>")[0] == "<b>1\nIndexError: list i</b>"
    assert not list(tool.faults())
    assert list(Python(seconds=0).faults())


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raises", "environment: step raised KeyError: 'board'"),
        ("hangs", "environment: step took longer than its timeout of 0.2 seconds"),
        ("pair", "environment: step returned a tuple of 2 values -> return (text, done, reward)"),
        ("number", "environment: step returned a int as its text"),
        ("done", "environment: step returned a str as done"),
        ("nan", "environment: step returned nan as its reward"),
        ("reset", "environment: reset returned a dict -> return nothing"),
    ],
)
def test_an_environment_that_fails_has_one_message(how: str, message: str) -> None:
    environments = Environments({**CAPITALS, "how": how, "timeout": 0.2}, TRUST)
    with pytest.raises(EnvironmentFault) as caught:
        environments.step(environments.begin([{"prompt": "a"}], ["0 0 0"]), ["some text"])
    assert str(caught.value).startswith(message)


def test_an_object_without_the_methods_is_refused() -> None:
    entry = {"_target_": "helpers.rollout_rewards.NoEnvironment"}
    with pytest.raises(EnvironmentFault, match="has no method reset"):
        Environments(entry, TRUST)


def test_random_numbers_follow_from_the_key() -> None:
    environments = Environments(CAPITALS, TRUST)
    made: list[Capitals] = environments.begin([{}, {}, {}], ["1 0 0", "1 0 1", "1 0 0"])
    assert made[0].seed == made[2].seed != made[1].seed


@pytest.mark.parametrize(
    ("more", "code", "text"),
    [
        (["environment.how=raises"], 1, "environment: step raised KeyError: 'board'"),
        (["environment.how=never"], 0, "ended after environment.max_turns=2"),
    ],
)
def test_a_run_with_an_environment_that_fails(
    tmp_path: Any, more: list[str], code: int, text: str
) -> None:
    """One that raises ends the run with its message; one that never ends is stopped."""
    options = (
        "experiment=grpo_demo train.max_steps=2 train.global_batch_size=16 train.batch_size=16 "
        "rollout.max_new_tokens=12 rollout.num_generations=4 train.seq_len=20 "
        "+environment._target_=helpers.rollout_rewards.Capitals +environment.max_turns=2 "
        f"run.trust=[helpers.] run.dir={tmp_path / 'run'}"
    ).split()
    more = [f"+{option}" for option in more]
    command = [sys.executable, "-m", "forge.train", *options, *more]
    path = os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))
    environ = os.environ | {"PYTHONPATH": path}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environ)
    said = ran.stdout + ran.stderr
    assert (ran.returncode != 0) == bool(code), said
    assert said.count(text) >= 1, said
    assert "Traceback" not in said
