"""What a run shows of its rollouts: tables, held-out rewards, and a group before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.rollout_rewards import signs

import forge
from forge import preview
from forge.report.__main__ import main as write_report
from forge.rundir.files import read_rows
from forge.rundir.rollouts import read_lines, rollout_path
from forge.train import main
from forge.training.callbacks.tracker_services import markdown

OPTIONS = """
objective=dr_grpo data=prompts tokenizer=bytes model.dim=32 model.n_layers=2 model.n_heads=2
model.max_seq_len=64 train.seq_len=24 train.batch_size=8 train.global_batch_size=8
train.max_steps=6 optimizer=adamw optimizer.lr=0.01 rollout.num_generations=4
rollout.max_new_tokens=10 +rewards.signs._target_=helpers.rollout_rewards.signs
run.trust=[helpers.] run.num_threads=1 metrics.log_interval=2
data.val_fraction=0.3 rollout.table_rows=5 seed=3
"""
EVALUATED = "eval=rollouts eval.interval=3 eval.at_start=true eval.steps=2"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables")
    rows = [{"prompt": f"{n}+{n}|"} for n in range(20)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def words(place: Path, more: str = "") -> list[str]:
    return [*f"{OPTIONS} {more}".split(), f"data.path={place}/rows.jsonl"]


@pytest.fixture(scope="module")
def run(place: Path) -> Path:
    path = place / "run"
    more = f"{EVALUATED} run.dir={path} run.inline=true metrics.enable_tensorboard=true"
    more += " metrics.tensorboard_dir=events"
    assert main(words(place, more)) == 0
    return path


def completions(run: Path, number: int) -> list[dict[str, Any]]:
    content = read_lines(rollout_path(run, number))
    assert content is not None
    return content[1]


def test_tensorboard_has_the_first_completions(run: Path) -> None:
    package = "tensorboard.backend.event_processing.event_accumulator"
    reader = pytest.importorskip(package).EventAccumulator(str(run / "events")).Reload()
    events = reader.Tensors("train/completions/text_summary")
    assert [event.step for event in events] == [2, 4, 6]
    for event in events:
        heads, _, *lines = event.tensor_proto.string_val[0].decode().split("\n")
        assert heads == "| prompt | completion | reward | advantage | tokens | finish |"
        rows = completions(run, event.step - 1)[:5]
        assert len(lines) == 5
        for line, row in zip(lines, rows, strict=True):
            assert line.startswith(f"| {row['prompt_text'][:-1]}\\| | ")
            numbers = f"| {row['reward']:.4g} | {row['advantage']:.4g} | {len(row['ids'])} |"
            assert numbers in line


def test_a_table_of_markdown_has_no_other_cells() -> None:
    assert markdown([{"a": "x|y\n*z*", "b": None}, {"a": 0.123456, "b": 7}]) == (
        "| a | b |\n| --- | --- |\n| x\\|y<br>\\*z\\* |  |\n| 0.1235 | 7 |"
    )


def test_the_page_has_the_last_rollout(run: Path) -> None:
    assert write_report([str(run)]) == 0
    page = (run / "report" / "index.html").read_text()
    assert '<table id="table-rollout_5">' in page
    assert "<details><summary>rollout 0</summary>" in page
    first = completions(run, 5)[0]
    assert f'<th scope="row">{first["prompt_text"]}</th>' in page
    assert f'data-head="advantage">{first["advantage"]:.4g}</td>' in page


def test_held_out_prompts_are_judged_and_teach_nothing(place: Path, run: Path) -> None:
    """At the start, at the interval and at the end; the weights are those of a run without."""
    rows = [row for row in read_rows(run / "metrics.jsonl") if "eval/reward" in row]
    assert [row["step"] for row in rows] == [0, 3, 6]
    assert len({row["eval/reward"] for row in rows}) == 3
    for row in rows:
        assert row["eval/reward"] == pytest.approx(row["eval/rewards/signs/mean"])
        assert row["eval/reward"] < row["eval/best_reward"] <= 1
    prompts = {row["prompt_text"] for number in range(6) for row in completions(run, number)}
    assert 8 <= len(prompts) < 20
    other = place / "other"
    assert main(words(place, f"run.dir={other} run.inline=true")) == 0
    ours, theirs = (forge.load(path).model.state_dict() for path in (run, other))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_group_is_shown_before_the_run(
    place: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the run then writes it."""
    assert preview.main([*words(place), "--group", "--rows", "2", "--json"]) == 0
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = completions(run, 0)
    assert [(row["completion"], row["reward"]) for row in shown] == [
        (row["text"], row["reward"]) for row in rows
    ]
    assert [row["reward"] for row in shown] == signs([], [row["text"] for row in rows])
    assert preview.main([*words(place), "--group", "--rows", "1"]) == 0
    assert capsys.readouterr().out.count("finish ") == 4
    assert preview.main(["debug=fast", "--group"]) == 2
    assert "--group: this run writes no completions" in capsys.readouterr().err
