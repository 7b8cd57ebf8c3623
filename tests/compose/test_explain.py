"""`python -m forge.explain`: the value of an option and where it comes from, with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from forge import explain
from forge.compose.engine import CONF
from forge.config.schemas import sections

ROOT = CONF.parent
Say = Callable[..., str]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(*arguments: str) -> str:
        assert explain.main(arguments) == 0
        return capsys.readouterr().out

    return run


def line_of(place: str) -> str:
    """The text at 'file:line'."""
    file, _, number = place.partition(":")
    return Path(ROOT, file).read_text().splitlines()[int(number) - 1]


def test_a_derived_value(say: Say):
    text = say("scheduler.decay_steps", "train.max_steps=70", "scheduler.warmup_steps=20")
    lines = text.splitlines()
    assert lines[:2] == [
        "scheduler.decay_steps = 50",
        "  worked out    train.max_steps=70 - scheduler.warmup_steps=20",
    ]
    place = re.fullmatch(
        r"  because       null is written at (forge/config/scheduler\.py:\d+), the default",
        lines[2],
    )
    assert place
    assert line_of(place[1]).strip().startswith("decay_steps: int | None = opt(None,")
    assert lines[3:] == [
        "  meaning       steps from the peak to the floor; null = what is left of train.max_steps",
        "  admits        greater than 0",
        "  rule          scheduler.horizon: The schedule should end where the run ends.",
    ]


def test_an_overridden_value(say: Say):
    lines = say("optimizer.lr", "optimizer.lr=0.1").splitlines()
    assert lines[:2] == ["optimizer.lr = 0.1", "  from          the command line: optimizer.lr=0.1"]


@pytest.mark.parametrize(
    ("key", "overrides", "file", "text"),
    [
        ("model.dim", ["model=llama7b"], "conf/model/llama7b.yaml", "dim: 4096"),
        ("seed", [], "conf/config.yaml", "seed: 42"),
        ("train.max_steps", ["debug=fast"], "conf/debug/fast.yaml", "max_steps: 3"),
        (
            "scheduler.wsd_decay_type",
            ["experiment=wsd"],
            "conf/experiment/wsd.yaml",
            "wsd_decay_type: sqrt",
        ),
        ("optimizer.betas", [], "conf/optimizer/adamw.yaml", "betas: [0.9, 0.99]"),
        (
            "model.rope_theta",
            ["model=tiny"],
            "forge/config/model.py",
            'rope_theta: float = opt(10000.0, "base of the rotary frequencies", gt=0)',
        ),
        (
            "scheduler.min_lr_ratio",
            ["scheduler=wsd"],
            "conf/scheduler/wsd.yaml",
            "min_lr_ratio: 0.1",
        ),
        ("data.cache_dir", [], "forge/config/data.py", "cache_dir: str | None"),
        (
            "model._target_",
            [],
            "forge/config/model.py",
            '_target_: str = "forge.models.decoder.Decoder"',
        ),
        (
            "data._target_",
            ["data=text", f"data.path={ROOT}"],
            "forge/config/data.py",
            '_target_: str = "forge.data.corpus.text_files"',
        ),
    ],
)
def test_file_and_line(key: str, overrides: list[str], file: str, text: str, say: Say):
    place = re.search(
        rf"^  from          ({re.escape(file)}:\d+)", say(key, *overrides), re.MULTILINE
    )
    assert place, say(key, *overrides)
    assert line_of(place[1]).strip().startswith(text)


def test_a_users_file_is_named_in_full(say: Say, tmp_path: Path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ntrain:\n  max_steps: 77\n"
    )
    text = say("train.max_steps", "experiment=mine", "-cd", str(tmp_path))
    assert text.splitlines()[:2] == [
        "train.max_steps = 77",
        f"  from          {tmp_path}/experiment/mine.yaml:3",
    ]


def test_choices_and_rules_are_named(say: Say):
    text = say("model.position")
    assert "  admits        rope, learned\n" in text
    assert (
        "  rule          model.rope_head_dim: Rotary positions rotate pairs: the head dimension must be even.\n"
        in text
    )


@pytest.mark.parametrize("group", sections())
def test_a_section(group: str, say: Say):
    lines = say(group, "run.device=cpu").splitlines()
    assert re.match(rf"{group}=\w+   \(\w+: .*\)$", lines[0])
    assert all(re.match(rf"  {group}\.\w+ = ", line) for line in lines[1:])


def test_a_section_shows_what_was_worked_out(say: Say):
    text = say("model", "model=llama3_8b")
    assert text.startswith("model=llama3_8b   (Decoder: A decoder-only transformer")
    assert "  model.gated_mlp = true\n" in text
    assert "  model.n_kv_heads = 8\n" in text


def test_a_group_of_presets(say: Say):
    assert (
        say("debug", "debug=fast")
        == "debug=fast   (its options: anomaly, fast, overfit, profile)\n"
    )
    assert say("experiment").startswith("experiment=null   (its options: ")


def test_several_keys_at_once_between_overrides(say: Say):
    parts = say("seed", "seed=3", "optimizer.eps", "model=small").split("\n\n")
    assert [part.splitlines()[0] for part in parts] == ["seed = 3", "optimizer.eps = 1e-08"]


@pytest.mark.parametrize(
    ("key", "what", "fix"),
    [
        ("optimizr.lr", "there is no group or option 'optimizr'.", "did you mean optimizer.lr?"),
        ("optimizer.lrr", "AdamW has no option 'lrr'.", "did you mean optimizer.lr?"),
        (
            "model/dim",
            "there is no group 'model/dim', and options are written with dots.",
            "did you mean model.dim?",
        ),
        ("seed.x", "seed is a value and has nothing below it.", "did you mean seed?"),
        (
            "optimizer.betas.0",
            "optimizer.betas is a list, and is given as a whole.",
            "optimizer.betas=[...]",
        ),
        (
            "trainer.learning_rate",
            "there is no group or option 'trainer'.",
            "did you mean optimizer.lr?",
        ),
    ],
)
def test_an_unknown_key(key: str, what: str, fix: str, capsys: pytest.CaptureFixture[str]):
    assert explain.main([key]) == 2
    assert (
        capsys.readouterr().err
        == f"1 problem; nothing was started or written.\n  1. {key}\n     {what}\n     -> {fix}\n"
    )


def test_problems_of_the_overrides_come_first(capsys: pytest.CaptureFixture[str]):
    assert explain.main(["optimizer.lrr", "seed=abc"]) == 2
    assert "seed is an integer; 'abc' is not." in capsys.readouterr().err


def test_without_a_key_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]):
    assert explain.main([]) == 2
    assert capsys.readouterr().out.startswith("python -m forge.explain KEY [group=option]")
