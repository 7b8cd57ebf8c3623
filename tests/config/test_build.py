"""`_target_` to object: what may be built, how it is called, and what is said when it cannot be."""

from __future__ import annotations

import dataclasses
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from forge.build import bind, build, locate, section_taken, signature_fault
from forge.config import schemas
from forge.config.field import Section, freeze_value, opt
from forge.config.model.decoder import Decoder
from forge.config.problems import ConfigError, closest, did_you_mean
from forge.config.targets import own
from forge.config.targets.packages import IMPORTABLE
from forge.config.targets.target import target_fault, trusted

OPTIMIZERS = [schema()._target_ for schema in schemas.SCHEMAS["optimizer"].values()]  # type: ignore[attr-defined]


@dataclass(kw_only=True)
class SGDSection(Section):
    """A user's section for a class that knows nothing of forge."""

    _target_: str = "torch.optim.SGD"
    lr: float = opt(0.1, "learning rate", gt=0)
    momentum: float = opt(0.9, "momentum", ge=0)


class TakesSection:
    def __init__(self, section: SGDSection, *, scale: int):
        self.section, self.scale = section, scale


def takes_no_section(lr: float, momentum: float, *, scale: int) -> tuple[float, float, int]:
    return lr, momentum, scale


class Tracking:
    """What an entry of a free dict builds."""

    def __init__(self, run_dir: str, path: str, size: int = 3, *, names: list[str] | None = None):
        self.given = (run_dir, path, size, names)

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def mypkg(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of the user's own: mypkg.parts."""
    parts = types.ModuleType("mypkg.parts")
    members = (TakesSection, takes_no_section, Tracking)
    vars(parts).update({member.__name__: member for member in members}, number=3)
    monkeypatch.setitem(sys.modules, "mypkg", types.ModuleType("mypkg"))
    monkeypatch.setitem(sys.modules, "mypkg.parts", parts)


def refusals(section: object, path: str = "optimizer", **arguments) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        build(section, path=path, **arguments)
    assert {problem.rule for problem in refused.value.problems} == {"target"}
    return [f"{problem.key} | {problem.what} | {problem.fix}" for problem in refused.value.problems]


def test_a_class_that_knows_nothing_of_forge_gets_the_fields_as_keywords():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = build(SGDSection(lr=0.5), path="optimizer", params=[weight])
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.5, 0.9)
    assert optimizer.param_groups[0]["params"] == [weight]


def test_a_target_annotated_with_a_section_gets_it_and_a_function_keywords():
    section = SGDSection(_target_="mypkg.parts.TakesSection")
    built = build(section, path="optimizer", trust=["mypkg."], scale=2)
    assert (built.section, built.scale) == (section, 2)
    section = SGDSection(_target_="mypkg.parts.takes_no_section")
    assert build(section, path="optimizer", trust=["mypkg"], scale=2) == (0.1, 0.9, 2)


def test_a_target_that_takes_a_section_but_not_what_forge_gives_is_refused():
    section = SGDSection(_target_="mypkg.parts.TakesSection")
    what = "TakesSection does not take mesh, rank, which forge gives it."
    said = f"optimizer._target_={section._target_} | {what} | add the parameter mesh, rank"
    assert refusals(section, trust=["mypkg."], scale=2, mesh=None, rank=0) == [said]


@pytest.mark.parametrize(
    ("target", "what", "fix"),
    [
        (
            "antigravity.fly",
            " may not be built for optimizer: it is under no trusted prefix.",
            "if you trust it: run.trust=[antigravity.]",
        ),
        (
            "torch.nn.Linear",
            " may not be built for optimizer.",
            f"optimizer takes {', '.join(OPTIMIZERS)}, a torch.optim.Optimizer, your own, with "
            "run.trust=[mypkg.]",
        ),
        (
            "forge.optim.adamw.adamv",
            " may not be built for optimizer.",
            did_you_mean(closest("forge.optim.adamw.adamv", OPTIMIZERS)),
        ),
        (
            "torch.optim.SGDD",
            " cannot be imported: module 'torch.optim' has no attribute 'SGDD'.",
            "check the path",
        ),
        (
            "torch.optim.swa_utils.deepcopy",
            " is no subclass of torch.optim.Optimizer.",
            "name one, or make it a subclass of torch.optim.Optimizer",
        ),
    ],
)
def test_targets_that_are_not_built(
    target: str, what: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    found = refusals(SGDSection(_target_=target), params=[])
    assert found == [f"optimizer._target_={target} | {target}{what} | {fix}"]
    assert "antigravity" not in sys.modules, "nothing is imported that is not allowed"


def test_arguments_that_do_not_fit_a_signature():
    fix = "give the section the options that its target takes"
    for given, what in (
        ({"params": [], "mesh": None, "rank": 0}, "does not take mesh, rank"),
        ({}, "also needs params"),
    ):
        said = f"optimizer._target_=torch.optim.SGD | SGD {what}. | {fix}"
        assert refusals(SGDSection(), **given) == [said]
    assert signature_fault(lambda **anything: None, {"a", "b"}) is None
    assert signature_fault(lambda *values, a=1: None, {"a"}) is None


@pytest.mark.parametrize(
    ("path", "trust", "legal"),
    [
        ("mypkg.x", ["mypkg"], True),
        ("mypkg.x", ["mypkg."], True),
        ("mypkg2.x", ["mypkg"], False),
        ("mypkg.x", [""], False),
        ("forge.x", [], False),
    ],
)
def test_what_is_under_a_trusted_prefix(path: str, trust: list[str], legal: bool):
    assert trusted(path, trust) is legal


def test_the_target_of_every_schema_takes_it():
    for group, variants in schemas.SCHEMAS.items():
        if group in ("launch", "rollout", "scaling", "sweeper"):  # nothing is built of those
            continue
        for schema in variants.values():
            path = schema()._target_  # type: ignore[attr-defined]
            assert target_fault(path, group) is None
            target = locate(path, path=group)
            if taken := section_taken(target):
                given = Decoder if group in schemas.INNER else schema  # the layer's section
                assert issubclass(given, taken[1])
            else:
                fields = {f.name for f in dataclasses.fields(schema)} - {"_target_"}
                fault = signature_fault(target, fields)
                assert fault is None or " also needs " in fault


def of_entry(entry: dict, target: str = "mypkg.parts.Tracking") -> dict:
    return freeze_value({"_target_": target, **entry})


def test_an_entry_gives_its_values_as_keywords_in_plain_lists():
    entry = of_entry({"path": "x", "names": ["a"]})
    built = build(entry, path="trackers.t", trust=["mypkg."], run_dir="d")
    assert built.given == ("d", "x", 3, ["a"])
    assert type(built.given[3]) is list


TAKES_NONE = "mypkg.parts.takes_no_section"


def test_targets_inside_of_keywords_are_built_first():
    """With what is offered, where they name it; a partial is left to who gets it."""
    called = {"_target_": TAKES_NONE, "_args_": [1.0], "momentum": 2.0, "scale": 3}
    later = {"_target_": TAKES_NONE, "_partial_": True, "lr": 5.0}
    entry = of_entry({"path": {"a": [called]}, "names": later, "_args_": ["here"]})
    call = bind(entry, path="trackers.t", trust=["mypkg."], offered={"scale": 7})
    run_dir, path, _, names = call().given
    assert (run_dir, path) == ("here", {"a": [(1.0, 2.0, 3)]})
    assert names(momentum=6.0) == (5.0, 6.0, 7)


INSIDE = {
    "Tracking does not take nme.": {"_target_": "mypkg.parts.Tracking", "nme": 1},
    "takes_no_section also needs momentum, scale.": {"_target_": TAKES_NONE, "lr": 1},
    "takes_no_section is given lr twice.": {"_target_": TAKES_NONE, "_args_": [1], "lr": 1},
    "takes_no_section takes 2 arguments without a name, not 3.": {
        "_target_": TAKES_NONE,
        "_args_": [1, 2, 3],
    },
    "takes_no_section has a list of arguments in _args_, and this is 3.": {
        "_target_": TAKES_NONE,
        "_args_": 3,
    },
    "importing mypkg.absent fails": {"_target_": "mypkg.absent.Thing"},
}


@pytest.mark.parametrize("what", INSIDE)
def test_what_is_wrong_inside_of_keywords_is_found_before_anything_is_called(what: str):
    entry = of_entry({"path": [INSIDE[what]]})
    said = refusals(entry, path="trackers.t", trust=["mypkg."], run_dir="d")
    assert said[0].startswith("trackers.t.path.0")
    assert what.removeprefix("importing mypkg.absent fails") in said[0]


def test_classes_of_torch_inside_of_a_model_need_no_trust():
    outer = {"_target_": "torch.nn.Sequential", "_args_": [{"_target_": "torch.nn.Linear"}]}
    schema = own.schema("model", outer)
    inner = [{"_target_": "torch.nn.Linear", "_args_": [2, 3]}, {"_target_": "torch.nn.GELU"}]
    built = build(schema(_args_=inner), path="model")  # type: ignore[call-arg]
    assert [type(one).__name__ for one in built] == ["Linear", "GELU"]
    inner = [{"_target_": "torch.nn.functional.gelu"}]
    (said,) = refusals(schema(_args_=inner), path="model")  # type: ignore[call-arg]
    assert "torch.nn.functional.gelu is no subclass of torch.nn.Module." in said


def test_a_target_that_takes_another_section_says_which():
    section = own.schema("optimizer", {"_target_": "forge.optim.lion.Lion"})()
    (said,) = refusals(section, params=[])
    what = "Lion takes the section Lion, and the file names none."
    fix = "begin the file with 'defaults: [/schema/optimizer@_here_: lion, _self_]'"
    assert said == f"optimizer._target_=forge.optim.lion.Lion | {what} | {fix}"


TRACKING, TAKES = "trackers.t._target_=mypkg.parts.Tracking", "it takes path, size, names"


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"pahts": "x", "path": "y"},
            ["trackers.t.pahts | Tracking does not take pahts. | did you mean trackers.t.path?"],
        ),
        ({"zzz": 1}, [f"trackers.t.zzz | Tracking does not take zzz. | {TAKES}"]),
        ({}, [f"{TRACKING} | Tracking also needs path. | +trackers.t.path=..."]),
        (
            {"path": "y", "run_dir": "z"},
            ["trackers.t.run_dir | run_dir is given by forge. | ~trackers.t.run_dir"],
        ),
        (  # the class may build it, as hydra.utils.instantiate does
            {"path": {"a": [{"_target_": "os.system"}], "b": {"_target_": "mypkg.parts.Tracking"}}},
            [
                "trackers.t.path.a.0._target_=os.system | os.system is under no trusted prefix. "
                "| if you trust it: run.trust=[os.]"
            ],
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_by_its_key(entry: dict, said: list[str]):
    found = refusals(of_entry(entry), path="trackers.t", trust=["mypkg."], run_dir="d")
    assert found == said


def test_a_target_that_does_not_take_what_forge_gives_is_refused():
    given = {"run_dir": "d", "logger": 1}
    what = "Tracking does not take logger, which forge gives it."
    said = [f"{TRACKING} | {what} | add the parameter logger"]
    assert refusals(of_entry({"path": "x"}), path="trackers.t", trust=["mypkg."], **given) == said


@pytest.mark.parametrize("place", ["callbacks", "techniques", "trackers"])
@pytest.mark.parametrize("name", ["takes_no_section", "TakesSection"])
def test_an_entry_is_of_its_kind_before_it_is_called(name: str, place: str):
    """Whatever a trusted package has besides: a file of somebody else's may name it."""
    target = f"mypkg.parts.{name}"
    entry = of_entry({"lr": 1.0, "momentum": 1.0}, target)
    (said,) = refusals(entry, path=f"{place}.x", trust=["mypkg."], scale=1)
    assert said.startswith(f"{place}.x._target_={target} | {target} is no subclass of forge.")


def test_an_objective_is_one_before_it_is_called():
    section, base = SGDSection(_target_="mypkg.parts.TakesSection"), "forge.api"
    (said,) = refusals(section, path="objective", trust=["mypkg."], scale=1)
    what = f"{section._target_} is no subclass of {base}.Objective."
    assert said.startswith(f"objective._target_={section._target_} | {what}")


def test_a_module_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "raising9.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for target, what, fix in (
        (
            "raising9.Thing",
            "importing raising9 fails: ZeroDivisionError: division by zero.",
            "correct the package",
        ),
        (
            "absent9.things.Thing",
            "there is no package absent9, which absent9.things is in.",
            IMPORTABLE,
        ),
        ("mypkg.parts.number", "mypkg.parts.number is not a class or function.", "check the path"),
    ):
        section, trust = SGDSection(_target_=target), ["raising9.", "absent9.", "mypkg."]
        said = [f"model._target_={target} | {what} | {fix}"]
        assert refusals(section, path="model", trust=trust) == said
