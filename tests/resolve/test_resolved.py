"""A resolved config: frozen, plain, pickled, copied, and the same when it is resolved again."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.refusing import resolved

from forge.compose import composition
from forge.compose.engine import Library
from forge.config.field import FrozenDict, Section
from forge.resolve.resolve import resolve

VARIED = [
    [],
    ["scheduler=wsd", "eval.sample_prompts=[a,b]", "run.trust=[mypkg.]"],
    ["scheduler=none", "precision=fp32", "train.global_batch_tokens=4096"],
    ["parallel.dp_shard=-1", "model=small", "optimizer=adamw", "optimizer.betas=[0.8,0.9]"],
    [
        "run.trust=[mypkg.]",
        "+callbacks.a={_target_:mypkg.EMA,of:[1,{b:[2,null]}],dim:${model.dim}}",
        "+trackers.b._target_=mypkg.CSV",
    ],
]


def sections(config: Section):
    yield config
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Section):
            yield from sections(value)


def test_every_section_is_read_only():
    config = resolved().config
    assert len(list(sections(config))) == 30
    for section in sections(config):
        assert section.frozen
        for field in dataclasses.fields(section):
            with pytest.raises(
                dataclasses.FrozenInstanceError,
                match=f"{field.name}: a resolved config is read-only",
            ):
                setattr(section, field.name, getattr(section, field.name))


def test_a_name_that_no_option_has_is_refused_in_python():
    config = composition.config()
    with pytest.raises(
        AttributeError, match="Train has no option 'max_stepps'; did you mean max_steps"
    ):
        config.train.max_stepps = 5  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"has no option 'zzz'$"):
        config.zzz = 5  # type: ignore[attr-defined]


PLAIN = {int, float, str, bool, type(None), tuple, FrozenDict}


@pytest.mark.parametrize("overrides", VARIED, ids=str)
def test_nothing_of_omegaconf_is_left(overrides: list[str]):
    for section in sections(resolved(overrides).config):
        for field in dataclasses.fields(section):
            for value in below(getattr(section, field.name)):
                assert type(value) in PLAIN or isinstance(value, Section)


def below(value: Any) -> Iterator[Any]:
    yield value
    inside = value.values() if isinstance(value, dict) else value
    for inner in inside if isinstance(value, dict | tuple) else ():
        yield from below(inner)


@pytest.mark.parametrize("overrides", VARIED, ids=str)
def test_it_pickles_and_stays_frozen(overrides: list[str]):
    config = resolved(overrides).config
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert again.overrides == config.overrides == tuple(overrides)
    assert all(section.frozen for section in sections(again))


@pytest.mark.parametrize("overrides", VARIED, ids=str)
def test_resolving_again_changes_nothing(overrides: list[str]):
    once = resolved(overrides)
    again = resolve(once.config)
    assert again.config == once.config
    assert again.derived == ()
    assert [w.what for w in again.warnings] == [w.what for w in once.warnings]


@pytest.mark.parametrize("overrides", VARIED, ids=str)
def test_the_config_that_is_resolved_is_not_touched(overrides: list[str]):
    config = composition.config(overrides)
    before = copy.deepcopy(config)
    config.validate()
    assert config == before
    assert not any(section.frozen for section in sections(config))
    config.train.max_steps = 7
    assert config.validate().config.train.max_steps == 7


def test_one_composition_does_not_leak_into_the_next():
    library = Library()
    first, _ = library.merge(library.defaults([]).defaults)
    first.optimizer.lr = 9.0
    second, _ = library.merge(library.defaults([]).defaults)
    assert second.optimizer.lr != 9.0
