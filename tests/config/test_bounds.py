"""Local checks, generated from the schema: a value just outside what its option admits is refused,
one just inside is not.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import typing
from collections.abc import Iterator

import pytest
from refusing import problems

from forge.compose import composition
from forge.config.bounds import check_bounds
from forge.config.field import Section, default_of, types_of
from forge.config.root import Config
from forge.config.schemas import walk_options
from forge.resolve.rule import get

OPTIONS = [
    (key, schema, field)
    for key, _, schema, field in walk_options()
    if not field.name.startswith("_")
]


def limits() -> Iterator[tuple[str, type[Section], dataclasses.Field, str, float, bool]]:
    """(key, schema, field, bound, value, legal): both sides of every bound."""
    for key, schema, field in OPTIONS:
        whole = "int" in str(field.type).lower()
        for name, limit in field.metadata["bounds"].items():
            step = 1 if whole else 1e-9
            inward = step if name in ("gt", "ge") else -step
            yield key, schema, field, name, limit if name in ("ge", "le") else limit + inward, True
            yield key, schema, field, name, limit if name in ("gt", "lt") else limit - inward, False


def with_value(schema: type[Section], field: dataclasses.Field, value: object) -> Section:
    """The section at its defaults, but for this value; a list gets it as its last element."""
    section = composition.config() if schema is Config else schema()
    default = default_of(field)
    if isinstance(default, tuple | list):
        value = type(default)([*default[:-1], value])
    setattr(section, field.name, value)
    return section


def faults(key: str, schema: type[Section], field: dataclasses.Field, value: object):
    return list(
        check_bounds(with_value(schema, field, value), f"{key.rpartition('.')[0]}.".lstrip("."))
    )


@pytest.mark.parametrize(
    "limit", list(limits()), ids=lambda case: f"{case[0]} {case[1].__name__} {case[3]} {case[4]}"
)
def test_both_sides_of_every_bound(limit):
    key, schema, field, name, value, legal = limit
    found = faults(key, schema, field, value)
    if legal:
        assert found == []
        return
    assert [problem.rule for problem in found] == ["bounds"]
    assert found[0].option == key
    words = {"gt": "greater than", "ge": "at least", "lt": "less than", "le": "at most"}[name]
    bound = field.metadata["bounds"][name]
    assert f"{words} {bound if isinstance(bound, int) else format(bound, 'g')}" in found[0].what
    assert found[0].what.startswith(key)
    if found[0].fix:
        advised = found[0].fix.partition("=")[2]
        assert (
            faults(
                key, schema, field, float(advised) if "float" in str(field.type) else int(advised)
            )
            == []
        )


def test_there_are_bounds_to_test():
    assert len(list(limits())) > 100


@pytest.mark.parametrize(
    ("key", "schema", "field"),
    [o for o in OPTIONS if o[2].metadata["choices"]],
    ids=lambda value: str(value)[:40],
)
def test_every_choice_and_no_other(key: str, schema: type[Section], field: dataclasses.Field):
    choices, or_number = field.metadata["choices"], field.type == "AutoInt"
    assert (
        default_of(field) in choices
        or or_number
        or (default_of(field) is None and str(field.type).endswith("| None"))
    )
    assert all(faults(key, schema, field, choice) == [] for choice in choices)
    (found,) = faults(key, schema, field, f"{choices[0]}x")
    assert (
        found.what
        == f"{key} {'must be an integer or' if or_number else 'is one of'} {', '.join(choices)}."
    )
    assert f"{key}={choices[0]}" in found.fix


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("key", "schema", "field"),
    [o for o in OPTIONS if "float" in str(o[2].type)],
    ids=lambda v: str(v)[:30],
)
def test_every_number_is_finite(
    key: str, schema: type[Section], field: dataclasses.Field, value: float
):
    (found,) = faults(key, schema, field, value)
    assert found.what.endswith(" must be finite.")


@pytest.mark.parametrize(("key", "schema", "field"), OPTIONS, ids=lambda value: str(value)[:40])
def test_every_option_has_a_type_that_is_checked(
    key: str, schema: type[Section], field: dataclasses.Field
):
    (found,) = faults(key, schema, field, {3: "no option has numbers for names"})
    assert found.rule == "type"
    assert found.option == key


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("train.max_steps", "5", "train.max_steps must be an integer."),
        ("train.max_steps", True, "train.max_steps must be an integer."),
        ("train.max_steps", 2.0, "train.max_steps must be an integer."),
        ("train.max_steps", None, "train.max_steps must be an integer."),
        ("model.n_kv_heads", "4", "model.n_kv_heads must be an integer or null."),
        ("optimizer.lr", "1e-3", "optimizer.lr must be a number."),
        ("optimizer.betas", 0.9, "optimizer.betas must be a list of numbers."),
        ("optimizer.betas", ("a", 0.9), "optimizer.betas must be a list of numbers."),
        ("eval.sample_prompts", "def ", "eval.sample_prompts must be a list of texts."),
        ("run.inline", 1, "run.inline must be true or false."),
        ("run.dir", 3, "run.dir must be a text or null."),
        ("model", "llama7b", "model must be a Model section."),
        ("optimizer", None, "optimizer must be a Optimizer section."),
    ],
)
def test_a_value_of_another_type_set_in_python(key: str, value: object, what: str):
    config = composition.config()
    section, _, name = key.rpartition(".")
    setattr(getattr(config, section) if section else config, name, value)
    with pytest.raises(ValueError, match="1 problem") as refused:
        config.validate()
    assert what in str(refused.value)


def test_no_rule_or_derivation_stumbles_over_any_broken_option():
    composed = composition.config()
    for key, schema, field in OPTIONS:
        config = copy.deepcopy(composed)
        group = key.rpartition(".")[0]
        section = get(config, group) if group else config
        if isinstance(section, schema):
            setattr(section, field.name, object())
            with pytest.raises(ValueError, match=f"{key} must be"):
                config.validate()


@pytest.mark.parametrize("layout", ["auto", "ep2"])
def test_nor_over_any_value_out_of_bounds(layout: str):
    composed = composition.config(["model=moe_tiny", f"parallel={layout}"])
    for key, schema, field, _, value, legal in limits():
        config = copy.deepcopy(composed)
        group = key.rpartition(".")[0]
        section = get(config, group) if group else config
        if not legal and isinstance(section, schema):
            setattr(section, field.name, [value] if "list" in str(field.type) else value)
            with pytest.raises(ValueError, match=f"{key}.* must be"):
                config.validate()


@pytest.mark.parametrize("values", ["[]", "[0.9]", "[0.9,0.95,0.99]"])
def test_a_tuple_has_its_length(values: str):
    (found,) = problems([f"optimizer.betas={values}"])
    assert found.what == f"optimizer.betas has 2 values, not {values.count('0')}."


def test_the_element_out_of_bounds_is_named():
    (found,) = problems(["optimizer.betas=[0.9,1]"])
    assert (found.key, found.what) == (
        "optimizer.betas[1]=1.0",
        "optimizer.betas[1] must be at least 0 and less than 1.",
    )
    assert found.where == "command line"


@pytest.mark.parametrize("value", [10**19, 10**400, -(10**19)])
def test_a_size_beyond_all_hardware_is_refused(value: int):
    assert [p.option for p in problems([f"train.max_steps={value}"])] == ["train.max_steps"]


def test_the_example_is_the_bound_that_was_passed():
    assert problems(["scheduler.min_lr_ratio=2"])[0].fix == "for example scheduler.min_lr_ratio=1"
    assert problems(["scheduler.min_lr_ratio=-2"])[0].fix == "for example scheduler.min_lr_ratio=0"
    assert (
        problems(["tokenizer.vocab_size=20000000"])[0].fix
        == "for example tokenizer.vocab_size=16777216"
    )


def test_annotations_are_what_the_check_understands():
    understood = (int, float, bool, str, type(None))
    for key, schema, field in OPTIONS:
        hint = types_of(schema)[field.name]
        if typing.get_origin(hint) is dict:
            assert typing.get_args(hint) in ((str, typing.Any), (str, str), (str, list[str])), key
            continue
        inner = (
            [hint] if isinstance(hint, type) else [h for h in typing.get_args(hint) if h is not ...]
        )
        assert all(
            h in understood or (isinstance(h, type) and issubclass(h, Section)) for h in inner
        ), key
