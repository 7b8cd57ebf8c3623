"""Recipes of large models: presets name them, they are what was published, and typed values win."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from helpers.refusing import resolved

from forge.config.data.budget import ALL, parameters

CONF = Path("conf")
BILLION = 10**9
LAID = ["tokenizer=bytes", "plan.device=h200", "plan.world_size=64", "parallel=fsdp"]
MODELS = sorted(
    file.stem for file in (CONF / "model").glob("*.yaml") if "\nrecipe:" in file.read_text()
)
PUBLISHED = {
    # model: rate, tokens a step, context, warm-up, tokens of the run, floor as a share of the peak
    "llama7b": (3e-4, 2**22, 4096, 2000, 2e12, 0.1),
    "llama70b": (1.5e-4, 2**22, 4096, 2000, 2e12, 0.1),
    "llama3_8b": (3e-4, 2**22, 8192, 2000, 15e12, 0.1),
    "llama3_405b": (8e-5, 2**24, 8192, 8000, 15.6e12, 0.01),
    "llama3_70b": (1.5e-4, 2**22, 8192, 2000, 15e12, 0.1),
    "gpt3_175b": (0.6e-4, 3_276_800, 2048, 114, 300e9, 0.1),
    "olmo2_7b": (3e-4, 1024 * 4096, 4096, 2000, 5e12, 0.1),
    "olmo2_13b": (9e-4, 2048 * 4096, 4096, 2000, 5e12, 0.1),
    "olmo2_32b": (6e-4, 2048 * 4096, 4096, 2000, 6.5e12, 0.1),
    "olmo3_7b": (3e-4, 512 * 8192, 8192, 2000, 5e12, 0.1),
    "deepseek2_16b": (4.2e-4, 4608 * 4096, 4096, 2000, 5.7e12, 0.1),
    "deepseek2_236b": (2.4e-4, 9216 * 4096, 4096, 2000, 8.1e12, 0.1),
    "deepseek3_671b": (2.2e-4, 15360 * 4096, 4096, 2000, 14.3e12, 0.1),
    "kimi_k2": (2e-4, 67_108_864, 4096, 500, 15.5e12, 0.1),
    "smollm2_135m": (3e-3, 2**20, 2048, 2000, 2_000_000 * 2**20, 0.0),
    "smollm2_360m": (3e-3, 128 * 6 * 2048, 2048, 2000, 2_600_000 * 128 * 6 * 2048, 0.0),
    "smollm2_1_7b": (5e-4, 2**21, 2048, 2000, 11e12, 0.0),
}
"""By model the numbers of its paper."""


def recipe_of(model: str) -> str:
    match = re.search(r"^recipe: (\w+)", (CONF / "model" / f"{model}.yaml").read_text(), re.M)
    assert match is not None, model
    return match[1]


def test_every_preset_from_a_billion_parameters_on_names_a_recipe() -> None:
    for file in sorted((CONF / "model").glob("*.yaml")):
        if file.stem in MODELS or file.stem == "hf":
            continue
        model = resolved([f"model={file.stem}", "tokenizer=bytes", "run.device=cpu"]).config.model
        assert parameters(model, ALL) < BILLION, f"{file}: recipe: NAME"
    assert {recipe_of(model) for model in MODELS} <= {f.stem for f in (CONF / "recipe").iterdir()}


@pytest.mark.parametrize("model", PUBLISHED)
def test_a_recipe_is_what_was_published(model: str) -> None:
    words = [f"model={model}", f"recipe={recipe_of(model)}", *LAID]
    resolution = resolved([*words, "run.trust=[]"])
    config = resolution.config
    rate, step, context, warmup, tokens, floor = PUBLISHED[model]
    train, schedule = config.train, config.scheduler
    assert config.optimizer.peak(config.model.known_dim) == pytest.approx(rate, rel=1e-3)
    assert (train.global_batch_tokens, train.seq_len) == (step, context)
    assert schedule.warmup_steps == warmup  # type: ignore[attr-defined]
    assert schedule.min_lr_ratio == floor  # type: ignore[attr-defined]
    grown = 60 + -(-(2_870_000_000_000 - 60 * 2**22) // 2**23) if model == "llama3_405b" else 0
    before = 60 * 2**22 + (grown - 60) * 2**23 if grown else 0
    assert train.max_steps == grown + (int(tokens) - before) // step
    assert config.optimizer.weight_decay == (0.01 if model.startswith("smollm2") else 0.1)
    assert "train.recipe" not in {warning.rule for warning in resolution.warnings}


@pytest.mark.parametrize("model", sorted({*MODELS} - {*PUBLISHED})[::7])
def test_other_presets_take_theirs(model: str) -> None:
    words = [f"model={model}", f"recipe={recipe_of(model)}", *LAID]
    resolution = resolved(words)
    assert "train.recipe" not in {warning.rule for warning in resolution.warnings}
    assert resolution.config.train.global_batch_tokens >= 2**20  # type: ignore[operator]


def test_rates_of_gpt3_follow_its_table() -> None:
    """Table 2.1 of arXiv:2005.14165, by width."""
    table = {2048: 2.0e-4, 2560: 1.6e-4, 4096: 1.2e-4, 5140: 1.0e-4, 12288: 0.6e-4}
    optimizer = resolved(["model=gpt3_6b", "recipe=gpt3", *LAID]).config.optimizer
    for width, rate in table.items():
        assert optimizer.peak(width) == pytest.approx(rate, rel=0.08)


def test_a_typed_value_or_group_is_taken_in_place_of_the_recipes() -> None:
    words = ["model=llama3_70b", "recipe=llama3_70b", *LAID]
    config = resolved([*words, "optimizer.lr=1e-4", "train.seq_len=4096"]).config
    assert (config.optimizer.lr, config.train.seq_len) == (1e-4, 4096)
    assert config.train.global_batch_size == 1024
    others = ["scheduler=constant", "optimizer=lion"]
    config = resolved(["model=llama3_8b", "recipe=llm", *others, *LAID]).config
    assert type(config.scheduler).__name__ == "Constant"
    assert type(config.optimizer).__name__ == "Lion"
    assert config.train.global_batch_tokens == 2**21
    short = resolved([*words, "train.tokens_per_parameter=20"]).config.train
    assert short.max_steps == 20 * 70_553_706_496 // 2**22
    by_experiment = resolved(["experiment=llama3_8b_one_h100", "recipe=llama3_8b", *LAID]).config
    assert by_experiment.optimizer.schema_name == "adamw_low_bit", "an experiment stands above"
    assert by_experiment.train.max_steps == 15 * 10**12 // 2**22


@pytest.mark.parametrize(
    "words",
    [
        ["recipe=llama3_8b"],
        ["train.max_tokens=9000000000"],
        ["checkpoint.init_from={tmp}"],
        ["adapter=lora"],
        ["model=small"],
    ],
)
def test_no_warning_where_a_run_is_no_toy(words: list[str], tmp_path: Path) -> None:
    typed = ["model=llama3_8b", *LAID]
    assert "train.recipe" in warned(typed)
    words = [word.replace("{tmp}", str(tmp_path)) for word in words]
    if words[0].startswith("checkpoint"):
        (tmp_path / "model.safetensors").write_bytes(b"")
    assert "train.recipe" not in warned([*typed, *words])


def warned(words: list[str]) -> set[str]:
    from helpers.refusing import problems

    return {problem.rule for problem in problems(words)}
