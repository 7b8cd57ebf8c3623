"""`forge.export --push`: what is asked of the hub, and what is said where it says no."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from forge import export

Capture = pytest.CaptureFixture[str]


class Hub:
    """Notes what it is asked. faults: by method, what it raises."""

    endpoint = "https://hub.test"

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, Exception] = {}

    def __call__(self) -> Hub:
        return self

    def whoami(self) -> dict[str, str]:
        self.note("whoami")
        return {"name": "me"}

    def create_repo(self, name: str, **options: Any) -> None:
        self.note("create_repo", name=name, **options)

    def upload_folder(self, **options: Any) -> None:
        files = {file.name for file in Path(options["folder_path"]).iterdir()}
        self.note("upload_folder", name=options["repo_id"], files=files)

    def note(self, method: str, **options: Any) -> None:
        self.asked.append((method, options))
        if method in self.faults:
            raise self.faults[method]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    monkeypatch.setattr("huggingface_hub.HfApi", made)
    monkeypatch.setattr("forge.families.download.reachable", lambda: True)
    return made


@pytest.fixture
def run(llama: Path, tmp_path: Path) -> str:
    place = tmp_path / "run"
    assert importlib.import_module("forge.import").main([str(llama), str(place)]) == 0
    return str(place)


def test_a_folder_is_pushed_when_it_is_whole(
    run: str, tmp_path: Path, hub: Hub, capsys: Capture
) -> None:
    """Into a private model, or a public one where that is said."""
    out = str(tmp_path / "out")
    words = [run, out, "--format", "hf", "--push", "me/tiny"]
    assert export.main(words) == 0
    assert capsys.readouterr().out.endswith("\nhttps://hub.test/me/tiny\n")
    whoami, made, sent = hub.asked
    assert whoami[0] == "whoami"
    assert made == ("create_repo", {"name": "me/tiny", "private": True, "exist_ok": True})
    assert sent[1]["name"] == "me/tiny"
    assert sent[1]["files"] >= {"config.json", "tokenizer.json", "README.md"}
    assert export.main([*words, "--overwrite", "--public"]) == 0
    assert hub.asked[-2][1]["private"] is False
    capsys.readouterr()
    hub.faults["upload_folder"] = RuntimeError("403 Forbidden.\nmore")
    assert export.main([*words, "--overwrite"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("--push me/tiny: 403 Forbidden; check that this login may write there")
    assert Path(out, "config.json").is_file()


def test_what_cannot_be_pushed_is_refused_before_anything_is_written(
    run: str, tmp_path: Path, hub: Hub, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    words = [run, str(out), "--format", "hf", "--push"]
    hub.faults["whoami"] = RuntimeError("401")
    assert export.main([*words, "me/tiny"]) == 2
    assert "the hub knows no login here; log in with `hf auth login`" in capsys.readouterr().err
    assert export.main([*words, "tiny"]) == 2
    assert "it is the id of a model on the hub, ORG/NAME" in capsys.readouterr().err
    assert export.main([run, f"{out}.safetensors", "--push", "me/tiny"]) == 2
    assert "it is of --format hf and peft" in capsys.readouterr().err
    monkeypatch.setattr("forge.families.download.reachable", lambda: False)
    assert export.main([*words, "me/tiny"]) == 2
    assert "the hub cannot be reached" in capsys.readouterr().err
    assert not out.exists()
    assert {method for method, _ in hub.asked} == {"whoami"}
