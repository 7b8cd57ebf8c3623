"""A run with modules for further tokens: its losses, drafts in generation, and the folder out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import forge
from forge import generate

Capture = pytest.CaptureFixture[str]
WORDS = ["--prompt", "def ", "--prompt", "import", "--tokens", "24", "--temperature", "0"]


def trained(place: Path) -> Path:
    words = "debug=fast model=tiny model.mtp_num_layers=2 train.max_steps=12 optimizer.lr=0.01"
    forge.train(forge.compose([*words.split(), f"run.dir={place}"]))
    return place


@pytest.mark.nightly
def test_drafts_change_no_text(tmp_path: Path, capsys: Capture) -> None:
    run = trained(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row for row in rows if "train/mtp_loss_1" in row]
    assert losses[-1]["train/mtp_loss_2"] < losses[0]["train/mtp_loss_2"]
    capsys.readouterr()
    texts = []
    for drafts in ([], ["--speculate"]):
        assert generate.main([str(run), *WORDS, *drafts]) == 0
        texts.append(capsys.readouterr())
    assert texts[0].out == texts[1].out
    said = re.search(r"; (\d+) of (\d+) drafts accepted", texts[1].err)
    assert said is not None
    assert 0 < int(said[1]) <= int(said[2])


def test_what_drafts_cannot_do_is_refused(tiny_run: Path, capsys: Capture) -> None:
    for words, message in (
        ([], "speculate: the model has no modules for further tokens (model.mtp_num_layers)"),
        (["--temperature", "1"], "speculate: it is for temperature=0"),
        (["--parallel", "tp2"], "--speculate: drafts are made on one device"),
    ):
        assert generate.main([str(tiny_run), *WORDS, "--speculate", *words]) == 2
        assert message in capsys.readouterr().err
