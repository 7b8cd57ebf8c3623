"""Text that a class or function of the user's reads, as a source of a mixture and as what is
evaluated.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from example_helpers import Verb

from forge.build import build
from forge.compose import composition
from forge.data.preparing.cached import Prepared, prepare_tokens, with_sets
from forge.training.data import data_of

TARGET = "_target_:forge_example.paragraphs.paragraphs"
TRUST = "run.trust=[forge_example.,builtins.]"
TEXTS = [f"the sea and the ship number {n}\nof {n * n % 97} men" for n in range(200)]

pytestmark = pytest.mark.usefixtures("example")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same documents as paragraphs of two files, and as rows of one."""
    texts = tmp_path / "texts"
    texts.mkdir()
    for name, part in (("a", TEXTS[:90]), ("b", TEXTS[90:])):
        (texts / f"{name}.txt").write_text("\n\n".join([*part, "-"]))
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
    (tmp_path / "rows.jsonl").write_text(rows)
    return tmp_path


def prepared(folder: Path, *typed: str) -> Prepared:
    more = [TRUST, f"data.cache_dir={folder}/cache", "tokenizer.vocab_size=300", *typed]
    config = composition.config(more)
    making: Any = {"build": partial(build, trust=config.run.trust)}
    found = prepare_tokens(config.data, config.tokenizer, **making)
    sets = {name: data_of(config, name) for name in config.eval.sets}
    return with_sets(found, sets, progress=lambda *_: None, **making)


def test_it_is_read_as_the_same_documents_in_a_file(folder: Path) -> None:
    own = f"{{{TARGET},folder:{folder}/texts,shortest:2,weight:3}}"
    code = f"+data.sources.other={{path:{folder}/rows.jsonl}}"
    typed = ["data=mix", "data.val_fraction=0.2", code]
    mine = prepared(folder, *typed, f"+data.sources.mine={own}")
    theirs = prepared(folder, *typed, f"+data.sources.mine={{path:{folder}/rows.jsonl,weight:3}}")
    assert mine.tokenizer.fingerprint == theirs.tokenizer.fingerprint
    for split in ("train", "sets"):
        ours, same = (
            each.sets["mine"] if split == "sets" else each.train.stores["mine"]  # type: ignore[union-attr]
            for each in (mine, theirs)
        )
        assert ours.read(0, len(ours)).tolist() == same.read(0, len(same)).tolist()
    assert mine.train.phases[0].weights == (0.25, 0.75)  # type: ignore[union-attr]


def test_a_set_and_a_validation_text_may_be_ones_own(folder: Path) -> None:
    own = f"{{{TARGET},folder:{folder}/texts,shortest:2}}"
    text = ["data=text", f"data.path={folder}/rows.jsonl"]
    found = prepared(folder, *text, f"data.validation={own}", f"+eval.sets.own={own}")
    whole = found.train.read(0, len(found.train))  # type: ignore[union-attr, arg-type]
    for each in (found.val, found.sets["own"]):
        assert each.read(0, len(each)).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            "{_target_:builtins.dict}",
            r"data\.sources\.mine: builtins\.dict gives a value of type dict",
        ),
        (f"{{{TARGET},folders:x}}", r"mine\.folders\n +paragraphs does not take folders"),
        ("{_target_:forge_example.paragraphs.gone}", "cannot be imported"),
    ],
)
def test_what_is_wrong_names_it(folder: Path, entry: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        prepared(folder, "data=mix", f"+data.sources.mine={entry}")


@pytest.mark.nightly
def test_a_run_trains_on_it_and_goes_on(verb: Verb, desk: Path) -> None:
    (desk / "texts").mkdir()
    (desk / "texts" / "a.txt").write_text("\n\n".join(TEXTS))
    typed = [
        "data=mix",
        f"+data.sources.mine={{{TARGET},folder:{desk}/texts,weight:2}}",
        "+data.sources.other={path:text.txt}",
        *["tokenizer.vocab_size=300", "model.vocab_size=300", "model.dim=32", "model.n_layers=1"],
        *["train.seq_len=16", "train.batch_size=4", "train.max_steps=2", "data.num_workers=0"],
        *["run.device=cpu", "run.dir=run", "scheduler.warmup_steps=1", "eval.sample_tokens=0"],
    ]
    refused = verb("train", *typed, code=2).stderr
    assert "data.sources.mine._target_=forge_example.paragraphs.paragraphs" in refused
    assert "if you trust it: run.trust=[forge_example.]" in refused
    verb("train", *typed, "run.trust=[forge_example.]")
    verb("resume", "run", "run.trust=[forge_example.]", "train.max_steps=4")
    rows = (desk / "run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])
    assert last["step"] == 4
    assert last["eval/mine/loss"] > 0
