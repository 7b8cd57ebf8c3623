"""`python -m forge.evaluate`: what it writes, refuses, continues with, and gives on two ranks."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import binom, binomtest

import forge
from forge import evaluate, export
from forge.evaluation.engine import Engine
from forge.evaluation.requests import Request
from forge.evaluation.texts import documents
from forge.rundir import evaluations
from forge.training.checkpoints.restore import load_run

Capture = pytest.CaptureFixture[str]
WORDS = ["the", "a", "of", "sea", "ship", "whale", "white", "captain"]


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """400 questions with random answers."""
    draw = random.Random(1)
    rows = []
    for _ in range(400):
        prompt = " ".join(draw.choices(WORDS, k=draw.randint(1, 5)))
        choices = draw.sample(WORDS, 4)
        rows.append({"prompt": prompt, "choices": choices, "answer": draw.randrange(4)})
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def test_accuracy_of_random_answers_lies_in_its_binomial_interval(
    tiny_run: Path, questions: Path, capsys: Capture
) -> None:
    assert evaluate.main([str(tiny_run), str(questions), "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    low, high = (edge / 400 for edge in binom.interval(0.999, 400, 0.25))
    for name in ("accuracy", "accuracy_per_char", "accuracy_per_byte", "accuracy_per_token"):
        value = summary["metrics"][name]
        assert low <= value["value"] <= high
        rate = value["value"]
        assert value["stderr"] == pytest.approx(math.sqrt(rate * (1 - rate) / 399))
        wilson = binomtest(round(rate * 400), 400).proportion_ci(method="wilson")
        assert (value["low"], value["high"]) == pytest.approx((wilson.low, wilson.high))
    assert evaluations.latest(tiny_run)["questions"] == summary
    rows = evaluations.item_rows(tiny_run, "questions", 6)
    assert len(rows) == summary["items"] == 400
    chosen = [row["chosen"] == row["gold"] for row in rows]
    assert sum(chosen) / 400 == summary["metrics"]["accuracy"]["value"]
    assert summary["versions"]["torch"] == torch.__version__
    assert summary["precision"] == "fp32"
    python = forge.load(tiny_run).evaluate(tasks=[str(questions)])
    for name, value in summary["metrics"].items():
        assert python[f"questions/{name}"] == value["value"]


def test_an_evaluation_goes_on_where_it_was_killed(
    tiny_run: Path, questions: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    words = [str(tiny_run), str(questions), "eval.tasks_batch_tokens=100"]
    assert evaluate.main([*words, "--out", str(tiny_run / "whole")]) == 0
    read: list[int] = []
    score = Engine.score

    def counted(self: Engine, requests: list[Request], on_round: Any = None) -> Any:
        read.append(len(requests))
        return score(self, requests, on_round)

    def killed(self: Engine, *round_of: Any) -> Any:
        if len(read) > 3:
            raise KeyboardInterrupt
        read.append(0)
        return of_round(self, *round_of)

    of_round = Engine._round
    monkeypatch.setattr(Engine, "score", counted)
    monkeypatch.setattr(Engine, "_round", killed)
    assert evaluate.main(words) == 130
    monkeypatch.setattr(Engine, "_round", of_round)
    (cache,) = (tiny_run / "eval" / "cache").glob("*.jsonl")
    known = len(cache.read_text().splitlines())
    assert 0 < known < read[0]
    with cache.open("a") as file:
        file.write('{"key": "torn')
    first = read[0]
    read.clear()
    assert evaluate.main(words) == 0
    assert read == [first - known]
    whole = evaluations.item_rows(tiny_run / "whole", "questions", 6)
    for row, other in zip(evaluations.item_rows(tiny_run, "questions", 6), whole, strict=True):
        for score_of, other_score in zip(row["scores"], other["scores"], strict=True):
            assert score_of == pytest.approx(other_score, rel=1e-6)
    read.clear()
    assert evaluate.main(words) == 0
    assert not read
    capsys.readouterr()


def test_two_ranks_give_the_scores_of_one(
    tiny_run: Path, questions: Path, tmp_path: Path, capsys: Capture
) -> None:
    words = [str(tiny_run), str(questions), "eval.tasks_items=50"]
    assert evaluate.main(words) == 0
    laid = [*words, "parallel=fsdp", "run.num_processes=2", "--out", str(tmp_path / "two")]
    assert evaluate.main(laid) == 0
    (summary,) = evaluations.summaries(tmp_path / "two")
    assert summary["layout"] == {"dp_shard": 2}
    rows = evaluations.item_rows(tiny_run, "questions", 6)
    others = evaluations.item_rows(tmp_path / "two", "questions", 6)
    assert len(rows) == len(others) == 50
    for row, other in zip(rows, others, strict=True):
        assert row["id"] == other["id"]
        for score, other_score in zip(row["scores"], other["scores"], strict=True):
            assert score == pytest.approx(other_score, rel=1e-6)
    capsys.readouterr()


def test_a_text_is_scored_document_by_document(
    tiny_run: Path, tmp_path: Path, capsys: Capture
) -> None:
    """By the model itself, window after window; longer than the model, and shorter."""
    texts = ["the white whale of the sea said the captain and " * 4, "the ship"]
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    assert evaluate.main([str(tiny_run), f"eval.data={file}", "--json"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    trained = load_run(tiny_run)
    nats, tokens, matches = 0.0, 0, 0
    for text in texts:
        ids = trained.tokenizer.encode(text)
        whole = [trained.tokenizer.eos_id, *ids]
        for place in range(len(ids)):
            # disjoint windows of 32, of which the last reaches back for a full context
            end = min(place // 32 * 32 + 32, len(ids))
            context = whole[max(end - 32, 0) : place + 1]
            with torch.no_grad():
                logits = trained.model(torch.tensor([context]))[0, -1].double()
            nats -= logits.log_softmax(-1)[ids[place]].item()
            tokens += 1
            matches += int(logits.argmax()) == ids[place]
    assert len(trained.tokenizer.encode(texts[0])) > 32
    size = sum(len(text.encode()) for text in texts)
    metrics = {name: value["value"] for name, value in summary["metrics"].items()}
    assert metrics == {
        "loss": pytest.approx(nats / tokens, rel=1e-5),
        "perplexity": pytest.approx(math.exp(nats / tokens), rel=1e-4),
        "bits_per_byte": pytest.approx(nats / math.log(2) / size, rel=1e-5),
        "token_accuracy": pytest.approx(matches / tokens),
    }
    assert summary["items"] == 2
    of_documents = [
        str(tiny_run),
        "--json",
        f"+eval.tasks.m.path={file}",
        "+eval.tasks.m.kind=text",
    ]
    assert evaluate.main([*of_documents, "+eval.tasks.m.weigh_by=documents"]) == 0
    (summary,) = json.loads(capsys.readouterr().out)
    rows = evaluations.item_rows(tiny_run, "m", 6)
    mean = sum(row["metrics"]["loss"] for row in rows) / 2
    assert summary["metrics"]["loss"]["value"] == pytest.approx(mean)


def test_generated_texts_do_not_depend_on_the_others(tiny_run: Path, tmp_path: Path) -> None:
    rows = [{"prompt": prompt, "answer": "x"} for prompt in ("the sea", "a", "of the white whale")]
    options = {"kind": "generation", "max_tokens": 6, "temperature": 0.9, "samples": 2, "stop": []}
    loaded = forge.load(tiny_run)

    def texts(some: list[Any], name: str) -> dict[str, Any]:
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in some))
        (result,) = loaded.results({"g": {**options, "path": str(file)}})
        return {row["prompt"]: r["texts"] for row, r in zip(some, result.rows, strict=True)}

    together = texts(rows, "all")
    assert len({text for some in together.values() for text in some}) > 3
    for number, row in enumerate(rows):
        assert texts([row], str(number))[row["prompt"]] == together[row["prompt"]]
    assert texts(rows[::-1], "reversed") == together


def test_a_folder_has_the_scores_of_transformers(
    tiny_run: Path, questions: Path, tmp_path: Path, capsys: Capture
) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "folder"
    assert export.main([str(tiny_run), str(folder), "--format", "hf"]) == 0
    out = tmp_path / "out"
    words = [str(folder), str(questions), "eval.tasks_items=40", "--out", str(out)]
    assert evaluate.main(words) == 0, capsys.readouterr().err
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    asked = [json.loads(line) for line in questions.read_text().splitlines()][::10]
    rows = evaluations.item_rows(out, "questions", 0)
    for row, question in zip(rows, asked, strict=True):
        for (logprob, tokens, _), choice in zip(row["scores"], question["choices"], strict=True):
            prompt, whole = question["prompt"], f"{question['prompt']} {choice}"
            ids = tokenizer(whole, add_special_tokens=False).input_ids
            cut = len(tokenizer(prompt, add_special_tokens=False).input_ids)
            with torch.no_grad():
                logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            labels = torch.tensor(ids[cut:])
            expected = logits[cut - 1 : -1].gather(1, labels[:, None]).sum().item()
            assert logprob == pytest.approx(expected, abs=1e-4)
            assert tokens == len(labels)
    capsys.readouterr()
    (folder / "tokenizer.json").unlink()
    assert evaluate.main(words) == 2
    assert "tokenizer" in capsys.readouterr().err


def test_what_cannot_be_evaluated_is_refused_before_the_model_is_loaded(
    tiny_run: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("forge.training.evaluating.load_run", load)
    file = tmp_path / "q.jsonl"

    def message(row: dict[str, Any], *words: str) -> str:
        file.write_text(json.dumps(row))
        assert evaluate.main([str(tiny_run), str(file), *words]) == 2
        return capsys.readouterr().err

    good = {"prompt": "the", "choices": ["sea", "ship"], "answer": 0}
    assert "a choice among 1 is none" in message({**good, "choices": ["sea"], "answer": 0})
    assert 'it has no "answer"' in message({**good, "answer": None})
    long = message({**good, "prompt": "the sea " * 40})
    assert "1 of 1 items are longer than the model's 32 tokens" in long
    assert "eval.too_long=cut leaves out the beginning" in long
    assert "those of the run" in message(good, "model.dim=3")
    assert "tp" in message(good, "parallel.tp=3")
    assert evaluate.main([str(tiny_run)]) == 2
    assert "no task and no text is named" in capsys.readouterr().err
    assert evaluate.main([str(tiny_run), "arc_eas"]) == 2
    assert "did you mean olmes/arc_easy" in capsys.readouterr().err
    assert evaluate.main([str(tmp_path), str(file)]) == 2
    assert "there is no complete checkpoint" in capsys.readouterr().err
    assert evaluate.main([]) == 2
    assert "which run is evaluated?" in capsys.readouterr().err
    (tmp_path / "folder").mkdir()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 24, "vocab_size": 64, "max_position_embeddings": 32}
    folder = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes}
    (tmp_path / "folder" / "config.json").write_text(json.dumps(folder))
    assert evaluate.main([str(tmp_path / "folder"), str(file)]) == 2
    assert "has no tokenizer.json" in capsys.readouterr().err


def test_a_long_prompt_is_cut_where_that_is_said(tiny_run: Path, tmp_path: Path) -> None:
    row = {"prompt": "the sea " * 40, "choices": ["sea", "ship"], "answer": 0}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    loaded = forge.load(tiny_run)
    (result,) = loaded.results([str(tmp_path / "q.jsonl")], too_long="cut")
    encode = loaded.tokenizer.encode
    prefix = encode(row["prompt"].rstrip())
    whole = encode(row["prompt"] + " sea")
    ids = whole[: len(whole) - 1][-32:]
    with torch.no_grad():
        logits = loaded.model(torch.tensor([ids]))[0].log_softmax(-1)
    count = len(whole) - len(prefix)
    labels = torch.tensor(whole[len(prefix) :])
    expected = logits[-count:].gather(1, labels[:, None]).sum().item()
    assert result.rows[0]["scores"][0][0] == pytest.approx(expected, rel=1e-5)


def test_a_budget_in_seconds_ends_between_items(tiny_run: Path, questions: Path) -> None:
    words = [str(tiny_run), str(questions), "eval.tasks_seconds=1e-6", "--json"]
    assert evaluate.main(words) == 0
    (summary,) = evaluations.summaries(tiny_run)
    assert (summary["items"], summary["of"]) == (0, 400)


def test_documents_of_a_store_have_no_borders(tiny_run: Path) -> None:
    trained = load_run(tiny_run)
    end = trained.tokenizer.eos_id

    class Store:
        counted = None
        ids = (5, 6, end, end, 7, end)

        def __len__(self) -> int:
            return len(self.ids)

        def read(self, start: int, stop: int) -> list[int]:
            return list(self.ids[start:stop])

    store: Any = Store()
    assert list(documents(store, trained.tokenizer)) == [(5, 6), (7,)]
