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
from forge.compose.lm_eval_words import Harness
from forge.data.tokenizers.tokenizer import Tokenizer
from forge.evaluation import lm_eval_tasks
from forge.evaluation.engine import Engine
from forge.evaluation.lm_eval_model import EngineLM
from forge.lm_eval import __main__ as verb
from forge.rundir import evaluations
from forge.training.lm_eval_run import RunLM

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
    return (
        [leaf for each in answers for leaf in flat(each)]
        if isinstance(answers, list | tuple)
        else [answers]
    )


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


def begun(folder: Path) -> None:
    """Give a folder a tokenizer that begins documents with a token, as Gemma's does."""
    import tokenizers

    old = Tokenizer.load(folder)
    text = json.loads((folder / "tokenizer.json").read_text())
    vocab = text["model"]["vocab"]
    last = max(vocab, key=vocab.get)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    text["added_tokens"].append({"id": vocab[last], "content": "<bos>", "special": True, **flags})
    vocab["<bos>"] = vocab.pop(last)
    merges = [pair for pair in text["model"]["merges"] if "".join(pair) in vocab]
    text["model"]["merges"] = merges
    raw = tokenizers.Tokenizer.from_str(json.dumps(text))
    made = Tokenizer(raw, eos_token=old.eos_token, bos_token="<bos>", add_bos=True)
    assert made.vocab_size == old.vocab_size
    made.save(folder)


def test_documents_begin_once_for_tokenizers_with_a_begin_token(
    tiny_run: Path, tasks: Path, tmp_path: Path, capsys: Capture
) -> None:
    """lm-eval's own model has the begin token twice in the first rolling window; ours once."""
    folder = tmp_path / "folder"
    assert export.main([str(tiny_run), str(folder), "--format", "hf"]) == 0
    begun(folder)
    theirs, ours = own_model(folder), RunLM(str(folder))
    begin = ours.text_tokenizer.begin_id
    assert begin is not None
    assert ours.prefix_token_id == theirs.prefix_token_id == begin
    for text in ("the sea", "<bos>the sea", "", " the"):
        assert ours.tok_encode(text) == theirs.tok_encode(text)
        assert ours.tok_encode(text).count(begin) == 1
        plain = ours.tok_encode(text, add_special_tokens=False)
        assert plain == theirs.tok_encode(text, add_special_tokens=False)
    pairs = ("mine_choice", "mine_generation")
    assert_equal(asked(ours, tasks, pairs), asked(theirs, tasks, pairs))
    rolling = ("mine_rolling",)
    twice = asked(theirs, tasks, rolling)["samples"]["mine_rolling"]
    encode = theirs.tok_encode
    theirs.tok_encode = lambda text: encode(text, add_special_tokens=False)
    once = asked(theirs, tasks, rolling)
    assert flat([s["resps"] for s in once["samples"]["mine_rolling"]]) != flat(
        [s["resps"] for s in twice]
    )
    assert_equal(asked(ours, tasks, rolling), once)
    capsys.readouterr()


TEMPLATE = """{% for m in messages %}{{ '<|' + m.role + '|>' }} {{ m.content | trim }}
{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"""


def test_chats_are_asked_as_by_transformers(
    tiny_run: Path, tasks: Path, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "folder"
    assert export.main([str(tiny_run), str(folder), "--format", "hf"]) == 0
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": TEMPLATE}))
    theirs, ours = own_model(folder), RunLM(str(folder))
    assert ours.chat_template(True) == TEMPLATE
    chat = [{"role": "user", "content": " the sea "}, {"role": "assistant", "content": "a ship "}]
    for messages, prompts in ((chat[:1], True), (chat, False)):
        text = ours.apply_chat_template(messages, add_generation_prompt=prompts)
        assert text == theirs.apply_chat_template(messages, add_generation_prompt=prompts)
    assert text.endswith("a ship")
    options = {"apply_chat_template": True, "limit": 5}
    first = asked(ours, tasks, TASKS[::2], **options)
    assert "<|assistant|>" in first["samples"]["mine_generation"][0]["arguments"][0][0]
    assert_equal(first, asked(theirs, tasks, TASKS[::2], **options))
    capsys.readouterr()


def test_forge_evaluate_asks_tasks_of_lm_eval(
    tiny_run: Path, tasks: Path, tmp_path: Path, capsys: Capture
) -> None:
    """With the numbers of lm-eval, a row for each item, and the same on two ranks."""
    words = [str(tiny_run), f"lm_eval=[{','.join(TASKS)}]", f"lm_eval.include={tasks}"]
    assert evaluate.main([*words, "--json"]) == 0, capsys.readouterr().err
    summaries = {each["task"]: each for each in json.loads(capsys.readouterr().out)}
    expected = asked(model_of(tiny_run), tasks)
    for name in TASKS:
        metrics = summaries[f"lm_eval_{name}"]["metrics"]
        for key, value in expected["results"][name].items():
            metric, _, kind = key.partition(",")
            if kind and not metric.endswith("_stderr"):
                estimate = metrics[lm_eval_tasks.metric_name(metric, kind)]
                assert estimate["value"] == pytest.approx(value)
                assert estimate["n"] == 20
    rows = evaluations.item_rows(tiny_run, "lm_eval_mine_rolling", 6)
    nats = sum(row["responses"][0][0] for row in rows)
    size = sum(row["weights"]["bits_per_byte"] for row in rows)
    bits = summaries["lm_eval_mine_rolling"]["metrics"]["bits_per_byte"]["value"]
    assert bits == pytest.approx(-nats / size / math.log(2))
    laid = [*words, "parallel=fsdp", "run.num_processes=2", "--out", str(tmp_path / "two")]
    assert evaluate.main([*laid, "eval.tasks_items=6"]) == 0, capsys.readouterr().err
    for name in TASKS:
        rows = evaluations.item_rows(tiny_run, f"lm_eval_{name}", 6)[:6]
        others = evaluations.item_rows(tmp_path / "two", f"lm_eval_{name}", 6)
        assert len(others) == 6
        for row, other in zip(rows, others, strict=True):
            assert flat(row["responses"]) == pytest.approx(flat(other["responses"]), abs=1e-4)
    capsys.readouterr()


def test_a_group_has_a_result_of_its_own(tiny_run: Path, tasks: Path) -> None:
    other = (tasks / "choice.yaml").read_text().replace("mine_choice", "other_choice")
    (tasks / "other.yaml").write_text(other)
    group: dict[str, Any] = {"group": "mine_all", "task": ["mine_choice", "other_choice"]}
    group["aggregate_metric_list"] = [{"metric": "acc", "weight_by_size": True}]
    (tasks / "group.yaml").write_text(json.dumps(group))
    harness = Harness(tasks=("mine_all", "mine_rolling"), include=str(tasks))
    results = lm_eval_tasks.ask_tasks(harness, model_of(tiny_run), items=7)
    assert [result.name for result in results] == ["lm_eval_mine_all", "lm_eval_mine_rolling"]
    group_result = results[0]
    assert (len(group_result.rows), group_result.of, group_result.main) == (14, 40, "acc")
    assert {row["cluster"] for row in group_result.rows} == {"mine_choice", "other_choice"}
    mean = sum(row["metrics"]["acc"] for row in group_result.rows) / 14
    assert group_result.metrics["acc"].value == pytest.approx(mean)
    assert group_result.rows[7]["id"] == "other_choice/0"


def test_the_command_line_of_lm_eval_reads_runs(
    tiny_run: Path, tasks: Path, tmp_path: Path, capsys: Capture, monkeypatch: Any
) -> None:
    monkeypatch.setattr("lm_eval.tasks.TaskManager.__init__", small(tasks))
    out = tmp_path / "out"
    words = ["--model", "forge", "--model_args", f"run={tiny_run},step=4", "--tasks", TASKS[0]]
    words += ["--include_path", str(tasks), "--output_path", str(out), "--limit", "4"]
    assert verb.main(words) == 0, capsys.readouterr().err
    (file,) = out.rglob("results_*.json")
    results = json.loads(file.read_text())
    loaded = forge.load(tiny_run, 4)
    model = EngineLM(Engine(loaded.model, device=loaded.device), loaded.tokenizer)
    expected = asked(model, tasks, TASKS[:1], limit=4)["results"][TASKS[0]]
    assert results["results"][TASKS[0]]["acc_norm,none"] == expected["acc_norm,none"]
    assert results["config"]["model_sha"].endswith("step_4")
    capsys.readouterr()
    assert verb.main([*words[:2], "--model_args", "run=nowhere", *words[4:]]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("nowhere")


def small(folder: Path) -> Any:
    """A table without lm-eval's thousands of tasks, which take seconds to find."""
    from lm_eval.tasks import TaskManager

    begin = TaskManager.__init__

    def made(self: Any, *_: Any, **options: Any) -> None:
        options = {name: value for name, value in options.items() if name == "metadata"}
        begin(self, include_path=str(folder), include_defaults=False, **options)

    return made


HELLASWAG = """
task: hellaswag
dataset_path: Rowan/hellaswag
test_split: validation
output_type: multiple_choice
doc_to_text: "{{ctx}}"
doc_to_choice: endings
doc_to_target: label
"""


def test_tasks_that_cannot_be_asked_are_refused_before_the_model_is_loaded(
    tiny_run: Path, tasks: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("forge.training.evaluating.load_run", load)
    (tasks / "hellaswag.yaml").write_text(HELLASWAG)
    monkeypatch.setattr("lm_eval.tasks.TaskManager.__init__", small(tasks))

    def message(*words: str) -> str:
        assert evaluate.main([str(tiny_run), *words]) == 2
        return capsys.readouterr().err

    include = f"lm_eval.include={tasks}"
    err = message("lm_eval=[hellaswag]", include)
    assert "lm_eval=[hellaswag]" in err
    assert "its data are not on this machine, and cannot be fetched (ConnectionError" in err
    assert "HF_HOME keeps them" in err
    assert err.count("\n") < 5
    err = message("lm_eval=[mine_choices]")
    assert "lm-eval has no task mine_choices" in err
    assert "mine_choice" in err
    assert "lm_eval.shots=" in message("lm_eval=[mine_choice]", "lm_eval.shot=3")
    assert "no task of lm-eval is named" in message(include)
    assert "it is not what this option takes" in message("lm_eval=[a]", "lm_eval.shots=many")
    assert "a folder with YAML files" in message("lm_eval=[a]", "lm_eval.include=/nowhere")
    assert "eval.tasks_items=100" in message("lm_eval=[mine_choice]", "eval.tasks_seconds=3")


def test_generation_options_that_are_not_obeyed_are_refused(tiny_run: Path) -> None:
    model = model_of(tiny_run)
    with pytest.raises(ValueError, match="no room in a model of 32 tokens"):
        model._options({"until": ["x"]})
    with pytest.raises(ValueError, match="has no num_beams=4"):
        model._options({"max_gen_toks": 4, "num_beams": 4})
    given = {"max_gen_toks": 4, "do_sample": True, "temperature": 0.7, "top_p": 0.9}
    options = model._options(given)
    assert (options.sampling.temperature, options.sampling.top_p) == (0.7, 0.9)
    assert model._options({**given, "do_sample": False}).sampling.temperature == 0


def test_repeated_samples_differ_and_are_drawn_alike_every_time(tiny_run: Path) -> None:
    from lm_eval.api.instance import Instance

    given = {"max_gen_toks": 8, "do_sample": True, "temperature": 1.0, "until": []}
    asks = [Instance("generate_until", {}, (text, given), i) for i, text in enumerate(WORDS)]
    model = model_of(tiny_run)
    texts = model.generate_until([each for each in asks for _ in range(3)])
    assert len({*texts[:3]}) > 1
    assert model.generate_until([asks[2]] * 3) == texts[6:9]


def test_known_answers_are_not_asked_again(tiny_run: Path, tasks: Path, tmp_path: Path) -> None:
    from forge.evaluation.cache import Cache

    file = tmp_path / "answers.jsonl"
    first = asked(model_of(tiny_run, answers=Cache(file)), tasks, TASKS[:2])
    again = model_of(tiny_run, answers=Cache(file))
    again.engine.score = None  # type: ignore[assignment]
    assert_equal(asked(again, tasks, TASKS[:2]), first)


def test_windows_are_those_of_lm_eval() -> None:
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

    from forge.evaluation.encoding import windows

    for length in (0, 1, 7, 8, 9, 16, 29):
        ids = torch.arange(1, length + 1).tolist()
        theirs = get_rolling_token_windows(ids, 0, 8, 1)
        expected = [make_disjoint_window(pair) for pair in theirs]
        assert [(list(a), list(b)) for a, b in windows(ids, 0, 8)] == expected
