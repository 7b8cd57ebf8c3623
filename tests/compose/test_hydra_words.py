"""What people who know Hydra type: flags, interpolations, a section of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import forge.train
from forge import check
from forge.compose.composition import compose, config
from forge.compose.hydra_help import TEXT
from forge.compose.many import Composer
from forge.compose.portable import portable
from forge.config.problems import ConfigError
from forge.rundir import directory
from forge.rundir.annotations import read_annotations

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def primary(tmp_path: Path) -> str:
    text = "defaults:\n  - config\n  - override model: small\n  - _self_\nseed: 7\n"
    (tmp_path / "mine.yaml").write_text(text)
    return str(tmp_path)


def shown(capsys: Capture, *words: str) -> dict:
    assert forge.train.main([*words]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_another_primary_config(primary: str, capsys: Capture) -> None:
    for flag in ("--config-name=mine", "-cn=mine", "hydra.job.config_name=mine"):
        found = shown(capsys, "--cfg", "job", "--config-dir", primary, flag, "train.max_steps=3")
        assert (found["seed"], found["model"]["dim"], found["train"]["max_steps"]) == (7, 512, 3)
    assert forge.train.main(["--cfg", "job", "-cd", primary, "-cn", "mne"]) == 2
    said = capsys.readouterr().err
    assert "there is no config named 'mne'.\n     -> did you mean --config-name mine?" in said


def test_a_run_of_another_primary_config_goes_on(primary: str) -> None:
    words = ["hydra.job.config_name=mine", "seed=8"]
    composition = compose(words, config_dirs=[primary])
    kept = portable(words, [primary], composition.typed())
    again = compose(kept).typed()
    assert again == composition.typed()


def test_what_cfg_shows(capsys: Capture) -> None:
    values = ["+hparams.width=96", "model.dim=${hparams.width}", "model=small"]
    assert shown(capsys, "--cfg", "job", *values)["model"]["dim"] == "${hparams.width}"
    assert shown(capsys, "--cfg", "job", "--resolve", *values)["model"]["dim"] == 96
    assert shown(capsys, "--cfg", "job", "--resolve", "-p", "model", *values)["dim"] == 96
    everything = shown(capsys, "--cfg", "all", *values)
    assert everything["hparams"] == {"width": 96}
    of_hydra = everything["hydra"]
    assert of_hydra == shown(capsys, "--cfg", "hydra", *values)["hydra"]
    assert of_hydra["runtime"]["choices"]["model"] == "small"
    assert of_hydra["overrides"] == {"task": values, "hydra": []}
    assert of_hydra["runtime"]["cwd"] == str(Path.cwd())
    assert shown(capsys, "--cfg", "all", "-p", "hydra.job", *values)["config_name"] == "config"


def test_interpolations_of_hydra() -> None:
    words = [
        "model=small",
        "run.name=${hydra:runtime.choices.model}_${now:%Y}",
        "sweep.name=${hydra:job.override_dirname}",
    ]
    found = compose(words).typed()
    assert found.run.name is not None
    assert found.run.name.startswith("small_20")
    assert found.sweep.name == ",".join(sorted(words))
    of_points = Composer()
    for model in ("tiny", "small"):
        typed = [f"model={model}", "run.name=${hydra:runtime.choices.model}"]
        assert of_points(typed)[1].run.name == model


def test_an_interpolation_that_hydra_has_and_forge_has_not() -> None:
    with pytest.raises(ConfigError) as refused:
        config(["run.name=${hydra:runtime.output_dir}"])
    assert "there is no hydra:runtime.output_dir here, but runtime.cwd" in str(refused.value)


def test_values_of_ones_own(tmp_path: Path, capsys: Capture) -> None:
    words = ["+hparams.rate=0.02", "optimizer.lr=${hparams.rate}", "tags=[paper,small]"]
    assert check.main(words) == 0
    assert "\nhparams\n  rate                           0.02\n" in capsys.readouterr().out
    resolution = compose([*words, f"run.dir={tmp_path}/run"]).typed().validate()
    path, made = directory.create(resolution, overrides=words)
    assert (made.optimizer.lr, made.hparams["rate"]) == (0.02, 0.02)
    assert read_annotations(path).tags == ("paper", "small")


def test_hydra_help_names_flags_that_there_are(capsys: Capture) -> None:
    assert forge.train.main(["--hydra-help"]) == 0
    assert capsys.readouterr().out == f"{TEXT}\n"
    assert forge.train.main(["--help"]) == 0
    flags = capsys.readouterr().out
    named = [word.rstrip(",") for line in TEXT.splitlines() for word in line.split()[:2]]
    for flag in (word for word in named if word.startswith("-")):
        assert f"{flag}," in flags or f" {flag} " in flags, flag


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["modle"], "there is no group 'modle'.\n     -> did you mean --help model?"),
        (["optimizer.lr"], "optimizer.lr is an option, and no group."),
        (["zzz"], "there is no group 'zzz'.\n     -> its groups: tokenizer, model, "),
        (["model", "seed=x"], "seed is an integer; 'x' is not."),
    ],
)
def test_help_of_what_is_no_group(words: list[str], said: str, capsys: Capture) -> None:
    assert forge.train.main([*words, "--help"]) == 2
    assert said in capsys.readouterr().err


def test_help_of_a_group_has_the_values_in_force(capsys: Capture) -> None:
    words = ["optimizer", "optimizer=adamw", "optimizer.eps=1e-6", "--help"]
    assert forge.train.main(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("optimizer   (now optimizer=adamw)\n")
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("    ")}
    assert lines["optimizer.eps"].split()[1] == "1e-06"
    assert lines["optimizer.eps"].endswith("(command line)")
    assert lines["optimizer.lr"].split()[1] == "0.003"
    assert "conf/optimizer/adamw.yaml:" in lines["optimizer.lr"]
    assert lines["optimizer.eps_root"].endswith("[at least 0]"), "a default has no file"
