"""Hugging Face datasets that lie on this machine, written by `datasets` and pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
from data_helpers import build_section, make_prose

from forge.config.data.text import HuggingFace, Text
from forge.config.tokenizers.tokenizer import BPE, Bytes
from forge.data.preparing.cached import prepare_tokens
from forge.data.preparing.shard_folder import prepare_shards
from forge.data.preparing.soundness import find_damage
from forge.data.sources.hub import dataset

TEXTS = [make_prose(4, seed) for seed in range(40)]
ROWS = {"id": list(range(40)), "text": TEXTS}


def section(folder: Path, **options: Any) -> HuggingFace:
    return HuggingFace(**({"cache_dir": f"{folder}/cache", "val_fraction": 0.2} | options))


def read(folder: Path, **options: Any) -> list[str]:
    corpus = dataset(section(folder, **options))
    return ["".join(document) for document in corpus.documents()]


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        read(folder, **options)
    return str(caught.value).replace(str(folder), "DIR")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset in its usual layout, and each other form of the same rows."""
    (tmp_path / "usual" / "more").mkdir(parents=True)
    frame = pandas.DataFrame(ROWS)
    frame.to_parquet(tmp_path / "usual" / "train.parquet")
    frame[:7].to_parquet(tmp_path / "usual" / "test.parquet")
    frame[7:9].to_parquet(tmp_path / "usual" / "more" / "train.parquet")
    frame.to_json(tmp_path / "rows.jsonl", orient="records", lines=True)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    whole = datasets.Dataset.from_dict(ROWS)
    whole.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": whole, "test": whole.select(range(5))}).save_to_disk(
        str(tmp_path / "dict")
    )
    return tmp_path


def test_every_form_gives_the_same_documents(folder: Path) -> None:
    for name in ("rows.jsonl", "rows.csv", "saved", "dict", "usual/train.parquet"):
        assert read(folder, path=f"{folder}/{name}") == TEXTS, name
    assert read(folder, path=f"{folder}/dict", hf_dataset_split="test") == TEXTS[:5]
    usual = f"{folder}/usual"
    assert read(folder, path=usual, hf_data_files="train.parquet") == TEXTS
    assert read(folder, path=usual, hf_data_dir="more") == TEXTS[7:9]
    part = {"hf_data_files": "train.parquet", "hf_dataset_split": "train[10:20]"}
    assert read(folder, path=usual, **part) == TEXTS[10:20]
    assert read(folder, path=usual, hf_dataset_split="test") == TEXTS[:7]


def test_tokens_are_those_of_the_same_text_in_a_file(folder: Path) -> None:
    """And forge.prepare takes it as any other."""
    hub = section(folder, path=f"{folder}/saved")
    text = Text(path=f"{folder}/rows.jsonl", cache_dir=f"{folder}/cache", val_fraction=0.2)
    made = [prepare_tokens(each, BPE(vocab_size=300), build=build_section) for each in (hub, text)]
    one, other = (store.train.read(0, len(store.train)).tolist() for store in made)
    assert one == other
    again = prepare_tokens(hub, BPE(vocab_size=300), build=build_section)
    assert again.manifest == made[0].manifest
    out = folder / "out"
    manifest = prepare_shards(out, hub, Bytes(), build=build_section, processes=1)
    assert manifest["read"]["documents"] == 40
    assert find_damage(out) == []


def test_the_fingerprint_follows_the_texts(folder: Path) -> None:
    def of(**options: Any) -> str:
        return dataset(section(folder, **options)).fingerprint()

    assert of(path=f"{folder}/saved") == of(path=f"{folder}/rows.csv")
    assert of(path=f"{folder}/saved") != of(path=f"{folder}/dict", hf_dataset_split="test")


def test_refusals(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = f"{folder}/saved"
    assert refusal(folder, path=saved, text_field="body") == (
        "data.text_field = body: DIR/saved has no such column (its columns: id, text). "
        "Name one of them."
    )
    assert refusal(folder, path=saved, text_field="id") == (
        "data.path: DIR/saved row 1: field 'id' is int, not text. "
        "Choose another with data.text_field."
    )
    fix = "Check its name, data.hf_dataset_config and data.hf_dataset_split"
    assert refusal(folder, path=f"{folder}/dict", hf_dataset_split="dev") == (
        f"data.path = DIR/dict: its splits are train, test, and not dev. {fix}."
    )
    said = refusal(folder, path=f"{folder}/usual", hf_dataset_split="dev")
    assert said.startswith('data.path = DIR/usual: Unknown split "dev". Should be one of [')
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    said = refusal(folder, hf_dataset_name="nobody/nothing")
    assert said.startswith("data.hf_dataset_name = nobody/nothing: Couldn't ")
    assert said.endswith(
        f"{fix}; without a network give a copy on this machine, data.path=my/dataset."
    )
