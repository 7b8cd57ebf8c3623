"""`model=hf model.path=ORG/NAME`: from the cache of Hugging Face, without a network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.folders import write_folder
from helpers.refusing import problems

from forge import cli
from forge.families import download

COMMIT, LATER = "0" * 40, "1" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two revisions of org/tiny in the layout of the cache, and no hub."""
    model = tmp_path / "hub" / "models--org--tiny"
    (model / "refs").mkdir(parents=True)
    for name, commit, theta in (("main", COMMIT, 777.0), ("later", LATER, 5.0)):
        (model / "refs" / name).write_text(commit)
        (model / "snapshots" / commit).mkdir(parents=True)
        write_folder(model / "snapshots" / commit, rope_theta=theta)
        vocab = {"model": {"vocab": {"a": 0, "<s>": 1, "</s>": 2}}, "added_tokens": []}
        (model / "snapshots" / commit / "tokenizer.json").write_text(json.dumps(vocab))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("forge.families.download.reachable", lambda: False)
    monkeypatch.chdir(tmp_path)
    download.fetch_model.cache_clear()
    return model


def words(*more: str) -> list[str]:
    typed = ["model=hf", "model.path=org/tiny", "train.seq_len=32", "parallel=single"]
    return [*typed, "run.device=cpu", *more]


def test_an_id_is_its_folder_in_the_cache(cache: Path) -> None:
    """Options, tokenizer and weights; of the revision that is named; a folder of the name wins."""
    config = cli.resolved(words())[1].config
    place = str(cache / "snapshots" / COMMIT)
    assert config.model.path == place  # type: ignore[attr-defined]
    assert config.checkpoint.init_from == place
    assert config.tokenizer.path == f"{place}/tokenizer.json"  # type: ignore[attr-defined]
    assert config.model.rope_theta == 777  # type: ignore[attr-defined]
    later = cli.resolved(words("model.revision=later"))[1].config
    assert later.model.rope_theta == 5  # type: ignore[attr-defined]
    assert later.checkpoint.init_from == str(cache / "snapshots" / LATER)
    shutil.copytree(cache / "snapshots" / LATER, "org/tiny")
    assert cli.resolved(words())[1].config.checkpoint.init_from == str(Path("org/tiny").absolute())


def test_an_id_that_is_not_in_the_cache_is_refused_by_its_name(cache: Path) -> None:
    (refused,) = problems(words("model.path=org/other"))
    assert refused.what == (
        "there is no folder org/other, and as the id of a model: it is not in the cache of "
        "Hugging Face, and the hub cannot be reached to fetch it."
    )
    assert "`hf download ID`" in refused.fix
