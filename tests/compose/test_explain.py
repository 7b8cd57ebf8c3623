"""`python -m forge.explain`: the value of an option and where it comes from, with file and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from forge import explain
from forge.compose.hydra_adapter import CONF
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


def text_at(place: str) -> str:
    """The text at 'file:line'."""
    file, _, number = place.partition(":")
    return Path(ROOT, file).read_text().splitlines()[int(number) - 1].strip()


def test_a_derived_value(say: Say) -> None:
    text = say("scheduler.decay_steps", "train.max_steps=70", "scheduler.warmup_steps=20")
    at = re.search(r"written at (forge/config/optimizers/schedules\.py:\d+), the default", text)
    assert at
    assert text_at(at[1]).startswith("decay_steps: int | None = opt(")
    assert text.splitlines() == [
        "scheduler.decay_steps = 50",
        "  worked out    train.max_steps=70 - scheduler.warmup_steps=20",
        f"  because       null is {at[0]}",
        "  meaning       steps from the peak to the floor; null = what is left of train.max_steps",
        "  admits        greater than 0",
        "  rule          scheduler.steps_or_ratio: Warm-up is given in steps or as a share of "
        "train.max_steps, and so is the decay of wsd.",
        "  rule          scheduler.horizon: The schedule should end where the run ends.",
        "  rule          checkpoint.branch_of: A branch begins in a run of equal model, data and "
        "optimizer with scheduler=constant, at the checkpoint where scheduler=wsd begins to decay.",
    ]


PLACES = [
    ("model.dim", "model=llama7b", "conf/model/llama7b.yaml", "dim: 4096"),
    ("seed", "", "conf/config.yaml", "seed: 42"),
    ("train.max_steps", "debug=fast", "conf/debug/fast.yaml", "max_steps: 3"),
    (
        "scheduler.wsd_decay_type",
        "experiment=wsd",
        "conf/experiment/wsd.yaml",
        "wsd_decay_ty",
    ),
    (
        "model.rope_theta",
        "model=tiny",
        "forge/config/model/rotary.py",
        "rope_theta: float = opt(10000.0,",
    ),
    (
        "model._target_",
        "",
        "forge/config/model/decoder.py",
        '_target_: str = "forge.models.decoder.Dec',
    ),
]


@pytest.mark.parametrize(("key", "override", "file", "text"), PLACES)
def test_file_and_line(key: str, override: str, file: str, text: str, say: Say) -> None:
    shown = say(key, *filter(None, [override]))
    place = re.search(rf"^  from          ({re.escape(file)}:\d+)", shown, re.MULTILINE)
    assert place, shown
    assert text_at(place[1]).startswith(text)


def test_a_users_file_and_the_command_line(say: Say, tmp_path: Path) -> None:
    file = tmp_path / "experiment" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("# @package _global_\ntrain:\n  max_steps: 77\n")
    words = ["optimizer.lr=0.1", "optimizer.lr", "experiment=mine", "-cd", str(tmp_path)]
    first, second = say("train.max_steps", *words).split("\n\n")
    assert first.startswith(f"train.max_steps = 77\n  from          {file}:3\n")
    start = "optimizer.lr = 0.1\n  from          the command line: optimizer.lr=0.1\n"
    assert second.startswith(start)


def test_sections_and_groups(say: Say) -> None:
    parts = say(*sections(), "run.device=cpu", "model=llama3_8b", "debug", "debug=fast").split(
        "\n\n"
    )
    for group, part in zip(sections(), parts[:-1], strict=True):
        first, *others = part.splitlines()
        assert re.match(rf"{group}=\w+   \(\w+: .*\)$", first)
        assert all(re.match(rf"  {group}\.\w+ = ", line) for line in others)
        assert group != "model" or "  model.n_kv_heads = 8" in others
    assert parts[-1] == "debug=fast   (its options: anomaly, fast, overfit, profile)\n"


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    keys = ["optimizr.lr", "model/dim", "seed.x", "optimizer.betas.0", ""]
    assert (
        explain.main(
            [
                *keys,
                "optimizer=adamw",
                "train.max_steps",
                "optimizer.lrr=1",
                "~seed",
                "train.seq_len=0",
            ]
        )
        == 2
    )
    assert (
        capsys.readouterr().err
        == """\
8 problems; nothing was started or written.
  1. optimizr.lr
     there is no group or option 'optimizr'.
     -> did you mean optimizer.lr?
  2. model/dim
     there is no group 'model/dim', and options are written with dots.
     -> did you mean model.dim?
  3. seed.x
     seed is a value and has nothing below it.
     -> did you mean seed?
  4. optimizer.betas.0
     optimizer.betas is a list, and is given as a whole.
     -> optimizer.betas=[...]
  5. \n     there is no group or option ''.
     -> python -m forge.train --help lists them
  6. optimizer.lrr=1   [command line]
     AdamW has no option 'lrr'.
     -> did you mean optimizer.lr=1?
  7. ~seed   [command line]
     an option cannot be removed.
     -> give it a value: seed=...
  8. train.seq_len=0   [command line]
     train.seq_len must be greater than 0.
"""
    )


def test_without_a_key_it_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert explain.main([]) == 2
    assert capsys.readouterr().out.startswith("python -m forge.explain KEY [group=option]")
