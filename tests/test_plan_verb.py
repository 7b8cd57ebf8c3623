"""`python -m forge.plan`: what it prints, refuses, and how long it takes."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from typing import Any

import pytest

from forge import plan as verb
from forge.compose import composition
from forge.config.problems import ConfigError
from forge.planning.memory import memory_of
from forge.planning.time import planned_time
from forge.planning.world import CPU_BUILD, Devices
from forge.resolve.resolve import resolve
from forge.resolve.search import Layout, layouts

CHUNKED = "objective.loss_fn=chunked_cross_entropy"
LAPTOP = Devices(gpus=0, source=CPU_BUILD, torch=(2, 13))


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert verb.main(list(words)) == 0
    return capsys.readouterr().out


def test_a_plan_says_days_parts_and_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own numbers agree with one another, and with the layout as it is typed."""
    words = ("llama3_8b", "--tokens", "1e12", "--device", "h100", "--nodes", "2")
    text = plan(capsys, *words, "train.seq_len=4096")
    assert "llama3_8b on 16 h100 (2 nodes), 1,024 sequences of 4,096 tokens a step" in text
    days, speed = (
        float(found.replace(",", ""))
        for found in re.search(r"([\d.]+) d,.*\n +speed +([\d,]+) tokens/s", text).groups()  # type: ignore[union-attr]
    )
    assert days == pytest.approx(1e12 / (16 * speed) / 86400, rel=0.01)
    shares = re.findall(r"^  [a-z ]+ +[\d.]+ (?:m?s|min) +([\d.]+)%$", text, re.MULTILINE)
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.5)
    rows = re.findall(r"^  (\d+) +(\S.*?)  +[\d.]+ s ", text, re.MULTILINE)
    assert [number for number, _ in rows] == [str(n + 1) for n in range(len(rows))]
    assert len(rows) == 10
    assert "does not fit" in text.partition("the others")[2]
    typed = text.partition("to train so\n")[2].split()
    common = ["model=llama3_8b", "plan.device=h100", "plan.world_size=16", "train.seq_len=4096"]
    config = composition.config([*common, *verb.BEHIND, CHUNKED, "run.device=cuda", *typed])
    config = resolve(config, devices=LAPTOP).config
    again, needed = planned_time(config), memory_of(config)
    assert again is not None
    assert again.tokens_per_second == pytest.approx(speed, rel=0.01)
    sizes = f"{needed.allocated / 2**30:.1f} GiB, and {needed.reserved / 2**30:.1f} GiB reserved"
    assert f"a device        {sizes} of 79.1 GiB" in text


def test_what_is_given_stays(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("parallel.tp=4", "train.activation_checkpointing=full", "plan.world_size=8")
    text = plan(capsys, "model=llama3_8b", "plan.device=h200", *words)
    layouts = re.findall(r"^  \d+ +(\S+), (\w+), micro", text, re.MULTILINE)
    assert layouts
    assert all("tp4" in name and mode == "full" for name, mode in layouts)


def test_objectives_that_compare_are_planned_and_take_no_dry_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["llama3_8b", "objective=dpo", "data=preference", f"data.path={__file__}"]
    words += ["--device", "h100", "--nodes", "1"]
    assert "llama3_8b on 8 h100 (1 node)" in plan(capsys, *words)
    assert verb.main([*words, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "its step is one of running text, and objective=dpo compares examples." in said
    assert "-> leave --dry-run out" in said


def test_a_slow_network_asks_for_another_layout(capsys: pytest.CaptureFixture[str]) -> None:
    first = {}
    for gbits in (400, 4):
        words = ("--device", "h100", "--nodes", "4", f"plan.network_gbits={gbits}")
        text = plan(capsys, "llama3_8b", *words, "train.global_batch_size=128")
        first[gbits] = re.search(r"network ([\d.,e+]+) GB", text)
    assert first[400]
    sent = {
        gbits: float(found[1].replace(",", "")) if found else 0 for gbits, found in first.items()
    }
    assert sent[4] < sent[400]


def test_what_fits_nowhere_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(["llama3_1_405b", "--device", "a10g", "--gpus", "8"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"no layout of \d+ fits: the leanest needs [\d.,]+ GiB of 22.0 GiB", text)


REFUSED = [
    (["llama3_8b"], "a plan is for a kind of GPU."),
    (["llama3_8b", "--device", "h100", "--nodes", "0"], "it is more than 0."),
    (["llama3_8b", "--device", "h100", "--nodes", "1", "--gpus", "8"], "leave --gpus out"),
    (["lama3_8b", "--device", "h100"], "llama3_8b"),
    (
        ["llama3_8b", "--device", "h100", "--gpus", "7", "parallel.tp=4"],
        "no layout on 7 ranks keeps the rules",
    ),
]


@pytest.mark.parametrize(("words", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb.main(words) == 2
    assert said in capsys.readouterr().err


def test_the_largest_model_on_the_most_gpus_takes_seconds() -> None:
    """Under 10 s, without torch."""
    code = (
        "import sys; from forge import plan;"
        "code = plan.main(sys.argv[1:]); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    words = ["llama3_1_405b", "--tokens", "15e12", "--device", "h100", "--nodes", "2048"]
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=True
    )
    assert "405b on 16,384 h100 (2,048 nodes)" in done.stdout
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 10


def test_a_bad_value_is_refused() -> None:
    with pytest.raises(ConfigError):
        composition.config(["plan.network_gbits=0"]).validate(world_size=1)


MIXTURE, LONG = "model.moe.num_experts=8", "train.seq_len=16384"


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (["dp_shard=4"], []),
        (["dp_shard=1"], []),
        (["dp_shard=2", "dp_replicate=2"], []),
        (["dp_replicate=4"], []),
        (["dp_replicate=1"], []),
        (["tp=1"], []),
        (["tp=4"], []),
        (["pp=1"], []),
        (["pp=2"], []),
        (["cp=1"], [LONG]),
        (["cp=2"], [LONG]),
        (["ep=1"], [MIXTURE]),
        (["ep=2"], [MIXTURE]),
    ],
    ids=str,
)
def test_every_degree_that_is_typed_stays(
    monkeypatch: pytest.MonkeyPatch, words: list[str], others: list[str]
) -> None:
    """A degree of 1 too; the same axis is laid out otherwise where it is left open."""
    tried: list[Layout] = []

    def search(*args: Any, **options: Any) -> list[Layout]:
        tried[:] = layouts(*args, **options)
        return tried

    monkeypatch.setattr(verb, "layouts", search)
    device = ["plan.device=h100", "plan.world_size=8", "train.global_batch_size=64"]
    common = ["model=llama3_1_8b", *device, *others]
    wanted = {axis: int(n) for axis, _, n in (word.partition("=") for word in words)}
    verb.main([*common, *(f"parallel.{word}" for word in words)])
    assert tried
    for one in tried:
        assert {**one.config.parallel.degrees(), **wanted} == one.config.parallel.degrees()
    verb.main([*common, "parallel.dp_shard=-1"])
    assert len({tuple(one.config.parallel.degrees()[axis] for axis in wanted) for one in tried}) > 1
