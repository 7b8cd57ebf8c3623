"""lm-eval on forge's engine: the numbers of lm-eval's own model of transformers, item by item."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import forge
from forge import evaluate, export
from forge import lm_eval as verb
from forge.evaluation import lm_eval_tasks
from forge.evaluation.engine import Engine
from forge.evaluation.lm_eval_model import EngineLM
from forge.rundir import evaluations

pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
Capture = pytest.CaptureFixture[str]
WORDS = ["the", "a", "of", "sea", "ship", "whale", "white", "captain"]
TASKS = ("mine_choice", "mine_rolling", "mine_generation")
YAML = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: {kind}
num_fewshot: 0
{own}
metadata: {{version: 1.0}}
"""
CHOICE = """
doc_to_text: "{{prompt}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
ROLLING = """
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
"""
GENERATION = """
doc_to_text: "{{prompt}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n", " s"], max_gen_toks: 9, do_sample: false}
metric_list: [{metric: exact_match}]
filter_list:
  - {name: word, filter: [{function: regex, regex_pattern: "([a-z]+)"}, {function: take_first}]}
  - {name: whole, filter: [{function: take_first}]}
"""


@pytest.fixture(scope="module", autouse=True)
def offline() -> Any:
    """Nothing is fetched, and datasets keeps its files of rows in a place of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("datasets.config.HF_HUB_OFFLINE", True)
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tasks of the three kinds, of 20 items; some prompts are longer than the model's 32 tokens."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    draw = random.Random(3)
    folder = tmp_path / "tasks"
    folder.mkdir()

    def text(most: int) -> str:
        return " ".join(draw.choices(WORDS, k=draw.randint(1, most)))

    rows: dict[str, list[dict[str, Any]]] = {
        "choice": [
            {"prompt": text(20), "choices": [text(4), text(2), "sea"], "gold": draw.randrange(3)}
            for _ in range(20)
        ],
        "rolling": [{"text": text(60)} for _ in range(20)],
        "generation": [{"prompt": text(20), "answer": draw.choice(WORDS)} for _ in range(20)],
    }
    kinds = ("multiple_choice", "loglikelihood_rolling", "generate_until")
    for (name, content), kind, own in zip(
        rows.items(), kinds, (CHOICE, ROLLING, GENERATION), strict=True
    ):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(row)}\n" for row in content))
        (folder / f"{name}.yaml").write_text(
            YAML.format(name=f"mine_{name}", file=file, kind=kind, own=own)
        )
    return folder


def asked(model: Any, folder: Path, tasks: Any = TASKS, **options: Any) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    return simple_evaluate(
        model=model, tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **options
    )


def own_model(folder: Path, **options: Any) -> Any:
    """lm-eval's own model of an exported folder."""
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=4, **options)


def model_of(run: Path, **options: Any) -> EngineLM:
    loaded = forge.load(run)
    return EngineLM(Engine(loaded.model, device=loaded.device), loaded.tokenizer, **options)


def flat(answers: Any) -> list[Any]:
    return [leaf for each in answers for leaf in flat(each)] if isinstance(answers, list | tuple) else [answers]


def assert_equal(ours: Any, theirs: Any) -> None:
    """Every answer within 1e-4, every text and judgement equal, and the same scores."""
    for name, samples in theirs["samples"].items():
        for sample, other in zip(ours["samples"][name], samples, strict=True):
            assert sample["doc_id"] == other["doc_id"]
            assert flat(sample["resps"]) == pytest.approx(flat(other["resps"]), abs=1e-4)
    for name, metrics in theirs["results"].items():
        for metric, value in metrics.items():
            if isinstance(value, float):
                assert ours["results"][name][metric] == pytest.approx(value, rel=1e-4), metric
            else:
                assert ours["results"][name][metric] == value


def test_every_item_of_three_kinds_of_tasks_equals_that_of_transformers(
    tiny_run: Path, tasks: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "folder"
    assert export.main([str(tiny_run), str(folder), "--format", "hf"]) == 0
    theirs = asked(own_model(folder), tasks)
    ours = asked(model_of(tiny_run), tasks)
    assert_equal(ours, theirs)
    lengths = [len(text) for text in flat([s["resps"] for s in ours["samples"]["mine_generation"]])]
    assert len(set(lengths)) > 2
    capsys.readouterr()
