"""A config in a run directory is read back equal, with no class that is not allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.refusing import resolved

from forge.config.root import Config
from forge.rundir import saved_config

CHOICES = [
    ["model=gpt2", "scheduler=wsd", "precision=fp16"],
    ["model=moe_tiny", "parallel=ep2", "optimizer=adamw_large", "launch=slurm"],
    ["model=llama7b", "parallel.tp=8", "scheduler=rex", "sweeper=optuna", "run.dir=x/y"],
    ["data=text", "data.path=.", "tokenizer=file", "tokenizer.path=t.json", "scheduler=none"],
    [
        "run.name='null'",
        'eval.sample_prompts=["a: b\\n", "ü", "true", "1e3"]',
        "optimizer.lr=1e-30",
        "seed=1000000000000000000",
    ],
]


def options(config: Config) -> dict[str, tuple[type, Any]]:
    return {name: (type(v), v) for name, v in vars(config).items() if name[0] != "_"}


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: choice[0])
def test_a_config_is_read_back_equal(
    choice: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.json").write_text('{"model": {"vocab": {"a": 0, "</s>": 1}}}')
    config = resolved(choice).config
    saved_config.save_config(config, tmp_path / "config.yaml")
    again = saved_config.load_config(tmp_path / "config.yaml", trust=())
    assert options(again) == options(config)
    assert again.frozen
    assert isinstance(again.eval.sample_prompts, tuple)


def test_the_file_is_plain_yaml_that_names_its_schemas(tmp_path: Path) -> None:
    saved_config.save_config(resolved(["scheduler=wsd"]).config, tmp_path / "config.yaml")
    plain = yaml.safe_load((tmp_path / "config.yaml").read_text())
    assert plain["scheduler"]["_type_"] == "wsd"
    assert plain["model"]["_type_"] == "decoder"
    assert "_target_" not in plain["model"]
    assert "_type_" not in plain["train"]
    assert plain["optimizer"]["groups"]["rest"]["betas"] == [0.9, 0.99]


def test_an_option_that_is_newer_than_the_file_has_its_default(tmp_path: Path) -> None:
    config, file = resolved(["eval.patience=3", "optimizer=adamw"]).config, tmp_path / "config.yaml"
    saved_config.save_config(config, file)
    plain = yaml.safe_load(file.read_text())
    del plain["eval"]["patience"], plain["optimizer"]["fused"]
    file.write_text(yaml.safe_dump(plain))
    again = saved_config.load_config(file, trust=())
    assert (again.eval.patience, again.optimizer.fused) == (0, True)  # type: ignore[attr-defined]
    assert options(again.train) == options(config.train)  # type: ignore[arg-type]


NO_TRUST = "is not under a trusted prefix; if you trust it: run.trust=["
NO_MODEL = "is no forge.config.model.layer.Model"
REFUSED = {
    "os.PathLike": f"its schema os.PathLike {NO_TRUST}os.]",
    "forgery.config.model.Decoder": f"its schema forgery.config.model.Decoder {NO_TRUST}forgery.]",
    "adamw": f"the schema adamw {NO_MODEL}",
    "forge.config.field.Section": f"the schema forge.config.field.Section {NO_MODEL}",
    "torch.nn.Linear": f"the schema torch.nn.Linear {NO_MODEL}",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_class_that_is_not_allowed_is_refused(name: str) -> None:
    plain = saved_config.to_plain(resolved().config)
    plain["model"]["_type_"] = name
    with pytest.raises(ValueError) as refused:
        saved_config.from_plain(Config, plain)
    assert str(refused.value).startswith(REFUSED[name])
