"""Every rule fires on a config that breaks it, with this text, and not on one that keeps it."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from advice import alternatives
from refusing import SMALL, problems, resolved
from rule_cases import CASES as OTHER_CASES
from rule_cases import Case
from rule_cases_context import CONTEXT_CASES
from rule_cases_expert import EXPERT_CASES
from rule_cases_going_on import GOING_ON_CASES
from rule_cases_launch import LAUNCH_CASES
from rule_cases_layout import LAYOUT_CASES
from rule_cases_moe import MOE_CASES
from rule_cases_pipeline import PIPELINE_CASES
from rule_cases_places import PLACE_CASES
from rule_cases_tensor import TENSOR_CASES

from forge.resolve.rules.all import RULES
from forge.rundir import serialize

OF_THE_USER = {
    "data.path": "a path",
    "tokenizer.path": "a path",
    "checkpoint.init_from": "a path",
    "checkpoint.resume_from": "a path",
    "entries": "a class",
    "target": "a class",
    "sweep.ablation": "a name; or a sweep, which is no run",
    "parallel.memory": "a smaller model, or more GPUs",
    "run.host_memory": "a smaller model, or a machine with GPUs",
}
"""Rules whose advice is, in some cases, nothing that could be typed as it stands: what it asks for
instead.
"""
CASES = [
    *OTHER_CASES,
    *MOE_CASES,
    *LAYOUT_CASES,
    *TENSOR_CASES,
    *EXPERT_CASES,
    *CONTEXT_CASES,
    *PIPELINE_CASES,
]
CASES += [*PLACE_CASES, *GOING_ON_CASES, *LAUNCH_CASES]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "my.txt").write_text("some text")
    (tmp_path / "empty").mkdir()
    (tmp_path / "small.json").write_text(json.dumps({"model": {"vocab": {"a": 0, "</s>": 8}}}))
    added = [{"id": 10, "content": "<pad>"}, {"id": 11, "content": "<end>"}]
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": {"a": 0, "</s>": 9}}, "added_tokens": added})
    )
    (tmp_path / "no_end.json").write_text(
        json.dumps({"model": {"vocab": [["a", -1.0], ["b", -2.0]]}, "added_tokens": added})
    )
    for step in (2, 10):
        (tmp_path / "run" / "checkpoints" / f"step_{step}").mkdir(parents=True)
    serialize.save(resolved(SMALL, as_point=True).config, tmp_path / "run" / "config.yaml")
    return tmp_path


def case_id(case: Case) -> str:
    return f"{case.rule}: {case.breaks}".replace("{tmp}", "tmp")


def machine(case: Case) -> dict[str, Any]:
    """Where the rule breaks: without GPUs, but for the rules on them."""
    gpus = case.gpus if case.rule in ("run.gpus", "parallel.memory", "parallel.world_size") else 0
    return {
        "gpus": gpus,
        "memory": case.memory,
        "world_size": case.world_size,
        "torch": case.torch,
        "as_point": True,
    }


def overrides(text: str, place: Path) -> list[str]:
    words = shlex.split(text.replace("{tmp}", str(place)))
    return [
        *(s for s in SMALL if "tokenizer=file" not in words or not s.startswith("tokenizer.")),
        *words,
    ]


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_rule_fires(case: Case, place: Path):
    found = [
        p for p in problems(overrides(case.breaks, place), **machine(case)) if p.rule == case.rule
    ]
    assert [(p.what, p.fix) for p in found] == [(case.what.replace("{tmp}", str(place)), case.fix)]
    assert found[0].warning == next(r.warning for r in RULES if r.id == case.rule)
    assert found[0].where, "a problem says where its value comes from"


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_a_rule_is_silent_where_it_is_kept(case: Case, place: Path):
    found = problems(
        overrides(case.keeps, place),
        gpus=case.gpus,
        memory=case.memory,
        world_size=case.world_size_kept,
        as_point=True,
    )
    assert case.rule not in [p.rule for p in found]
    assert [p for p in found if not p.warning] == []


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_what_it_advises_helps(case: Case, place: Path):
    """Each alternative that can be typed, by itself, and it brings no error that was not there
    before.
    """
    told = overrides(case.breaks, place)
    before = problems(told, **machine(case))
    (broken,) = [p for p in before if p.rule == case.rule]
    attempts = alternatives(broken.fix, told, broken.option)
    assert attempts or case.rule in OF_THE_USER, broken.fix
    if case.rule == "run.host_memory":
        # another model has another size only where no option says it, as SMALL does:
        # tests/test_cli_train.py
        return
    for attempt in attempts:
        after = [
            p for p in problems(attempt, **machine(case)) if not (p.warning and p.rule != case.rule)
        ]
        assert {(p.rule, p.option) for p in after} <= {(p.rule, p.option) for p in before} - {
            (case.rule, broken.option)
        }, attempt


def test_a_text_that_may_not_be_read(place: Path, monkeypatch: pytest.MonkeyPatch):
    """Not by a file, since whoever runs the tests may read all."""
    monkeypatch.setattr("forge.resolve.rules.run.os.access", lambda path, mode: mode != os.R_OK)
    (found,) = [
        p
        for p in problems([*SMALL, "data=text", f"data.path={place / 'my.txt'}"])
        if p.rule == "data.path"
    ]
    assert (found.what, found.fix) == (
        f"you may not read {place / 'my.txt'}.",
        "permission to read it (chmod u+r), or another path",
    )


def test_every_rule_has_such_a_case():
    """But for the one on models that are no Decoder, of which no preset is:
    tests/config/test_layout.py.
    """
    assert sorted({*(case.rule for case in CASES), "parallel.needs_decoder"}) == sorted(
        rule.id for rule in RULES
    )
    assert len({rule.id for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_it_demands_in_one_sentence(rule):
    assert rule.sentence.endswith(".")
    assert 20 < len(rule.sentence) < 140
