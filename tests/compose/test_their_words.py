"""Each line of the tables of coming_from.md for those who come from TRL, PEFT, axolotl,
LLaMA-Factory and torchtune: what is typed there is taken, or answered with what stands beside it,
which composes.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.folders import write_folder
from helpers.refusing import problems, resolved

from forge.compose.composition import compose
from forge.compose.grammar import read_override
from forge.compose.unknown import Keys
from forge.config import schemas
from forge.config.problems import ConfigError

PAGE = Path(__file__).parents[2] / "tools" / "coming_from.md"
TOOLS = ("TRL", "PEFT", "axolotl", "LLaMA-Factory", "torchtune")
TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}\n{% endfor %}"
BASE = "train=sft model=hf model.path=my/model data=chat data.path=my.jsonl"
LEAST = {
    "TRL": "model_name_or_path dataset_name max_length num_train_epochs packing beta optim "
    "assistant_only_loss per_device_train_batch_size gradient_accumulation_steps learning_rate "
    "gradient_checkpointing lr_scheduler_type warmup_ratio bf16 load_in_4bit save_steps eval_steps "
    "logging_steps early_stopping_patience chat_template_path neftune_noise_alpha weight_decay "
    "output_dir resume_from_checkpoint deepspeed fsdp max_seq_length",
    "PEFT": "r adapter.r lora_alpha lora_dropout target_modules load_in_4bit modules_to_save",
    "axolotl": "base_model datasets sequence_len num_epochs sample_packing micro_batch_size lora_r "
    "gradient_accumulation_steps gradient_checkpointing learning_rate lr_scheduler warmup_ratio "
    "bf16 load_in_4bit save_steps eval_steps logging_steps early_stopping_patience chat_template "
    "val_set_size neftune_noise_alpha weight_decay optimizer output_dir resume_from_checkpoint "
    "deepspeed fsdp train_on_inputs lora_alpha lora_dropout lora_target_modules",
    "LLaMA-Factory": "model_name_or_path dataset template cutoff_len num_train_epochs packing "
    "per_device_train_batch_size gradient_accumulation_steps learning_rate lr_scheduler_type "
    "warmup_ratio bf16 quantization_bit save_steps eval_steps logging_steps val_size optim "
    "neftune_noise_alpha weight_decay output_dir resume_from_checkpoint deepspeed pref_beta "
    "lora_rank lora_alpha lora_dropout lora_target train_on_prompt finetuning_type stage",
    "torchtune": "checkpointer.checkpoint_dir dataset.source tokenizer.max_seq_len epochs "
    "dataset.packed batch_size gradient_accumulation_steps optimizer.lr dtype loss.beta "
    "lr_scheduler.num_warmup_steps enable_activation_checkpointing optimizer.weight_decay "
    "output_dir resume_from_checkpoint model.lora_rank model.lora_alpha model.lora_dropout "
    "model.lora_attn_modules dataset.train_on_input log_every_n_steps",
}
"""Words that a section has at the least."""
RIVALS = {
    one: group
    for group in (
        "scheduler.warmup_steps scheduler.warmup_ratio",
        "data.packing data.too_long",
        "data.chat_template data.chat_template_path",
        "data.path data.hf_dataset_name data.hf_dataset_config data.hf_dataset_split",
    )
    for one in group.split()
}
"""Options that do not go together, by each of them."""
Line = tuple[str, list[str], list[str]]


def lines() -> list[Line]:
    """(tool, words typed there, code spans of what is here)."""
    found: list[Line] = []
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title = section.partition("\n")[0]
        if title in TOOLS:
            for row in re.findall(r"^\| (`.*) \| (.*) \|$", section, re.MULTILINE):
                theirs, here = (re.findall(r"`([^`]+)`", cell) for cell in row)
                found.append((title, theirs, here))
    return found


def overrides(here: list[str]) -> list[str]:
    """Words of these spans that are overrides, without those whose value a user has to choose."""
    words = [word for span in here if "forge." not in span for word in span.split()]
    return [word for word in words if re.fullmatch(r"[\w.]+=\S+", word) and word[-2:] != "=N"]


def behind(words: list[str]) -> list[str]:
    """The overrides that go before, less what these set, with these."""
    keys = {word.partition("=")[0] for word in words}
    if "data.hf_dataset_name" in keys:
        keys.add("data.path")
    elif any(key.startswith("data.hf_") for key in keys):
        words, keys = [*words, "data.hf_dataset_name=my/data"], keys | {"data.path"}
    elif "objective=kto" in words and "data=labelled" not in words:
        words, keys = [*words, "data=labelled"], keys | {"data"}
    if any(word.startswith("adapter.") for word in words):
        words = words if "adapter" in keys else ["adapter=lora", *words]
    return [word for word in BASE.split() if word.partition("=")[0] not in keys] + words


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that lines name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")  # no login is needed
    (tmp_path / "my").mkdir()
    write_folder(tmp_path / "my" / "model", max_position_embeddings=2048)
    content = {"model": {"vocab": {"a": 0, "</s>": 1}}, "added_tokens": []}
    (tmp_path / "my" / "model" / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "my" / "template.jinja").write_text(TEMPLATE)
    (tmp_path / "my.jsonl").write_text("{}\n")
    return tmp_path


def says(answer: str, span: str) -> bool:
    """Whether it is one of the texts to type, or stands in an advice."""
    if answer.startswith("did you mean "):
        meant = answer.removeprefix("did you mean ").removesuffix("?")
        return span in re.split(", | or ", meant)
    return re.search(rf"(^|[ ({{:]){re.escape(span)}($|[ ,;])", answer) is not None


def test_words_are_taken_or_answered_with_what_stands_beside_them(desk: Path) -> None:
    composition = compose(BASE.split())
    keys = Keys(composition.tree, composition.library)
    for tool, theirs, here in lines():
        for word in theirs:
            key, _, value = word.partition("=")
            if here == [word]:  # it is the same here, and the other test composes it
                assert keys.unknown(key, value) is None, (tool, word)
                continue
            unknown = keys.unknown(key, value)
            if unknown is None:  # a group without such a choice
                (problem,) = problems([*BASE.split(), word], as_point=True)
                unknown = problem.what, problem.fix
            for span in here:
                assert says(unknown[1], span), (tool, word, span, unknown[1])


def test_what_stands_there_composes_with_its_value(desk: Path) -> None:
    """Options go together where none is given twice; a line with a choice alone."""
    together: list[dict[str, str]] = []
    for words in {tuple(overrides(here)): None for _, _, here in lines()}:
        if any("." not in word.partition("=")[0] for word in words):
            check(list(words))
        elif words:
            given = {word.partition("=")[0]: word for word in words}
            rivals = {key for key in given for key in RIVALS.get(key, key).split()}
            batch = next((b for b in together if not b.keys() & rivals), None)
            if batch is None:
                together.append(batch := {})
            batch |= given
    for batch in together:
        check(list(batch.values()))


def check(words: list[str]) -> None:
    config = resolved(behind(words), gpus=4, as_point=True).config  # raises for what is wrong
    for word in words:
        key = word.partition("=")[0]
        if key in schemas.sections() or word.endswith("=null"):
            continue
        value: Any = config
        for part in key.split("."):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        wanted: Any = read_override(word).value()  # type: ignore[union-attr]
        value = list(value) if isinstance(value, tuple) else value
        assert value == wanted or value == str(Path(str(wanted)).absolute()), word


TOGETHER = {
    "datasets": "data.path=my.jsonl",
    "dataset.source": "data.path=my.jsonl",
    "dataset.data_files": "data.path=my.jsonl",
    "model.lora_attn_modules": "adapter.target_modules=[wq,wv,wo,feed_forward]",
    "model.apply_lora_to_mlp": "adapter.target_modules=[wq,wv,wo,feed_forward]",
    "lr_scheduler._component_": "scheduler=cosine",
    "optimizer._component_": "optimizer=adamw_finetune",
    "template": "data.chat_template=null",
    "do_train": "",
    "compile": "train.compile_model=false",
    "checkpointer._component_": "model=hf",
    "tokenizer._component_": "",
    "dataset._component_": "data=chat",
    "model._component_": "",
}
"""Keys of the files of fine_tuning.md that are one word here with another, or a whole class."""


def translations() -> list[Any]:
    """(keys and values of a file or command of another tool, forge's command)."""
    found = []
    text = (PAGE.parents[1] / "docs" / "fine_tuning.md").read_text(encoding="utf-8")
    part = text.partition("\n### Files of other tools\n")[2].partition("\n## ")[0]
    for section in part.split("\n#### ")[1:]:
        tool, _, rest = section.partition("\n")
        blocks = re.findall(r"(?:^    .*\n?)+", rest, re.MULTILINE)
        theirs, ours = (textwrap.dedent(block).replace("\\\n", " ") for block in blocks)
        if theirs.startswith("trl "):
            words = shlex.split(theirs)[2:]
            given = {key.lstrip("-"): value for key, value in zip(*[iter(words)] * 2, strict=True)}
        else:
            given = dict(flat(yaml.safe_load(theirs)))
        found.append(pytest.param(given, shlex.split(ours)[3:], id=tool))
    return found


def flat(node: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{key}.")
        elif isinstance(value, list):
            yield f"{above}{key}", f"[{','.join(map(str, value))}]"
        else:
            yield f"{above}{key}", str(value).lower() if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("theirs", "ours"), translations())
def test_a_file_of_theirs_is_the_command_beside_it(
    desk: Path, theirs: dict[str, str], ours: list[str]
) -> None:
    """Each key is answered with options that the command has, or leaves as they are."""
    composition = compose(ours)
    keys = Keys(composition.tree, composition.library)
    same = dataclasses.asdict(resolved(ours, gpus=1, as_point=True).config)
    typed: list[str] = []
    for key, value in theirs.items():
        answer = TOGETHER.get(key)
        if answer is None:
            unknown = keys.unknown(key, value)
            left = [] if unknown else problems([*ours, f"{key}={value}"], gpus=1, as_point=True)
            refused = [problem.fix for problem in left if not problem.warning]
            answer = unknown[1] if unknown else (*refused, f"{key}={value}")[0]
        meant = re.split(", | or ", answer.removeprefix("did you mean ").removesuffix("?"))[0]
        typed += [word for word in meant.split() if word != "train.global_batch_size=null"]
    assert dataclasses.asdict(resolved([*ours, *typed], gpus=1, as_point=True).config) == same


def test_translations_are_found() -> None:
    assert len(translations()) == 4


@pytest.mark.parametrize("tool", TOOLS)
def test_the_words_that_many_type_have_a_line(tool: str) -> None:
    typed = {w.partition("=")[0] for name, theirs, _ in lines() for w in theirs if name == tool}
    assert set(LEAST[tool].split()) <= typed


def test_a_line_that_is_wrong_is_seen(
    desk: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = tmp_path / "page.md"
    monkeypatch.setattr("test_their_words.PAGE", page)
    for line in ("`lora_r=8` | `adapter=lora adapter.rank=9`", "`nothing=8` | `train.seq_len=8`"):
        page.write_text(f"# Page\n\n## TRL\n\n| {line} |\n")
        with pytest.raises(AssertionError):
            test_words_are_taken_or_answered_with_what_stands_beside_them(desk)
    page.write_text("# Page\n\n## TRL\n\n| `lora_r=8` | `adapter=lora adapter.rnk=8` |\n")
    with pytest.raises(ConfigError, match="rnk"):
        test_what_stands_there_composes_with_its_value(desk)
