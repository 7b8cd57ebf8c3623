"""Free dicts, `callbacks` and `trackers`: entries added, changed and removed, from anywhere, and
read-only at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.refusing import only, resolved

from forge import check, explain
from forge.compose import composition
from forge.config.field import thaw_value
from forge.resolve.resolve import resolve
from forge.rundir import saved_config

TRUST = "run.trust=[mypkg.]"
EMA = [TRUST, "+callbacks.ema._target_=mypkg.EMA", "+callbacks.ema.decay=0.9"]
WRITTEN = "# @package callbacks.ema\n_target_: mypkg.EMA\ndecay: 0.99\nparts: [a, {b: 1}]\n"
Write = Callable[[str, str], str]


OURS = ("profiler", "evaluation", "early_stopping", "samples")


def all_entries(overrides: list[str], **where) -> dict:
    return thaw_value(resolved([TRUST, *overrides], **where).config.callbacks)


def entries(overrides: list[str], **where) -> dict:
    """The user's, which stand after forge's own."""
    found = all_entries(overrides, **where)
    assert tuple(found)[: len(OURS)] == OURS
    return {name: entry for name, entry in found.items() if name not in OURS}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], {}),
        (EMA, {"ema": {"_target_": "mypkg.EMA", "decay": 0.9}}),
        ([*EMA, "callbacks.ema.decay=0.5"], {"ema": {"_target_": "mypkg.EMA", "decay": 0.5}}),
        ([*EMA, "~callbacks.ema.decay"], {"ema": {"_target_": "mypkg.EMA"}}),
        ([*EMA, "~callbacks.ema"], {}),
        (
            [*EMA, "++callbacks.ema.decay=1", "++callbacks.ema.every=2"],
            {"ema": {"_target_": "mypkg.EMA", "decay": 1, "every": 2}},
        ),
        (
            ["+callbacks.ema={_target_:mypkg.EMA,names:[a,b]}"],
            {"ema": {"_target_": "mypkg.EMA", "names": ["a", "b"]}},
        ),
        (["callbacks={ema:{_target_:mypkg.EMA}}"], {"ema": {"_target_": "mypkg.EMA"}}),
        ([*EMA, "callbacks.ema={decay:0.1}"], {"ema": {"_target_": "mypkg.EMA", "decay": 0.1}}),
        ([*EMA, "+callbacks.ema.sub.deep=${train.max_steps}", "train.max_steps=77"], None),
    ],
    ids=str,
)
def test_on_the_command_line(overrides: list[str], expected: dict | None):
    found = entries(overrides)
    assert found == (
        expected
        if expected is not None
        else {"ema": {"_target_": "mypkg.EMA", "decay": 0.9, "sub": {"deep": 77}}}
    )


def test_forges_own_are_taken_out_and_changed_in_their_place():
    assert tuple(all_entries(["~callbacks.samples"])) == OURS[:3]
    mine = all_entries(["callbacks.evaluation._target_=mypkg.EMA", "+callbacks.evaluation.decay=1"])
    assert tuple(mine) == OURS
    assert mine["evaluation"] == {"_target_": "mypkg.EMA", "decay": 1}
    other = only(["callbacks.samples._target_=os.system"])
    assert other.what == "os.system may not be built for callbacks: it is under no trusted prefix."


def test_from_a_group_of_the_users_own(write: Write):
    folder = write("callback/ema.yaml", WRITTEN)
    whole = {"_target_": "mypkg.EMA", "decay": 0.99, "parts": ["a", {"b": 1}]}
    assert entries(["+callback=ema"], config_dirs=[folder]) == {"ema": whole}
    assert entries(["+callback=ema", "callbacks.ema.decay=0.5"], config_dirs=[folder]) == {
        "ema": whole | {"decay": 0.5}
    }
    twice = entries(
        ["+callback@callbacks.one=ema", "+callback@callbacks.two=ema", "callbacks.two.decay=0.1"],
        config_dirs=[folder],
    )
    assert twice == {"one": whole, "two": whole | {"decay": 0.1}}


def test_a_fault_in_a_file_says_where(write: Write):
    folder = write("callback/ema.yaml", WRITTEN.replace("mypkg.EMA", "os.system"))
    found = only(["+callback=ema"], config_dirs=[folder])
    assert found.rule == "target"
    assert found.where == f"{folder}/callback/ema.yaml:2"


def test_resolved_entries_are_read_only_all_the_way_down():
    entry = resolved([*EMA, "+callbacks.ema.deep={a:[{b:1}]}"]).config.callbacks["ema"]
    for change in (
        lambda: entry.update(decay=1),
        lambda: entry.pop("decay"),
        lambda: entry.setdefault("x", 1),
        lambda: entry["deep"].clear(),
        lambda: entry["deep"]["a"][0].__setitem__("b", 2),
        lambda: entry.__delitem__("decay"),
        lambda: entry.__ior__({"x": 1}),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError, match="a resolved config is read-only"):
            change()
    assert entry == {"_target_": "mypkg.EMA", "decay": 0.9, "deep": {"a": ({"b": 1},)}}


def test_an_entry_set_in_python_is_checked():
    config = composition.config()
    config.callbacks["mine"] = {"_target_": "mypkg.EMA", "of": object()}
    with pytest.raises(
        ValueError, match=r"callbacks\.mine\.of is a object, which no file can keep"
    ):
        config.validate()
    config.callbacks = {1: {}}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="callbacks must be a dict of entries by name"):
        config.validate()


def test_it_survives_the_run_directory(tmp_path: Path):
    config = resolved(
        [*EMA, "+callbacks.ema.deep={a:[{b:1}],t:'yes'}", "+trackers.t._target_=mypkg.EMA"]
    ).config
    saved_config.save_config(config, tmp_path / "config.yaml")
    again = saved_config.load_config(tmp_path / "config.yaml", trust=["mypkg."])
    assert (again.callbacks, again.trackers) == (config.callbacks, config.trackers)
    assert again.callbacks["ema"]["deep"]["a"] == ({"b": 1},)
    with pytest.raises(dataclasses.FrozenInstanceError):
        again.callbacks["x"] = 1
    assert resolve(again).config.callbacks == config.callbacks


def test_explain_and_check_know_them(capsys: pytest.CaptureFixture[str], write: Write):
    folder = write("callback/ema.yaml", WRITTEN)
    assert (
        explain.main(
            [
                "callbacks.ema.decay",
                "callbacks",
                TRUST,
                "-cd",
                folder,
                "+callback=ema",
                "+callbacks.ema.x=1",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert shown.startswith(
        f"callbacks.ema.decay = 0.99\n  from          {folder}/callback/ema.yaml:3\n\ncallbacks = "
    )
    assert "meaning       callbacks by name" in shown
    assert check.main([TRUST, "-cd", folder, "+callback=ema"]) == 0
    assert check.main(["--help"]) == 0
    assert "  callbacks    {}   callbacks by name" in capsys.readouterr().out
