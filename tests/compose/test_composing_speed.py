"""What makes composing fast changes nothing: neither the text of a config, nor Python's garbage
collector after it, nor the copies of a schema.
"""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from forge.compose.composition import compose
from forge.compose.hydra_adapter import to_yaml
from forge.rundir.roots import forge_table

AWKWARD = {
    "like others": [
        "yes",
        "null",
        "~",
        "1e-3",
        "1_000",
        "0x1f",
        "",
        " ",
        "-",
        "${a}",
        "2026-01-01",
    ],
    "signs": [
        "a: b",
        "# no comment",
        "'quoted'",
        '"twice"',
        "tab\there",
        "line\nbreak",
        "\\d+\u00a0",
    ],
    "words": ["größe", "漢字", "x" * 200, " ".join(["word"] * 60), "it's: " + "long " * 40],
    "numbers": [1, 1.0, 1e-05, float("inf"), float("nan"), True, None],
    "empty": [{}, [], {"deep": {"er": []}}],
    1: {2.5: {True: "keys"}},
}


@pytest.mark.parametrize(
    "content", [AWKWARD, {"emoji": "🙂"}, {}, []], ids=["awkward", "emoji", "no keys", "no items"]
)
def test_the_text_of_a_config_is_omegaconfs(content) -> None:
    config = OmegaConf.create(content)
    assert to_yaml(config) == OmegaConf.to_yaml(config)


def test_the_text_of_the_default_run_is_omegaconfs() -> None:
    tree = compose().tree
    assert to_yaml(tree) == OmegaConf.to_yaml(tree)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_garbage_collector_is_afterwards_as_before(
    enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        compose(["model=no_such_model"])
        assert gc.isenabled() == enabled
        monkeypatch.setattr("forge.compose.composition.set_values", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            compose()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def test_a_schema_is_not_shared_by_two_configs() -> None:
    first, second = compose(["model=small"]).tree, compose(["model=small"]).tree
    first.model.moe.num_experts = 8
    first.optimizer.groups.rest.betas[0] = 0.5
    assert second.model.moe.num_experts == 0
    assert second.optimizer.groups.rest.betas[0] == 0.9


SPELLINGS = (
    "[tool.forge]\nx = 1",
    '[ tool . "forge" ]\nx = 1',
    "[tool]\nforge = {x = 1}",
    '["tool"]\nforge.x = 1',
    "tool.forge.x = 1",
    "tool = {forge = {x = 1}}",
    "[tool.forge] # of forge\nx = 1",
)


@pytest.mark.parametrize("text", SPELLINGS)
def test_a_table_of_forge_is_found_in_every_spelling(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(
        f'[project]\nname = "forge-user"\n{text}'
        if text.startswith("[")
        else f'{text}\n[project]\nname = "forge-user"'
    )
    assert forge_table(tmp_path / "pyproject.toml") == {"x": 1}


@pytest.mark.parametrize(
    "text", ["", '[project]\nname = "forge"', "[tool.ruff]\nx = 1", "[tool.forge"]
)
def test_other_tools_files_have_no_table_of_forge(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert forge_table(tmp_path / "pyproject.toml") is None
