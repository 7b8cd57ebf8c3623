"""Local checks, generated from the schema: a value just outside what its option admits is refused,
one just inside is not.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from collections.abc import Iterator

import pytest

from forge.compose import composition
from forge.config.bounds import check_bounds
from forge.config.field import Section, default_of
from forge.config.problems import Problem
from forge.config.root import Config
from forge.config.rule import get
from forge.config.schemas import walk_options

Field = dataclasses.Field
OPTIONS = [(key, schema, field) for key, _, schema, field in walk_options() if field.name[0] != "_"]
BY_KEY = pytest.mark.parametrize(("key", "schema", "field"), OPTIONS, ids=lambda v: str(v)[:40])
WORDS = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}


def limits(field: Field) -> Iterator[tuple[str, float, bool]]:
    """(bound, value, legal): both sides of every bound of an option."""
    step = 1 if re.search("int|number", str(field.type).lower()) else 1e-9
    for name, limit in field.metadata["bounds"].items():
        inward = step if name in ("gt", "ge") else -step
        yield name, limit if name in ("ge", "le") else limit + inward, True
        outside = limit - inward if limit - inward != limit else limit * (1 + 1e-9)  # le=1e30
        yield name, limit if name in ("gt", "lt") else outside, False


def with_value(section: Section, field: Field, value: object) -> Section:
    """The section with this value; a list gets it as its last element."""
    default = default_of(field)
    if isinstance(default, tuple | list) and not isinstance(value, dict):
        value = type(default)([*default[:-1], value])
    setattr(section, field.name, value)
    return section


def faults(key: str, schema: type[Section], field: Field, value: object) -> list[Problem]:
    section = composition.config() if schema is Config else schema()
    prefix = f"{key.rpartition('.')[0]}.".lstrip(".")
    return list(check_bounds(with_value(section, field, value), prefix))


@BY_KEY
def test_an_option_takes_its_type_and_what_is_within_its_bounds(
    key: str, schema: type[Section], field: Field
):
    kind = str(field.type)
    (found,) = faults(key, schema, field, {3: "no option has numbers for names"})
    assert (found.rule, found.option) == ("type", key)
    for value in (math.nan, math.inf, -math.inf) if "float" in kind else ():
        (found,) = faults(key, schema, field, value)
        assert found.what.endswith(" must be finite.")
    for name, value, legal in limits(field):
        found = faults(key, schema, field, value)
        if legal:
            assert found == []
            continue
        assert [(problem.rule, problem.option) for problem in found] == [("bounds", key)]
        bound = field.metadata["bounds"][name]
        bound = bound if isinstance(bound, int) else format(bound, "g")
        assert found[0].what.startswith(key)
        assert f"{WORDS[name]} {bound}" in found[0].what
        if found[0].fix:
            advised = found[0].fix.partition("=")[2]
            number = float(advised) if "float" in kind else int(advised)
            assert faults(key, schema, field, number) == []


def test_every_choice_and_no_other():
    for key, schema, field in OPTIONS:
        if choices := field.metadata["choices"]:
            or_number = field.type in ("AutoInt", "NumberOrWord")
            assert all(faults(key, schema, field, choice) == [] for choice in choices)
            (found,) = faults(key, schema, field, f"{choices[0]}x")
            admits = "must be an integer or" if or_number else "is one of"
            what = re.sub(r"\[\d+\]", "", found.what)  # of a list the element
            assert what == f"{key} {admits} {', '.join(choices)}."
            assert f"={choices[0]}" in found.fix or choices[0] in found.what


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("train.max_steps", True, "train.max_steps must be an integer."),
        ("train.max_steps", 2.0, "train.max_steps must be an integer."),
        ("model.n_kv_heads", "4", "model.n_kv_heads must be an integer or null."),
        ("parallel.pp_layers", ("a", 9), "parallel.pp_layers must be a list of integers."),
        ("run.inline", 1, "run.inline must be true or false."),
        ("model", "llama7b", "model must be a Model section."),
    ],
)
def test_a_value_of_another_type_set_in_python(key: str, value: object, what: str):
    config = composition.config()
    section, _, name = key.rpartition(".")
    setattr(getattr(config, section) if section else config, name, value)
    with pytest.raises(ValueError, match="1 problem") as refused:
        config.validate()
    assert what in str(refused.value)


@pytest.mark.parametrize("choices", ["parallel=auto", "parallel=ep2", "adapter=qlora"])
def test_no_rule_or_derivation_stumbles_over_a_broken_option(choices: str):
    composed = composition.config(["model=moe_tiny", choices])
    for key, schema, field in OPTIONS:
        group = key.rpartition(".")[0]
        broken = [object(), *(value for _, value, legal in limits(field) if not legal)]
        try:
            section = get(composed, group) if group else composed
        except AttributeError:  # a section of another choice
            continue
        if not isinstance(section, schema):
            continue
        for value in broken:
            config = copy.deepcopy(composed)
            with_value(get(config, group) if group else config, field, value)
            with pytest.raises(ValueError, match=f"{key}.* must be"):
                config.validate()
