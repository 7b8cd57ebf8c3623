"""Every rule fires on a config that breaks it, and not on one that keeps it; its advice helps."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from helpers.advice import alternatives
from helpers.folders import write_folder
from helpers.refusing import SMALL, problems, resolved

from forge.config.problems import Problem
from forge.config.replicas.fault_tolerance import FaultTolerance
from forge.resolve.rules.all import RULES
from forge.rundir import checkpoints, saved_config

NOTHING_TO_TYPE = {
    "model.branches": "a choice to leave out",
    "eval.tasks": "a path",
    "rewards": "a path",
    "environment": "an entry of a group",
    "data.path": "a path",
    "data.hf_dataset_name": "a name or a path",
    "data.sources": "a path",
    "data.validation": "a path",
    "data.file_pattern": "a path, or a pattern",
    "objective.examples": "a path",
    "rollout.rewards": "an entry of a group",
    "eval.sets": "a path, or another name",
    "tokenizer.path": "a path",
    "tokenizer.name": "a name",
    "tokenizer.file_ends": "another file",
    "tokenizer.model": "a path",
    "tokenizer.ranks": "a path",
    "checkpoint.init_from": "a path",
    "checkpoint.base": "the model it was trained with",
    "checkpoint.random_weights": "a run, or a folder",
    "checkpoint.branch_of": "another run",
    "checkpoint.folder": "a folder of another model",
    "model.path": "a path",
    "checkpoint.resume_from": "a path",
    "entries": "a class",
    "target": "a class",
    "own.not_known": "a schema",
    "sweep.ablation": "a name; or a sweep, which is no run",
    "parallel.memory": "a smaller model, or more GPUs",
    "run.host_memory": "a smaller model, whose size SMALL says already, or a machine with GPUs",
}
"""Rules whose advice is, in some cases, nothing that could be typed as it stands."""
ON_GPUS = ("run.gpus", "model.gdn_chunks", "parallel.memory", "parallel.world_size")
"""Rules that break on a machine with GPUs; for others these are there where the rule is kept."""


@dataclass(kw_only=True)
class Case:
    """Overrides that break a rule and that keep it, where, and what is said, if that is given."""

    rule: str
    breaks: str
    keeps: str = ""
    says: str = ""
    gpus: int = 0
    memory: int | None = None
    world_size: int | None = None
    torch: tuple[int, int] = (2, 13)
    apple: int = 0
    place: Path = field(default_factory=Path)

    def at(self, *, kept: bool) -> dict[str, Any]:
        """The machine, as `problems` takes it."""
        gpus = self.gpus if kept or self.rule in ON_GPUS else 0
        torch = (2, 13) if kept else self.torch
        where = {"memory": self.memory, "world_size": self.world_size, "torch": torch}
        where["apple"] = bool(self.apple) and (kept or self.rule != "run.device")
        return {"gpus": gpus, "as_point": True, **where}

    def typed(self, text: str) -> list[str]:
        words = shlex.split(text.replace("{tmp}", str(self.place)))
        untrained = any(
            word.startswith(("tokenizer=", "data=synthetic", "data=parquet"))
            or "{data:synthetic}" in word
            or "hf_streaming:true" in word
            for word in words
        )
        return [*(s for s in SMALL if not (untrained and s.startswith("tokenizer."))), *words]


def read_cases() -> Iterator[Case]:
    """The cases of rules.txt."""
    words: dict[str, str] = {}
    rule = ""
    case: Case | None = None
    for line in Path(__file__).with_name("rules.txt").read_text().splitlines():
        sign, _, text = line.partition(" ")
        if sign in ("-", "+"):
            while (
                full := re.sub(r"\b[A-Z]+\d?\b(?=\s|$)", lambda m: words.get(m[0], m[0]), text)
            ) != text:
                text = full
        if sign == "-":
            if case:
                yield case
            case = Case(rule=rule, breaks=text)
        elif text.startswith("= "):
            words[sign] = text[2:]
        elif sign == "+":
            case.keeps = text
        elif sign == "!":
            case.says = text
        elif sign == "@":
            for name, _, value in (word.partition("=") for word in text.split()):
                setattr(
                    case, name, tuple(map(int, value.split("."))) if name == "torch" else int(value)
                )
        elif line and sign != "#":
            rule = line
    assert case
    yield case


CASES = list(read_cases())


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("forge.config.data.hub.reachable", lambda: False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("place")
    (path / "my.txt").write_text("some text")
    (path / "long.jsonl").write_text(json.dumps({"prompt": "a" * 40, "answer": "bc"}))
    (path / "empty").mkdir()
    (path / "pickled").mkdir()
    (path / "pickled" / "tokenizer.pkl").touch()
    (path / "conf" / "optimizer").mkdir(parents=True)
    (path / "conf" / "optimizer" / "own.yaml").write_text("_target_: torch.optim.Rprop")
    added = [{"id": 10, "content": "<pad>"}, {"id": 11, "content": "<end>"}]
    for name, vocab in {
        "tokenizer.json": {"a": 0, "</s>": 9},
        "no_end.json": [["a", -1.0], ["b", -2.0]],
    }.items():
        content = {"model": {"vocab": vocab}, "added_tokens": added}
        (path / name).write_text(json.dumps(content))
    content: dict = {"model": {"vocab": {"<s>": 0, "</s>": 1, "<b>": 2}}}
    begun = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}]}
    content["post_processor"] = {"type": "Sequence", "processors": [begun]}
    (path / "begins.json").write_text(json.dumps(content))
    ends = {"type": "TemplateProcessing", "single": [{"Sequence": {}}, begun["single"][0]]}
    (path / "ends.json").write_text(json.dumps({**content, "post_processor": ends}))
    (path / "my.model").write_text("some text")
    write_folder(path / "hf")
    write_folder(path / "extra", unsloth_fixed=True)
    write_folder(path / "awq", quantization_config={"quant_method": "awq", "bits": 4})
    write_folder(path / "worded")
    (path / "worded" / "tokenizer.json").write_text((path / "tokenizer.json").read_text())
    ranks = (f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    (path / "bytes.tiktoken").write_text("".join(ranks))
    for name, base in {"peft": str(path / "run"), "alone": "hub/model"}.items():
        (path / name).mkdir()
        (path / name / "adapter_model.safetensors").touch()
        said = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "base_model_name_or_path": base}
        (path / name / "adapter_config.json").write_text(json.dumps(said))
    for step in (2, 10):
        (path / "run" / "checkpoints" / f"step_{step}").mkdir(parents=True)
    saved_config.save_config(resolved(SMALL, as_point=True).config, path / "run" / "config.yaml")
    trained = path / "base" / "checkpoints" / "step_5"
    trained.mkdir(parents=True)
    (trained / "meta.json").write_text(json.dumps({"format": checkpoints.FORMAT}))
    for folder in (trained, path / "base"):
        saved_config.save_config(resolved(SMALL, as_point=True).config, folder / "config.yaml")
        (folder / "tokenizer").mkdir()
        vocab = {"model": {"vocab": {"a": 0}}, "added_tokens": [{"id": 299, "content": "</s>"}]}
        (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(vocab))
    return path


@pytest.fixture(params=CASES, ids=lambda case: f"{case.rule}: {case.breaks}")
def case(request: pytest.FixtureRequest, place: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    request.param.place = place
    has_torchft = request.param.rule != "fault_tolerance.package"
    monkeypatch.setattr(FaultTolerance, "has_torchft", staticmethod(lambda: has_torchft))
    return request.param


def kinds(found: list[Problem]) -> set[tuple[str, str]]:
    return {(problem.rule, problem.option) for problem in found}


def test_a_rule_fires_and_its_advice_helps(case: Case):
    """Each alternative that can be typed helps by itself, and brings no other error."""
    typed = case.typed(case.breaks)
    before = problems(typed, **case.at(kept=False))
    (broken,) = [problem for problem in before if problem.rule == case.rule]
    if case.says:
        assert broken.what == case.says.replace("{tmp}", str(case.place))
    assert broken.warning == next(rule.warning for rule in RULES if rule.id == case.rule)
    assert broken.where, "a problem says where its value comes from"
    attempts = alternatives(broken.fix, typed, broken.option)
    assert attempts or case.rule in NOTHING_TO_TYPE, broken.fix
    for attempt in attempts if case.rule != "run.host_memory" else ():
        found = problems(attempt, **case.at(kept=False))
        after = [p for p in found if p.rule == case.rule or not p.warning]
        assert kinds(after) <= kinds(before) - kinds([broken]), attempt


@pytest.mark.parametrize(
    "case",
    [
        case if n % 4 == 0 else pytest.param(case, marks=pytest.mark.nightly)
        for n, case in enumerate(CASES)
    ],
    indirect=True,
    ids=lambda case: f"{case.rule}: {case.breaks}",
)
def test_a_rule_is_silent_where_it_is_kept(case: Case):
    found = problems(case.typed(case.keeps), **case.at(kept=True))
    assert [p for p in found if p.rule == case.rule or not p.warning] == []


def test_a_text_that_may_not_be_read(place: Path, monkeypatch: pytest.MonkeyPatch):
    """Not by a file, since whoever runs the tests may read all."""
    monkeypatch.setattr("forge.resolve.rules.run.os.access", lambda path, mode: mode != os.R_OK)
    found = problems([*SMALL, "data=text", f"data.path={place / 'my.txt'}"])
    assert f"you may not read {place / 'my.txt'}." in [problem.what for problem in found]


def test_every_rule_has_a_case():
    """But for those on what no preset has: models that are no Decoder (test_layout.py) and
    objectives with frozen models (test_distillation.py).
    """
    elsewhere = {"parallel.needs_decoder", "parallel.pp_frozen", "quantization.needs_decoder"}
    elsewhere |= {"adapter.needs_decoder"}
    assert {case.rule for case in CASES} | elsewhere == {rule.id for rule in RULES}
    assert len({rule.id for rule in RULES}) == len(RULES)


def test_a_rule_says_what_it_demands_in_one_sentence():
    for rule in RULES:
        assert rule.sentence.endswith(".")
        assert 20 < len(rule.sentence) < 140, rule.sentence
