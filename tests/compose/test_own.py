"""A file with a `_target_` and no schema: its keys are the parameters of the target, which are read
without importing it, and such a section is like any other.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import sys
from pathlib import Path

import pytest
from helpers.refusing import SMALL, only, problems, resolved

from forge import explain, train
from forge.config.changes import changes
from forge.config.targets import signature
from forge.config.targets.signature import REQUIRED, UNREAD
from forge.config.targets.target import OF_TORCH
from forge.rundir import saved_config

MODULE = """
raise RuntimeError("checking a config imports nothing of the user's")
class Base:
    def __init__(self, size: int = 3): ...
class Made(Base): ...
def curve(step, /, *, sharpness=2.0, kind="round", other=object()): ...
def anything(step, **options): ...
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes a choice file, and gives the overrides that choose it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "curves18.py").write_text(MODULE)

    def write(group: str, text: str) -> list[str]:
        file = tmp_path / "conf" / group / "mine.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        small = [word for word in SMALL if not word.startswith(f"{group}.")]
        search = f"hydra.searchpath=[{tmp_path / 'conf'}]"
        return [*small, search, "run.trust=[curves18.]", f"{group}=mine"]

    return write


SGD = "_target_: torch.optim.SGD\nlr: 0.1\nmomentum: 0.9\n"


def test_keys_are_the_parameters_of_the_target(own):
    mine = own("optimizer", SGD)
    section = resolved([*mine, "optimizer.nesterov=true"]).config.optimizer
    assert (section.lr, section.momentum, section.nesterov) == (0.1, 0.9, True)  # type: ignore[attr-defined]
    assert section.weight_decay == 0, "the default of torch, not that of forge"
    found = only([*mine, "optimizer.momentun=.8"])
    assert only([*mine, "optimizer.lr=0"]).what == "optimizer.lr must be greater than 0."
    what = "torch.optim.SGD has no option 'momentun'."
    assert (found.what, found.fix) == (what, "did you mean optimizer.momentum=.8?")
    found = only(own("optimizer", SGD.replace("momentum", "momentun")))
    assert (found.what, found.fix) == (what, "did you mean momentum: 0.9?")
    assert found.where.endswith("optimizer/mine.yaml:3")


def test_a_module_of_ones_own_is_read_and_not_run(own):
    mine = own("scheduler", "_target_: curves18.curve\nsharpness: 3\n")
    section = resolved(mine).config.scheduler
    assert (section.sharpness, section.kind) == (3, "round")  # type: ignore[attr-defined]
    assert only([*mine, "scheduler.sharpnes=1"]).fix == "did you mean scheduler.sharpness=1?"
    free = own("scheduler", "_target_: curves18.anything\nsharpness: 3\nat: {a: [1, 2]}\n")
    assert resolved(free).config.scheduler.at == {"a": (1, 2)}  # type: ignore[attr-defined]
    asked = own("scheduler", "_target_: torch.optim.lr_scheduler.StepLR\n")
    assert only(asked).what == "a value is missing."
    assert "curves18" not in sys.modules


def test_what_may_be_built_is_the_same_for_all(own):
    mine = own("scheduler", "_target_: curves18.curve\n")
    found = only([word for word in mine if not word.startswith("run.trust")])
    assert found.fix == "if you trust it: run.trust=[curves18.]"
    sgd = "_target_: torch.optim.SGD\nlr: {_target_: os.getpid}\n"
    inner = "_target_: curves18.anything\nat: [{_target_: os.getpid}]\n"
    assert [one.key for one in problems(own("scheduler", inner))] == [
        "scheduler.at.0._target_=os.getpid"
    ]
    assert problems(own("optimizer", sgd))
    assert "curves18" not in sys.modules
    (found,) = problems(own("optimizer", "lr: 0.1\n"))
    assert found.fix.startswith("name what is built, '_target_: torch.optim.SGD', or start the")


def test_it_is_saved_compared_and_pickled_like_any_other(own, tmp_path: Path):
    mine = own("optimizer", SGD)
    config = resolved(mine).config
    saved_config.save_config(config, tmp_path / "config.yaml")
    again = saved_config.load_config(tmp_path / "config.yaml", trust=["curves18."])
    assert again.optimizer == config.optimizer
    assert pickle.loads(pickle.dumps(config.optimizer)) == config.optimizer
    assert not list(changes(again, config))
    other = resolved([*mine, "optimizer.momentum=0.5"]).config
    (change,) = changes(config, other)
    assert (change.key, change.before, change.after) == ("optimizer.momentum", 0.9, 0.5)
    assert not change.free
    text = (tmp_path / "config.yaml").read_text().replace("train:", "train:\n  _type_: own")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match="no Train is named by _target_ alone"):
        saved_config.load_config(tmp_path / "config.yaml", trust=[])
    nadam = resolved(own("optimizer", "_target_: torch.optim.NAdam\n")).config
    (change,) = changes(config, nadam)
    assert (change.before, change.after) == ("torch.optim.SGD", "torch.optim.NAdam")


def test_its_options_are_explained_and_shown(own, capsys: pytest.CaptureFixture):
    mine = [word for word in own("optimizer", SGD) if "optimizer" in word or "hydra" in word]
    assert explain.main(["optimizer.momentum", "optimizer.nesterov", *mine]) == 0
    said = capsys.readouterr().out
    assert re.search(r"momentum = 0.9\n  from .*optimizer/mine.yaml:3\n  meaning .* of torch", said)
    assert "from          the default of torch.optim.SGD" in said
    assert train.main(["--help", "optimizer", *mine]) == 0
    said = capsys.readouterr().out
    assert "torch.optim.SGD (optimizer=mine): torch.optim.SGD, named by a file" in said
    assert re.search(r"optimizer.momentum +0.9 .*optimizer/mine.yaml:3", said)


def test_arguments_without_a_name_are_no_options(own):
    mine = own("scheduler", "_target_: torch.optim.lr_scheduler.MultiStepLR\n_args_: [[1], 2, 3]\n")
    found = only([*mine, "scheduler.milestones=[3]"])
    assert found.what == "torch.optim.lr_scheduler.MultiStepLR has no option 'milestones'."


def test_what_is_not_known_is_said(own):
    mine = own("model", "_target_: curves18.Made\nvocab_size: auto\nsize: 4\n")
    (found,) = problems(mine)
    assert found.warning
    assert found.what.startswith("curves18.Made: its parameters, FLOPs and memory are not known")


def test_a_target_of_forge_has_its_schema(own):
    section = resolved(own("optimizer", "_target_: forge.optim.lion.Lion\n")).config.optimizer
    assert type(section).schema_name == "lion"


@pytest.mark.parametrize("base", OF_TORCH.values())
def test_signatures_are_those_that_python_has(base: str):
    """Of every class of torch whose file tells; most do."""
    package, _, above = base.rpartition(".")
    module = importlib.import_module(package)
    classes = {
        f"{package}.{name}": found
        for name, found in vars(module).items()
        if inspect.isclass(found) and issubclass(found, getattr(module, above))
    }
    read = {path: found for path in classes if (found := signature.read_signature(path))}
    assert len(read) > 0.9 * len(classes)
    for path, found in read.items():
        real = inspect.signature(classes[path]).parameters
        if found.anything:
            assert any(p.kind is p.VAR_KEYWORD for p in real.values()), path
            continue
        names = [p.name for p in real.values() if p.kind is not p.VAR_POSITIONAL]
        assert list(found.parameters) == names, path
        for name, default in found.parameters.items():
            assert (default is REQUIRED) == (real[name].default is inspect.Parameter.empty)
            if default is not REQUIRED and default is not UNREAD:
                assert default == real[name].default, (path, name)
