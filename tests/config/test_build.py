"""`_target_` to object: what may be built, how it is called, and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import forge
from forge.build import build, locate, signature_fault, takes_section
from forge.config import schemas
from forge.config.field import Section, freeze_value, opt
from forge.config.optimizer import AdamW
from forge.config.packages import IMPORTABLE
from forge.config.problems import ConfigError
from forge.config.target import target_fault, trusted


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


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of the user's own: mypkg.parts."""
    parts = types.ModuleType("mypkg.parts")
    vars(parts).update(TakesSection=TakesSection, takes_no_section=takes_no_section, number=3)
    monkeypatch.setitem(sys.modules, "mypkg", types.ModuleType("mypkg"))
    monkeypatch.setitem(sys.modules, "mypkg.parts", parts)
    return "mypkg.parts"


def refusal(section: Section, **arguments) -> str:
    with pytest.raises(ConfigError) as refused:
        build(section, path="optimizer", **arguments)
    (problem,) = refused.value.problems
    assert problem.rule == "target"
    return f"{problem.key} | {problem.what} | {problem.fix}"


def test_a_class_that_knows_nothing_of_forge_gets_the_fields_as_keywords():
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = build(SGDSection(lr=0.5), path="optimizer", params=[weight])
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (0.5, 0.9)
    assert optimizer.param_groups[0]["params"] == [weight]


def test_a_target_annotated_with_a_section_gets_it(mine: str):
    section = SGDSection(_target_=f"{mine}.TakesSection")
    built = build(section, path="optimizer", trust=["mypkg."], scale=2)
    assert (built.section, built.scale) == (section, 2)


def test_a_function_gets_keywords(mine: str):
    section = SGDSection(_target_=f"{mine}.takes_no_section")
    assert build(section, path="optimizer", trust=["mypkg"], scale=2) == (0.1, 0.9, 2)


def test_runtime_arguments_that_a_target_does_not_take():
    said = refusal(SGDSection(), params=[], mesh=None, rank=0)
    assert (
        said
        == "optimizer._target_=torch.optim.SGD | SGD does not take mesh, rank. | give the section the options that its target takes"
    )


def test_arguments_that_are_missing():
    assert "| SGD also needs params. |" in refusal(SGDSection())


def outside(target: str, package: str) -> str:
    return f"{target} may not be built for optimizer: it is under no trusted prefix. | if you trust it: run.trust=[{package}.]"


def not_of_kind(target: str) -> str:
    base = "torch.optim.Optimizer"
    return f"{target} is no subclass of {base}. | name one, or make it a subclass of {base}"


def unfit(target: str) -> str:
    takes = "forge.optim.adamw.adamw, a torch.optim.Optimizer, your own, with run.trust=[mypkg.]"
    return f"{target} may not be built for optimizer. | optimizer takes {takes}"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("os.system", outside("os.system", "os")),
        ("forgery.x.Y", outside("forgery.x.Y", "forgery")),
        ("torch.load", unfit("torch.load")),
        ("torch.optimizer.X", unfit("torch.optimizer.X")),
        ("torch.nn.Linear", unfit("torch.nn.Linear")),
        ("forge.doctor.finding.ask", unfit("forge.doctor.finding.ask")),
        ("forge.build.build", unfit("forge.build.build")),
        ("forge.models.decoder.Decoder", unfit("forge.models.decoder.Decoder")),
        (
            "adamw",
            "'adamw' is not the path of a class or function. | such as forge.optim.adamw.adamw",
        ),
        ("", "'' is not the path of a class or function. | such as forge.optim.adamw.adamw"),
        (
            "forge.../../x",
            "'forge.../../x' is not the path of a class or function. | such as forge.optim.adamw.adamw",
        ),
        (
            "forge.optim.adamw.adamv",
            "forge.optim.adamw.adamv may not be built for optimizer. | did you mean forge.optim.adamw.adamw?",
        ),
        (
            "torch.optim.SGDD",
            "torch.optim.SGDD cannot be imported: module 'torch.optim' has no attribute 'SGDD'. | check the path",
        ),
        ("torch.optim.nothing.X", "the package torch.optim has no 'nothing'. | check the path"),
        (
            "torch.optim.SGD.load_state_dict",
            "the package torch.optim has no 'SGD'. | check the path",
        ),
        (
            "torch.optim.lr_scheduler",
            "torch.optim.lr_scheduler is not a class or function. | check the path",
        ),
        ("torch.optim.swa_utils.deepcopy", not_of_kind("torch.optim.swa_utils.deepcopy")),
        ("torch.optim.lr_scheduler.LambdaLR", not_of_kind("torch.optim.lr_scheduler.LambdaLR")),
        (
            "torch.optim.optimizer._use_grad_for_differentiable",
            not_of_kind("torch.optim.optimizer._use_grad_for_differentiable"),
        ),
    ],
)
def test_targets_that_are_not_built(target: str, said: str):
    assert (
        refusal(SGDSection(_target_=target), params=[]) == f"optimizer._target_={target} | {said}"
    )


def test_nothing_is_imported_that_is_not_allowed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "antigravity", raising=False)
    refusal(SGDSection(_target_="antigravity.fly"))
    assert "antigravity" not in sys.modules


def test_a_value_is_not_a_target(mine: str):
    assert "is not a class or function" in refusal(
        SGDSection(_target_=f"{mine}.number"), trust=["mypkg."]
    )


@pytest.mark.parametrize(
    ("path", "trust", "legal"),
    [
        ("mypkg.x", ["mypkg"], True),
        ("mypkg.x", ["mypkg."], True),
        ("mypkg2.x", ["mypkg"], False),
        ("mypkg.x", [], False),
        ("mypkg.x", [""], False),
        ("forge.x", [], False),
    ],
)
def test_what_is_under_a_trusted_prefix(path: str, trust: list[str], legal: bool):
    assert trusted(path, trust) is legal


FORGE = {
    "model": {"forge.models.decoder.Decoder"},
    "tokenizer": {"forge.data.tokenizer.train_bpe", "forge.data.tokenizer.load_file"},
    "data": {"forge.data.corpus.python_source", "forge.data.corpus.text_files"},
    "objective": {"forge.objectives.pretrain.Pretrain"},
    "optimizer": {"forge.optim.adamw.adamw"},
    "scheduler": {
        f"forge.optim.schedules.{name}"
        for name in ("none", "constant", "cosine", "linear", "wsd", "rex")
    },
    "callbacks": set(),
    "trackers": set(),
    "launch": set(),
}
TORCH = {
    "model": ("torch.nn.", torch.nn.Module),
    "optimizer": ("torch.optim.", torch.optim.Optimizer),
}


def callables(*packages: types.ModuleType) -> Iterator[str]:
    """The path of everything that can be called in the modules of these packages, whoever defined
    it.
    """
    names = [package.__name__ for package in packages]
    for package in packages:
        names += [
            found.name
            for found in pkgutil.walk_packages(
                package.__path__, f"{package.__name__}.", lambda _: None
            )
        ]
    for name in names:
        with contextlib.suppress(Exception):  # some of torch need what is not installed
            yield from (
                f"{name}.{key}"
                for key, value in vars(importlib.import_module(name)).items()
                if callable(value)
            )


def may_be_built(path: str, place: str) -> bool:
    with contextlib.suppress(ConfigError):
        locate(path, path=place)
        return True
    return False


@pytest.mark.filterwarnings("ignore")
def test_of_all_that_can_be_called_in_forge_and_torch_only_components_are_built():
    paths = list(callables(forge, torch.optim, torch.nn))
    assert len(paths) > 5000
    for place, components in FORGE.items():
        package, base = TORCH.get(place, ("-", type(None)))
        built = {path for path in paths if may_be_built(path, place)}
        theirs = {path for path in built if path.startswith(package)}
        assert built - theirs == components
        for path in theirs:
            found = locate(path, path=place)
            assert issubclass(found, base)  # type: ignore[arg-type]
            assert found.__module__.startswith(package.rstrip("."))
    assert may_be_built("torch.optim.SGD", "optimizer")
    assert may_be_built("torch.nn.Linear", "model")


SCHEMAS = [
    (group, name, schema)
    for group, variants in schemas.SCHEMAS.items()
    for name, schema in variants.items()
    if group
    not in ("launch", "sweeper")  # nothing is built of those: they say how runs are started
]


@pytest.mark.parametrize(
    ("group", "name", "schema"), SCHEMAS, ids=[f"{g}={n}" for g, n, _ in SCHEMAS]
)
def test_the_target_of_every_schema_takes_it(group: str, name: str, schema: type[Section]):
    target = locate(schema()._target_, path=group)  # type: ignore[attr-defined]
    if takes_section(target):
        first = next(iter(inspect.signature(target).parameters.values()))
        annotated = inspect.get_annotations(
            target.__init__ if inspect.isclass(target) else target, eval_str=True
        )[first.name]
        assert issubclass(schema, annotated), (
            f"{group}={name} gives a {schema.__name__} to a {annotated.__name__}"
        )
    else:
        fields = {f.name for f in dataclasses.fields(schema) if f.name != "_target_"}
        fault = signature_fault(target, fields)
        assert fault is None or " also needs " in fault


def test_targets_found_without_importing_are_those_that_import():
    for group, _, schema in SCHEMAS:
        path = schema()._target_  # type: ignore[attr-defined]
        assert target_fault(path, group) is None
        assert callable(locate(path, path=group))


def test_a_section_for_another_target_is_caught_before_it_is_called():
    assert "does not take" in refusal(AdamW(_target_="torch.optim.SGD"), params=[])


def test_signatures_that_take_anything():
    assert signature_fault(lambda **anything: None, {"a", "b"}) is None
    assert signature_fault(lambda *values, a=1: None, {"a"}) is None
    assert signature_fault(lambda a, b=2: None, {"b"}) == (
        "test_signatures_that_take_anything.<locals>.<lambda> also needs a."
    )


class Tracking:
    """What an entry of a free dict builds."""

    def __init__(
        self, run_dir: str, path: str, size: int = 3, *, names: list[str] | None = None
    ) -> None:
        self.given = (run_dir, path, size, names)

    def log(self, step: int, values: dict[str, float]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def tracking(mine: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys.modules[mine], "Tracking", Tracking, raising=False)
    return f"{mine}.Tracking"


def of_entry(entry: dict, **runtime) -> object:
    return build(freeze_value(entry), path="trackers.t", trust=["mypkg."], **runtime)


def test_an_entry_gives_its_values_as_keywords_in_plain_lists(tracking: str):
    built = of_entry({"_target_": tracking, "path": "x", "names": ["a"]}, run_dir="d")
    assert built.given == ("d", "x", 3, ["a"])  # type: ignore[attr-defined]
    assert type(built.given[3]) is list  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (
            {"pahts": "x", "path": "y"},
            ["trackers.t.pahts | Tracking does not take pahts. | did you mean trackers.t.path?"],
        ),
        (
            {"zzz": 1, "path": "y"},
            ["trackers.t.zzz | Tracking does not take zzz. | it takes path, size, names"],
        ),
        (
            {"zzz": 1, "yyy": 2},
            [
                f"trackers.t.{name} | Tracking does not take {name}. | it takes path, size, names"
                for name in ("yyy", "zzz")
            ],
        ),
        (
            {},
            [
                "trackers.t._target_=mypkg.parts.Tracking | Tracking also needs path. | +trackers.t.path=..."
            ],
        ),
        (
            {"path": "y", "run_dir": "z"},
            ["trackers.t.run_dir | run_dir is given by forge. | ~trackers.t.run_dir"],
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_refused_by_its_key(
    tracking: str, entry: dict, said: list[str]
):
    with pytest.raises(ConfigError) as refused:
        of_entry({"_target_": tracking, **entry}, run_dir="d")
    assert [f"{p.key} | {p.what} | {p.fix}" for p in refused.value.problems] == said


def forbidden(*_: object, **__: object) -> None:
    raise AssertionError("it is called")


@pytest.mark.parametrize("place", ["callbacks", "trackers"])
@pytest.mark.parametrize("name", ["takes_no_section", "TakesSection", "forbidden"])
def test_an_entry_is_of_its_kind_before_it_is_called(
    mine: str, name: str, place: str, monkeypatch: pytest.MonkeyPatch
):
    """Whatever a trusted package has besides: a file of somebody else's may name it."""
    monkeypatch.setattr(sys.modules[mine], "forbidden", forbidden, raising=False)
    with pytest.raises(
        ConfigError, match=rf"mypkg\.parts\.{name} is no subclass of forge\.training\."
    ) as refused:
        build(
            {"_target_": f"{mine}.{name}", "lr": 1.0, "momentum": 1.0},
            path=f"{place}.x",
            trust=["mypkg."],
            scale=1,
        )
    assert refused.value.problems[0].key == f"{place}.x._target_={mine}.{name}"


def test_a_target_inside_an_entry_needs_trust_too(tracking: str):
    """The class may build it, as hydra.utils.instantiate does."""
    inner = {
        "a": [{"_target_": "os.system", "command": "x"}],
        "b": {"_target_": "mypkg.parts.Tracking"},
    }
    with pytest.raises(ConfigError) as refused:
        of_entry({"_target_": tracking, "path": inner}, run_dir="d")
    said = "trackers.t.path.a.0._target_=os.system | os.system is under no trusted prefix. | if you trust it: run.trust=[os.]"
    assert [f"{p.key} | {p.what} | {p.fix}" for p in refused.value.problems] == [said]


def test_a_target_that_does_not_take_what_forge_gives_is_refused(tracking: str):
    with pytest.raises(
        ConfigError, match="Tracking does not take logger, which forge gives it"
    ) as refused:
        of_entry({"_target_": tracking, "path": "x"}, run_dir="d", logger=1)
    assert refused.value.problems[0].fix == "add the parameter logger"


def test_a_module_that_raises_when_it_is_imported_is_named(
    tmp_path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "raising9.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ConfigError, match="importing raising9 fails: ZeroDivisionError: division by zero"
    ):
        locate("raising9.Thing", path="model", trust=["raising9."])
    with pytest.raises(ConfigError, match="there is no package absent9") as refused:
        locate("absent9.things.Thing", path="model", trust=["absent9."])
    assert refused.value.problems[0].fix == IMPORTABLE
