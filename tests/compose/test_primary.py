"""A primary config of one's own, and an experiment without its package: what is missing is named,
with the file, and nothing ends in a traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from forge.compose.composition import compose
from forge.compose.hydra_adapter import CONF
from forge.config.problems import ConfigError, Problem

LACKS = "it is a whole config, and chooses no "
FROM_OURS = "let its defaults begin with '- config'"
BEGIN = "defaults:\n  - config\n"
PRIMARIES = {
    "": (LACKS, FROM_OURS),
    "abc": (LACKS, FROM_OURS),
    "db:\n  host: a\n": (LACKS, FROM_OURS),
    "train:\n  max_steps: 3\n": (LACKS, FROM_OURS),
    "defaults: [model: tiny, _self_]": (
        f"{LACKS}tokenizer, data, rollout and 20 more",
        FROM_OURS,
    ),
    "defaults: [schema@_global_: config, _self_]": (f"{LACKS}tokenizer, model", FROM_OURS),
    f"# @package a\n{BEGIN}": (LACKS, FROM_OURS),
    "- a": ("it is a list, and has no keys", "correct the file"),
    "a: [": ("the file is not YAML", "correct the file"),
    "defaults: [mine]": ("its defaults lists go round in a circle", "correct the file"),
    "defaults: [nowhere]": ("there is no file nowhere.yaml", "leave it out"),
    "defaults: 3": ("defaults must be a list", "correct the file"),
    f"{BEGIN}  - model: small\n": ("model is chosen before", "write '- override /model: small'"),
    f"{BEGIN}  - override modell: tiny\n": ("no modell to override", "- override /model: ..."),
    f"{BEGIN}  - override model: null\n": ("this leaves no model", "choose one: model=..."),
    f"{BEGIN}run: 3\n": ("run is a section of options; 3 is not", "like run.dir"),
}
Write = Callable[[str, str], str]


def refused(overrides: Sequence[str], folder: str) -> Problem:
    try:
        problems = compose(overrides, config_dirs=[folder]).problems
    except ConfigError as error:
        problems = error.problems
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize("text", PRIMARIES)
def test_a_primary_config_of_ones_own(write: Write, text: str) -> None:
    is_refused_with_choices = text in ("", "a: [", "defaults: [mine]")
    for typed in ([], ["model=small"])[: 1 + is_refused_with_choices]:
        problem = refused(["hydra.job.config_name=mine", *typed], write("mine.yaml", text))
        what, fix = PRIMARIES[text]
        assert (what in problem.what, fix in problem.fix) == (True, True), problem.render()
        assert problem.key == "--config-name mine"
        assert "mine.yaml" in problem.where


def test_what_the_advice_says_composes(write: Write) -> None:
    folder = write("mine.yaml", f"{BEGIN}  - override /model: small\n  - _self_\nseed: 3\n")
    composition = compose(["hydra.job.config_name=mine"], config_dirs=[folder])
    assert not composition.problems
    assert composition.choices["model"] == "small"
    assert composition.typed().seed == 3


def test_a_config_with_the_name_of_forges_is_not_passed_over(write: Write, tmp_path: Path) -> None:
    folder = write("config.yaml", "seed: 3")
    for typed in ([], ["hydra.job.config_name=config"]):
        problem = refused(typed, folder)
        assert problem.what.endswith("config.yaml is not read: forge's own has that name.")
        assert "--config-name mine" in problem.fix
    assert not compose(config_dirs=[str(CONF)]).problems


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("train:\n  max_steps: 3\n", "start the file with # @package _global_"),
        ("max_steps: 3\n", "start the file with # @package _global_"),
        ("defaults: [override /model: small]\n", "start the file with # @package _global_"),
        ("# @package _global_\ndefaults: [override model: small]", "write '- override /model: "),
    ],
)
def test_an_experiment_without_its_package(write: Write, text: str, fix: str) -> None:
    problem = refused(["experiment=mine"], write("experiment/mine.yaml", text))
    assert problem.fix.startswith(fix), problem.render()
    assert problem.key == "experiment=mine"
    assert "mine.yaml" in problem.where
