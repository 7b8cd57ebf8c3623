"""Rewards: forge's own against closed forms and TRL's, and functions that misbehave."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.config.problems import ConfigError
from forge.rewards import RewardError, Scorer, Scores

MINE = """
import asyncio, os, sys, time

def good(prompts, completions, completion_ids, answer, **columns):
    return [len(p) + 10 * len(c) + 100 * len(i) + 1000 * a
            for p, c, i, a in zip(prompts, completions, completion_ids, answer)]

def some(completions): return [None if c == "b" else 2 for c in completions]
def everything(**columns): return [float(len(columns))] * len(columns["completions"])
def raises(completions): return [1 / 0 for c in completions]
def hangs(completions): time.sleep(60)
def spins(completions):
    while True: pass
def nan(completions): return [0.0, float("nan")]
def inf(completions): return [0.0, float("inf")]
def short(completions): return [1.0]
def text(completions): return ["1.0" for c in completions]
def scalar(completions): return 1.0
def prints(completions):
    print("noise"); sys.stdout.flush()
    return [os.getpid()] * len(completions)
def leaves(completions): os._exit(3)
def factor(completions, by=1.0): return [by * len(c) for c in completions]
def factory(by): return lambda completions: [by * len(c) for c in completions]

active = most = 0
async def slow(completions):
    global active, most
    active += 1; most = max(most, active)
    await asyncio.sleep(0.2)
    active -= 1
    return [float(most)] * len(completions)
async def never(completions): await asyncio.sleep(60)
"""


@pytest.fixture(scope="module", autouse=True)
def module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The module `my_rewards`, importable."""
    folder = tmp_path_factory.mktemp("mine")
    (folder / "my_rewards.py").write_text(MINE)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def mine(name: str, **options: Any) -> dict[str, Any]:
    return {"_target_": f"my_rewards.{name}", **options}


def scored(entries: dict[str, Any], completions: list[Any], **columns: list[Any]) -> Scores:
    scorer = Scorer(entries, ["my_rewards"], workers=2)
    try:
        ids = [list(range(n + 1)) for n in range(len(completions))]
        return scorer.score(["p"] * len(completions), completions, ids, columns)
    finally:
        scorer.close()


def of(target: str, completions: list[Any], columns: dict[str, list[Any]], **options: Any) -> list:
    entry = {"_target_": f"forge.rewards.{target}", **options}
    return scored({"it": entry}, completions, **columns).by_name["it"]


def test_the_total_is_the_weighted_sum_of_those_that_judge() -> None:
    scores = scored(
        {
            "good": mine("good", weight=0.5, columns={"answer": "solution"}),
            "some": mine("some", weight=3.0),
            "isolated": mine("factor", by=0.25, isolated=True, weight=0.0),
            "made": mine("factory", by=2),
        },
        ["aa", "b"],
        solution=[1, 2],
    )
    good = [1 + 20 + 100 + 1000, 1 + 10 + 200 + 2000]
    assert scores.by_name == {
        "good": good,
        "some": [2.0, None],
        "isolated": [0.5, 0.25],
        "made": [4.0, 2.0],
    }
    assert scores.total == [0.5 * good[0] + 6 + 4, 0.5 * good[1] + 2]
    assert scored({"some": mine("some")}, ["b", "b"]).total == [None, None]
    assert scored({"all": mine("everything")}, ["b"], x=[1], y=[2]).total == [5.0]


def test_coroutines_run_together() -> None:
    begun = time.monotonic()
    scores = scored({"a": mine("slow"), "b": mine("slow"), "c": mine("slow")}, ["x"])
    assert time.monotonic() - begun < 0.5
    assert max(scores.by_name[name][0] or 0 for name in "abc") == 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "raises",
            {},
            r"it raised ZeroDivisionError: division by zero \(.*my_rewards.py, line 10\)",
        ),
        ("raises", {"isolated": True}, "it raised ZeroDivisionError: division by zero"),
        ("hangs", {"timeout": 0.3}, "it took longer than its timeout of 0.3 seconds"),
        (
            "spins",
            {"timeout": 1.5, "isolated": True},
            "it took longer than its timeout of 1.5 seconds",
        ),
        ("never", {"timeout": 0.3}, "it took longer than its timeout of 0.3 seconds"),
        ("nan", {}, "it returned nan for completion 1"),
        ("inf", {"isolated": True}, "it returned inf for completion 1"),
        ("short", {}, "it returned 1 values for 2 completions"),
        ("text", {}, "it returned the text '1.0' for completion 0"),
        ("scalar", {}, "it returned a float, not a list"),
        ("leaves", {"isolated": True}, "its process ended with exit code 3"),
        ("good", {}, "it needs the column 'answer', and the rows have answers"),
    ],
)
def test_a_reward_that_fails_has_one_message(name: str, options: Any, message: str) -> None:
    begun = time.monotonic()
    with pytest.raises(RewardError, match=f"^rewards.bad: {message}.* -> ") as raised:
        scored({"ok": mine("some"), "bad": mine(name, **options)}, ["a", "b"], answers=[1, 2])
    assert "\n" not in str(raised.value)
    assert time.monotonic() - begun < 5


def test_a_scorer_goes_on_after_a_failure_and_its_processes_end_with_it() -> None:
    scorer = Scorer({"mine": mine("prints", isolated=True)}, ["my_rewards"])
    (pid,) = scorer.score(["p"], ["a"], [[1]], {}).total
    assert scorer.score(["p"], ["a"], [[1]], {}).total == [pid]
    scorer.close()
    (other,) = scorer.score(["p"], ["a"], [[1]], {}).total
    assert other != pid
    worker = scorer._workers["mine"][0]._process
    scorer.close()
    assert worker is not None
    assert worker.poll() is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (mine("some") | {"_target_": "os.system"}, "no trusted prefix"),
        (mine("missing"), "cannot be imported"),
        (mine("factor", bye=2), "has no parameter bye"),
        ({"_target_": "forge.rewards.exact.Exact", "regx": "x"}, "does not take regx"),
    ],
)
def test_a_reward_that_cannot_be_built_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scorer({"it": entry}, ["my_rewards"])


def test_texts_and_numbers() -> None:
    chat = [{"role": "assistant", "content": "It is  42."}]
    answers = {"answer": ["42", "42", ["41", "42"], "x"]}
    texts = [chat, "42", "42 ", "y"]
    assert of("exact.Exact", texts, answers) == [0, 1, 1, 0]
    options = {"regex": r"-?\d+", "take": "last", "wrong": -1.0}
    assert of("exact.Exact", texts, answers, **options) == [1, 1, 1, -1]

    columns = {"answer": ["#### 1,234", "1234", "so\n#### -0.5", "none", 2]}
    texts = ["1,234.0 dollars", "12.34", "about -.50", "7", "3 #### 2.02"]
    assert of("exact.Numeric", texts, columns) == [1, 0, 1, None, 0]
    assert of("exact.Numeric", texts, columns, relative=0.02) == [1, 0, 1, None, 1]
    assert of("exact.Regex", ["ab", "b\na"], {}, pattern="b.*a|ab") == [1, 1]
    assert of("exact.Regex", ["abc", "ab"], {}, pattern="ab", whole=True, otherwise=-2) == [-2, 1]
    with pytest.raises(RewardError, match="longer than its timeout"):
        of("exact.Regex", ["a" * 40 + "!"], {}, pattern=r"^(a+)+$", timeout=1.5)


def test_tags_against_the_pattern_and_the_numbers_of_maxtext() -> None:
    tags = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
    pattern = re.compile(r"^\s*{}.+?{}.*?{}(.+?){}\s*\Z".format(*tags), re.DOTALL)
    draw, texts = random.Random(0), []
    for _ in range(3000):
        pieces = draw.choices([*tags, "x", " ", "\n", "12", "13.2"], k=draw.randrange(9))
        clean = [tags[0], "x", tags[1], *pieces[:1], tags[2], *pieces[1:4], tags[3]]
        texts.append("".join(clean if draw.random() < 0.3 else pieces))

    def format_reward(text: str) -> float:
        exact = 3.0 if pattern.search(text) else 0.0
        return exact + sum(0.5 if text.count(tag) == 1 else -0.5 for tag in tags)

    def answer_reward(text: str) -> float:
        match = pattern.search(text)
        if match is None:
            return 0.0
        if match[1] == "12" or match[1].strip() == "12":
            return 5.0 if match[1] == "12" else 1.5
        try:
            ratio = float(match[1]) / 12
        except ValueError:
            return -0.5
        return 0.5 if 0.9 <= ratio <= 1.1 else 0.25 if 0.8 <= ratio <= 1.2 else -1.0

    answers = {"answer": ["12"] * len(texts)}
    assert of("tags.Format", texts, {}) == [format_reward(text) for text in texts]
    rewards = of("tags.TaggedAnswer", texts, answers)
    assert rewards == [answer_reward(text) for text in texts]
    assert {5.0, 1.5, 0.5, -0.5, -1.0, 0.0} <= {*rewards}
    gsm8k = {"answer": ["a reason\n#### 10", "#### 10"]}
    texts = [
        "<reasoning>a</reasoning><answer>8.5</answer>",
        "<reasoning>a</reasoning><answer>10</answer>",
    ]
    assert of("tags.TaggedAnswer", texts, gsm8k) == [0.25, 5.0]


def test_length_equals_trls_penalty_and_trls_function_is_a_reward_too() -> None:
    entries = {
        "ours": {"_target_": "forge.rewards.length.Length", "max_length": 50, "soft": 20},
        "trl": {
            "_target_": "trl.rewards.get_soft_overlong_punishment",
            "max_completion_len": 50,
            "soft_punish_cache": 20,
        },
    }
    ids = [[1] * length for length in range(60)]
    scores = Scorer(entries, ["trl"]).score(["p"] * 60, ["c"] * 60, ids, {}).by_name
    assert scores["ours"] == pytest.approx(scores["trl"], abs=1e-15)
    assert {-1.0, 0.0} < {*scores["ours"]}
    assert of("length.Length", ["a", "b"], {}, max_length=9, min_length=2) == [-1, 0]


def test_json() -> None:
    schema = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
    texts = ['{"a": 1}', '```json\n{"a": "1"}\n```', "{'a': 1}", "NaN", "so: 1"]
    assert of("structured.JSON", texts, {}) == [1, 1, 0, 0, 0]
    assert of("structured.JSON", texts, {}, schema=schema, readable=0.25) == [1, 0.25, 0, 0, 0]
    columns = {"schema": ['{"type": "object"}', None, None, None, None]}
    assert of("structured.JSON", texts, columns, schema=schema) == [1, 0, 0, 0, 0]


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is of Linux")
@pytest.mark.filterwarnings("ignore:programs run here without")
def test_python_tests_give_the_share_that_passes(tmp_path: Path) -> None:
    right = "Here:\n```python\ndef f(x):\n    return 2 * x\n```"
    texts = [right, "def f(x): return x", "while True: pass", "raise SystemExit(0)", right]
    tests = ["assert f(0) == 0", "assert f(1) == 2"]
    columns = {"tests": [tests, tests, tests[0], tests, []]}
    rewards = of("program.PythonTests", texts, columns, seconds=1.0, processes=2)
    assert rewards == [1.0, 0.5, 0.0, 0.0, None]


def test_math_verify() -> None:
    pytest.importorskip("math_verify")
    texts = [r"so \boxed{\frac{1}{2}}", "0.5", r"\boxed{2}", "1"]
    columns = {"solution": ["$1/2$", r"$\frac{2}{4}$", "$3$", "???"]}
    assert of("mathematics.MathVerify", texts, columns) == [1.0, 1.0, 0.0, None]
