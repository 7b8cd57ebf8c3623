"""Adapters beside a base that they were not trained beside: one message, exit code 2."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from llama_folder import write_llama
from peft_runs import SIZES, TEXT
from test_peft_folders import saved_by_peft

from forge import train


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, PEFT's adapters of it, and other bases: narrower, shallower, of other weights."""
    place = tmp_path_factory.mktemp("bases")
    base = write_llama(place / "base", **SIZES)
    saved_by_peft(base, place / "theirs")
    write_llama(place / "narrow")
    write_llama(place / "shallow", **SIZES, num_hidden_layers=2)
    write_llama(place / "other", **SIZES, initializer_range=0.03)
    shutil.copytree(place / "theirs", place / "elsewhere")
    file = place / "elsewhere" / "adapter_config.json"
    content = json.loads(file.read_text()) | {"base_model_name_or_path": "someone/base"}
    file.write_text(json.dumps(content))
    return place


def words(place: Path, base: str, run: str, *more: str) -> list[str]:
    (place / "text.txt").write_text(TEXT)
    typed = [f"model.path={place / base}", f"run.dir={place / run}", "train.max_steps=1"]
    typed += ["model=hf", "data=text", f"data.path={place / 'text.txt'}", "run.device=cpu"]
    typed += ["train.seq_len=16", "train.batch_size=2", "train.global_batch_size=2"]
    typed += ["eval.enabled=false", "data.val_fraction=0", "optimizer=adamw", "optimizer.lr=1e-4"]
    return [*typed, "adapter=lora", "adapter.rank=4", "adapter.alpha=6", *more]


CASES = {
    "narrow": ("theirs", "wq.lora_a is (4, 64) there and (4, 32) here"),
    "shallow": (
        "theirs",
        "layers.2.self_attn.q_proj.lora_A.weight, which is beside no matrix",
    ),
    "other": ("theirs", "and this run begins with other weights"),
}


@pytest.mark.ci("shallow")
@pytest.mark.parametrize("base", CASES)
def test_adapters_of_another_base_are_refused(base: str, place: Path, capfd) -> None:
    """Of other shapes, of more layers, or with other weights of the same shapes."""
    folder, said = CASES[base]
    more = ["adapter.target_modules=[wq]", f"checkpoint.init_from={place / folder}"]
    run = f"run-{base}"
    if base != "other":  # whose name alone says nothing
        more[1] = f"checkpoint.init_from={place / 'elsewhere'}"
    assert train.main(words(place, base, run, *more)) == 2
    assert said in (shown := capfd.readouterr().err), shown
    assert "Traceback" not in shown
    assert not list((place / run).glob("checkpoints/step_*"))


@pytest.mark.nightly
def test_other_weights_are_taken_where_it_is_said(place: Path) -> None:
    more = ["adapter.target_modules=[wq]", f"checkpoint.init_from={place / 'theirs'}"]
    allowed = "run.allow_change=[adapter.init_from]"
    assert train.main(words(place, "other", "run-allowed", *more, allowed)) == 0


@pytest.mark.nightly
def test_a_run_with_adapters_is_not_the_start_of_another_model(place: Path, capfd) -> None:
    assert train.main(words(place, "base", "lora")) == 0
    more = [f"checkpoint.init_from={place / 'lora'}"]
    assert train.main(words(place, "narrow", "upon", *more)) == 2
    assert "does not fit this model" in (shown := capfd.readouterr().err), shown
    assert "Traceback" not in shown
